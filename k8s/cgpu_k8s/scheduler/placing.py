"""Finds the nodes with room for a pod, ranks them, and decides which GPUs it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.pod_request import NeedError, part_of
from cgpu_k8s.scheduler.allocation import WITHHELD, Choice, Refusal, allocate_gpus, select_node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.objects.pod_request import Need
    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.cache import Books

UNKNOWN, SENT, BOUND = "unknown-node", "sent", "bound"  # beside the allocator's codes
_NOT_KNOWN = Refusal(UNKNOWN, "the node is not known yet")


class Found(NamedTuple):
    """Nodes for a pod.

    Attributes:
        fitting: the names of those that have room, in the order in which they were asked.
        refused: why the others have none.
        first: where the pod should go, and where its part is reserved; "": nowhere.
    """

    fitting: list[str]
    refused: dict[str, Refusal]
    first: str


def find_nodes(books: Books, pod: Pod, names: Iterable[str], now: float) -> Found:
    """Find the nodes with room for a pod, and reserve its share on the best of them.

    Raises:
        NeedError: no GPU of any node could give what it asks for.
    """
    sent = _find_sent(books, pod)
    if sent:  # its binding may have been carried out: nowhere else until that is known
        named = list(names)
        here = [name for name in named if name == sent.node]
        refused = {name: _refuse_elsewhere(sent) for name in named if name != sent.node}
        return Found(here, refused, sent.node if here else "")
    need = _require_need(pod)
    books.release(pod.uid)
    fitting, refused = _filter_nodes(books, need, names)
    if not fitting:
        return Found([], refused, "")
    first = select_node(fitting)
    decision = allocate_gpus(books.nodes[first], need)
    if isinstance(decision, Allocation):  # always: it was just chosen
        books.reserve(pod, decision, now)
    return Found(list(fitting), refused, first)


def commit_decision(books: Books, pod: Pod, node: str, now: float) -> Allocation | Refusal:
    """Decide what a pod gets on the node that its scheduler chose, and mark it as sent.

    What was sent before is sent again as it was.

    Raises:
        NeedError: no GPU of any node could give what it asks for.
    """
    known = books.pods.get(pod.uid)
    if known and known.node:
        return Refusal(BOUND, f"the pod is bound to {known.node} already")
    sent = _find_sent(books, pod)
    if sent and sent.node != node:
        return _refuse_elsewhere(sent)
    if sent and (gone := _check_resend(books, sent)):
        return gone
    decision = sent or _decide_anew(books, pod, node)
    if isinstance(decision, Allocation):
        books.mark_sent(pod, decision, now)
    return decision


def _decide_anew(books: Books, pod: Pod, node: str) -> Allocation | Refusal:
    """Release the pod's reservation, on whichever node it is, and decide again on this node."""
    need = _require_need(pod)
    books.release(pod.uid)
    _, refused = _filter_nodes(books, need, [node])
    return refused[node] if refused else allocate_gpus(books.nodes[node], need)


def fits_without(books: Books, pod: Pod, name: str, victims: Iterable[str]) -> bool:
    """Return whether a node would have room for a pod without some others, by their UIDs.

    Raises:
        NeedError: no GPU of any node could give what it asks for.
    """
    need = _require_need(pod)
    node, gone = books.nodes.get(name), [pod.uid, *victims]
    taken = [node.taken[uid] for uid in gone if uid in node.taken] if node else []
    for decision in taken:
        books.nodes[name].remove(decision.pod)
    fitting, _ = _filter_nodes(books, need, [name])
    for decision in taken:
        books.nodes[name].add(decision)
    return bool(fitting)


def _find_sent(books: Books, pod: Pod) -> Allocation | None:
    """Return the decision that was sent to the API server and is not seen yet, or None."""
    reservation = books.reservations.get(pod.uid)
    return reservation.decision if reservation and reservation.sent else None


def _check_resend(books: Books, sent: Allocation) -> Refusal | None:
    """Return why the decision that was sent cannot be sent again; None if it can."""
    offer = books.offers.get(sent.node)
    if offer is None:
        return _NOT_KNOWN
    gone = [uuid for uuid in sent.gpus if uuid not in offer.gpus]
    return Refusal(SENT, f"node {sent.node} has no GPU {gone[0]} any more") if gone else None


def _refuse_elsewhere(sent: Allocation) -> Refusal:
    return Refusal(
        SENT, f"the pod's binding to {sent.node} was sent, and its outcome is not known yet"
    )


def _require_need(pod: Pod) -> Need:
    if pod.need is None:
        raise NeedError(pod.refusal or "the pod asks for no part of a GPU")
    return pod.need


def _filter_nodes(
    books: Books, need: Need, names: Iterable[str]
) -> tuple[dict[str, Choice], dict[str, Refusal]]:
    part = part_of(need)
    fitting: dict[str, Choice] = {}
    refused: dict[str, Refusal] = {}
    for name in names:
        offer = books.offers.get(name)
        if offer is None:
            refused[name] = _NOT_KNOWN
        elif offer.withheld:
            refused[name] = Refusal(WITHHELD, offer.withheld)
        else:
            choice = books.nodes[name].choose(need, part)
            if isinstance(choice, Refusal):
                refused[name] = choice
            else:
                fitting[name] = choice
    return fitting, refused
