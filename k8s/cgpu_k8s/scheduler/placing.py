"""Finds the nodes with room for a pod, ranks them, and chooses the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.pod_request import NOTHING, PodRequestError, compute_pod_part
from cgpu_k8s.scheduler.allocation import WITHHELD, Choice, Refusal, allocate_gpus, select_node
from cgpu_k8s.scheduler.policies.unit_choices import UNIT, check_binding, exclude_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.objects.nodes import Offer
    from cgpu_k8s.objects.pod_request import PodRequest
    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.cache import SchedulerCache

UNKNOWN, SENT, BOUND = "unknown-node", "sent", "bound"  # codes; more are in allocation.py
GROUP = "group"  # the pod's group has no room, or has it on another node
NOT_KNOWN = Refusal(UNKNOWN, "the node is not known yet")


class FeasibleNodes(NamedTuple):
    """The nodes that have room for a pod, and those that do not.

    Attributes:
        fitting: the names of the nodes with room, in the order of the call.
        refused: why each other node is refused, by name.
        first: the node that the pod should go to, where its share is assumed; "" if none is
            preferred.
    """

    fitting: list[str]
    refused: dict[str, Refusal]
    first: str


def find_nodes(cache: SchedulerCache, pod: Pod, names: Iterable[str], now: float) -> FeasibleNodes:
    """Find the nodes with room for a pod, and assume its share on the best of them.

    A pod without GPUs may go to all nodes that its policy allows. None of them is preferred.

    Raises:
        PodRequestError: no GPU of any node could give the share.
    """
    sent = _find_sent(cache, pod)
    if sent:  # the pod may be bound already, so no other node is allowed until that is known
        named = list(names)
        here = [name for name in named if name == sent.node]
        refused = {name: _refuse_elsewhere(sent) for name in named if name != sent.node}
        return FeasibleNodes(here, refused, sent.node if here else "")
    if not pod.asks_for_gpu:
        return _find_plain_nodes(cache, pod, names, now)
    request = _require_request(pod)
    if pod.group:
        return _find_group_nodes(cache, pod, request, names, now)
    cache.forget_pod(pod.uid)
    fitting, refused = _filter_nodes(cache, request, names)
    policy = cache.policies.find_policy(pod)
    for name, refusal in exclude_nodes(cache.policies, policy, pod, fitting, now).items():
        refused[name] = refusal
        del fitting[name]
    if not fitting:
        return FeasibleNodes([], refused, "")
    first = select_node(fitting)
    allocation = allocate_gpus(cache.nodes[first], request)
    if isinstance(allocation, Allocation):  # always, because the node has just been chosen
        cache.assume_pod(pod, allocation, now)
    return FeasibleNodes(list(fitting), refused, first)


def _find_plain_nodes(
    cache: SchedulerCache, pod: Pod, names: Iterable[str], now: float
) -> FeasibleNodes:
    """Find the nodes of the unit in force for a pod without GPUs, and count the pod in that unit.

    A pod without a policy may go to all nodes.
    """
    policy = cache.policies.find_policy(pod)
    if policy is None:
        cache.remember_plain(pod)
        return FeasibleNodes([*names], {}, "")
    cache.forget_pod(pod.uid)
    named = [*names]
    open_to = [name for name in named if name in cache.policies.nodes]
    refused = {name: NOT_KNOWN for name in named if name not in cache.policies.nodes}
    refused |= exclude_nodes(cache.policies, policy, pod, open_to, now)
    fitting = [name for name in open_to if name not in refused]
    if fitting:
        cache.assume_pod(pod, make_plain_allocation(pod, fitting[0]), now)
    return FeasibleNodes(fitting, refused, "")


def make_plain_allocation(pod: Pod, node: str) -> Allocation:
    """Return the allocation of a pod without GPUs on a node."""
    return Allocation(pod.uid, pod.owner, node, (), NOTHING, {})


def _find_group_nodes(
    cache: SchedulerCache, pod: Pod, request: PodRequest, names: Iterable[str], now: float
) -> FeasibleNodes:
    """Find the node of a pod, if room is or can be reserved for its whole group."""
    part = compute_pod_part(request)
    refused: dict[str, Refusal] = {}
    suitable: list[str] = []
    assumed = cache.assumed.get(pod.uid)
    for name in names:
        offer = cache.offers.get(name)
        if offer is None or offer.withheld:
            why: Refusal | None = _explain_withheld(offer)
        else:
            why = cache.nodes[name].explain_unsuitable(request, part)
        if assumed and assumed.allocation.node == name and not why:  # the policy may have changed
            problem = check_binding(cache.policies, pod, name)
            why = Refusal(UNIT, problem) if problem else None
        if why:
            refused[name] = why
        else:
            suitable.append(name)
    spot = cache.groups.find_spot(pod.uid, suitable, now)
    if isinstance(spot, str):
        refused |= dict.fromkeys(suitable, Refusal(GROUP, spot))
        return FeasibleNodes([], refused, "")
    elsewhere = Refusal(GROUP, "the pod's group has its room on another node")
    refused |= {name: elsewhere for name in suitable if name != spot.node}
    return FeasibleNodes([spot.node], refused, spot.node)


def allocate_for_binding(
    cache: SchedulerCache, pod: Pod, node: str, now: float
) -> Allocation | Refusal:
    """Return what a pod gets on the node that its scheduler chose, and mark it as sent.

    An allocation that was sent before is returned unchanged, or refused.

    Raises:
        PodRequestError: no GPU of any node could give the share.
    """
    known = cache.pods.get(pod.uid)
    if known and known.node:
        return Refusal(BOUND, f"the pod is bound to {known.node} already")
    sent = _find_sent(cache, pod)
    if sent and sent.node != node:
        return _refuse_elsewhere(sent)
    if sent and (gone := _check_resend(cache, sent)):
        return gone
    if pod.group:
        allocation = sent or _get_reserved(cache, pod, node)
    else:
        allocation = sent or _allocate_anew(cache, pod, node)
    if isinstance(allocation, Allocation):
        cache.mark_sent(pod, allocation, now)
    return allocation


def _get_reserved(cache: SchedulerCache, pod: Pod, node: str) -> Allocation | Refusal:
    """Return what is reserved for a pod of a group on the node that its scheduler chose."""
    assumed = cache.assumed.get(pod.uid)
    if assumed and assumed.in_group and assumed.allocation.node == node:
        return assumed.allocation
    return Refusal(GROUP, f"the pod's group has no room for it on {node} any more")


def _allocate_anew(cache: SchedulerCache, pod: Pod, node: str) -> Allocation | Refusal:
    """Forget any share that was assumed for a pod, and allocate GPUs of this node."""
    request = _require_request(pod)
    cache.forget_pod(pod.uid)
    _, refused = _filter_nodes(cache, request, [node])
    return refused[node] if refused else allocate_gpus(cache.nodes[node], request)


def fits_without(cache: SchedulerCache, pod: Pod, name: str, victims: Iterable[str]) -> bool:
    """Return whether a node would have room for a pod if the pods with these UIDs were gone.

    Raises:
        PodRequestError: no GPU of any node could give the share.
    """
    request = _require_request(pod)
    node, gone = cache.nodes.get(name), [pod.uid, *victims]
    taken = [node.taken[uid] for uid in gone if uid in node.taken] if node else []
    for allocation in taken:
        cache.nodes[name].remove(allocation.pod)
    fitting, _ = _filter_nodes(cache, request, [name])
    for allocation in taken:
        cache.nodes[name].add(allocation)
    return bool(fitting)


def _find_sent(cache: SchedulerCache, pod: Pod) -> Allocation | None:
    """Return the pod's allocation if it was sent and the binding is not seen yet, else None."""
    assumed = cache.assumed.get(pod.uid)
    return assumed.allocation if assumed and assumed.sent else None


def _check_resend(cache: SchedulerCache, sent: Allocation) -> Refusal | None:
    """Return why an allocation that was sent cannot be sent again, or None if it can."""
    offer = cache.offers.get(sent.node)
    if offer is None:
        return NOT_KNOWN
    gone = [uuid for uuid in sent.gpus if uuid not in offer.gpus]
    return Refusal(SENT, f"node {sent.node} has no GPU {gone[0]} any more") if gone else None


def _refuse_elsewhere(sent: Allocation) -> Refusal:
    return Refusal(
        SENT, f"the pod's binding to {sent.node} was sent, and its outcome is not known yet"
    )


def _require_request(pod: Pod) -> PodRequest:
    if pod.request is None:
        raise PodRequestError(pod.refusal or "the pod asks for no part of a GPU")
    return pod.request


def _filter_nodes(
    cache: SchedulerCache, request: PodRequest, names: Iterable[str]
) -> tuple[dict[str, Choice], dict[str, Refusal]]:
    part = compute_pod_part(request)
    fitting: dict[str, Choice] = {}
    refused: dict[str, Refusal] = {}
    offers, nodes = cache.offers, cache.nodes
    for name in names:  # possibly thousands
        offer = offers.get(name)
        if offer is None or offer.withheld:
            refused[name] = _explain_withheld(offer)
            continue
        choice = nodes[name].choose(request, part)
        if isinstance(choice, Refusal):
            refused[name] = choice
        else:
            fitting[name] = choice
    return fitting, refused


def _explain_withheld(offer: Offer | None) -> Refusal:
    """Return why a node takes no pod at all."""
    return Refusal(WITHHELD, offer.withheld) if offer is not None else NOT_KNOWN
