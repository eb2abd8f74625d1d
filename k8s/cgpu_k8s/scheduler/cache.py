"""The scheduler's cache: the GPUs that nodes offer, and what pods have or will have of them.

The cache is pure: its state follows from the events of nodes and pods. As in kube-scheduler, a pod
that was placed is *assumed* to have its share until its binding is seen, which confirms the share.
The share is forgotten if the binding fails or is not asked for in time. A pod counts once. An event
leads to the same state whatever came before it, so events may be repeated. Design:
docs/design/kubernetes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.allocations import Allocation, read_allocation
from cgpu_k8s.objects.groups import read_reservation
from cgpu_k8s.objects.nodes import BINPACK
from cgpu_k8s.objects.pod_request import WHOLE, compute_pod_part
from cgpu_k8s.scheduler.allocation import NodeInfo, make_allocation
from cgpu_k8s.scheduler.gangs import Ask, Spot
from cgpu_k8s.scheduler.group import GroupPod
from cgpu_k8s.scheduler.groups import HOLD_SECONDS, Groups
from cgpu_k8s.scheduler.policies.group_units import place_in_units
from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
from cgpu_k8s.scheduler.policies.policy_records import Promise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgpu_k8s.objects.nodes import Offer
    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.gangs import Member

MOST_PLAIN = 1000  # pods without GPUs that are remembered until their bindings


class AssumedPod(NamedTuple):
    """The share that a pod will have once it is bound.

    Attributes:
        pod: the pod as it was when its node was chosen.
        allocation: the share. It has no GPUs if the pod has only a policy.
        since: when the share was assumed or the binding last sent, in monotonic seconds.
        sent: how often the binding was sent to the API server. From the first time on, the pod may
            be bound, and only reading the pod can show that it is not.
        in_group: whether the share is part of the reservation of the pod's group, and ends with it.
    """

    pod: Pod
    allocation: Allocation
    since: float
    sent: int = 0
    in_group: bool = False


class SchedulerCache:
    """The GPUs of a cluster, and the shares of its pods.

    Attributes:
        offers: what each known node offers, by the node's name.
        nodes: the same nodes with the shares of pods, for the allocator. A node that is gone stays
            here while pods are on it.
        pods: the pods that ask for GPUs and have not ended, by UID.
        bound: the shares in the annotations of bound pods, by UID.
        problems: why the annotation of a bound pod does not count, by UID.
        assumed: the shares that pods will have, by UID.
        freed: how often a node or a share changed so that there may be more room.
        refused: the value of ``freed`` when a pod was last refused, by UID.
        groups: groups of pods, whose reservations are assumed shares.
        policies: the ResourcePolicies, to which the cache passes nodes, pods and assumed shares.
        plain: the pods without GPUs and policy that ``filter`` answered last, by UID.
    """

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.pods: dict[str, Pod] = {}
        self.bound: dict[str, Allocation] = {}
        self.problems: dict[str, str] = {}
        self.assumed: dict[str, AssumedPod] = {}
        self.freed = 0
        self.refused: dict[str, int] = {}
        self.policies = PolicyCache(self._count_freed)
        self.groups = Groups(
            self._find_spots, self._reserve_spot, self.forget_pod, lambda: self.freed
        )
        self.plain: dict[str, Pod] = {}
        self._entered: dict[str, Allocation] = {}

    def remember_plain(self, pod: Pod) -> None:
        """Remember a pod without GPUs until its binding, because ``bind`` gets only its name."""
        self.plain[pod.uid] = pod._replace(annotations={}, resources=())
        if len(self.plain) > MOST_PLAIN:
            del self.plain[next(iter(self.plain))]

    def _count_freed(self) -> None:
        self.freed += 1

    def update_node(self, offer: Offer) -> None:
        """Add or update a node."""
        self.policies.update_node(offer.name, offer.labels)
        if self.offers.get(offer.name) == offer:
            return  # most events of a node change nothing here, and its answers stay valid
        self.offers[offer.name] = offer
        self._replace_node(make_node_info(offer))

    def remove_node(self, name: str) -> None:
        """Remove a node. Pods on it count until they are removed too."""
        self.policies.remove_node(name)
        if self.offers.pop(name, None):
            self._replace_node(_make_empty_node(name))
            self._drop_empty_node(name)

    def replace_nodes(self, offers: Iterable[Offer]) -> None:
        """Replace all nodes by these."""
        found = {offer.name: offer for offer in offers}
        for name in self.offers.keys() - found.keys():
            self.remove_node(name)
        for offer in found.values():
            self.update_node(offer)

    def _replace_node(self, node: NodeInfo) -> None:
        before = self.nodes.get(node.name)
        for allocation in before.taken.values() if before else ():
            node.add(allocation)
        self.nodes[node.name] = node
        self.freed += 1

    def _drop_empty_node(self, name: str) -> None:
        if name not in self.offers and not self.nodes[name].taken:
            del self.nodes[name]

    def update_pod(self, pod: Pod) -> None:
        """Add or update a pod."""
        self.policies.update_pod(pod)
        if not pod.asks_for_gpu or pod.final:
            if pod.final or pod.node:
                self._remove_share(pod.uid)
            return
        if not pod.node and self._is_bound(pod.uid):
            return  # a stale event: the pod is known to be bound
        if pod.group and pod.uid not in self.pods:
            self.freed += 1  # its group may be complete now
        self.pods[pod.uid] = pod._replace(allocation_annotation="", annotations={}, resources=())
        self.bound.pop(pod.uid, None)
        self.problems.pop(pod.uid, None)
        if pod.node:
            self._record_allocation(pod)
            self._set_assumed(pod.uid, None)  # the binding is seen: only its annotation counts
        else:
            self._update_share(pod.uid)
        self._update_group(pod)

    def _update_group(self, pod: Pod) -> None:
        """Update a pod in its group, with the node that it is bound to or its binding names.

        A pod that is being deleted is in no group: a recreated group needs new pods only.
        """
        if pod.group is None or pod.request is None or pod.terminating:
            self.groups.remove_pod(pod.uid)  # its labels may have named a group before
            return
        assumed = self.assumed.get(pod.uid)
        sent = assumed.allocation.node if assumed and assumed.sent else ""
        part = compute_pod_part(pod.request)
        ask = Ask(pod.gpus, () if part == WHOLE else part)
        self.groups.update_pod(GroupPod(pod.uid, pod.group, pod.created, ask, pod.node or sent))

    def _find_spots(
        self, members: Sequence[Member], here: set[str], now: float
    ) -> dict[str, Spot] | str:
        """Find room for pods of a group, which has other pods on the nodes ``here`` already."""
        rooms = [
            self.nodes[name].find_room()._replace(joined=name in here)
            for name, offer in self.offers.items()
            if not offer.withheld
        ]
        return place_in_units(self.policies, members, rooms, now)

    def _reserve_spot(self, uid: str, spot: Spot) -> None:
        pod, gpus = self.pods[uid], self.nodes[spot.node].get_uuids(spot.gpus)
        if pod.request:  # always, because the pod is in a group
            allocation = make_allocation(pod.request, spot.node, gpus)
            self._set_assumed(uid, AssumedPod(pod, allocation, 0.0, in_group=True))

    def restore_reservations(self, now: float, wall: float) -> None:
        """Restore what the previous leader reserved for groups, from the annotations of the pods.

        Args:
            now: the time in monotonic seconds.
            wall: the time in seconds since 1970.
        """
        for uid, assumed in list(self.assumed.items()):
            if assumed.in_group and not assumed.sent:
                self.forget_pod(uid)
        shown = [(read_reservation(pod.reservation), pod) for pod in self.pods.values()]
        spots: dict[str, tuple[Spot, float]] = {}
        for found, pod in sorted(shown, key=lambda each: -each[0].at if each[0] else 0):
            node = self.nodes.get(found.node) if found else None
            if not found or not node or not self.groups.has_pod(pod.uid) or pod.node:
                continue
            if len({*found.gpus}) != pod.gpus or len(found.gpus) != pod.gpus:
                continue
            age = max(0.0, wall - found.at)
            if age > HOLD_SECONDS and not self.groups.has_bound(pod.uid):
                continue
            if pod.request and node.has_room(found.gpus, compute_pod_part(pod.request)):
                spot = Spot(found.node, node.get_numbers(found.gpus))
                self._reserve_spot(pod.uid, spot)
                spots[pod.uid] = spot, now - age
        self.groups.restore(spots)

    def _is_bound(self, uid: str) -> bool:
        known = self.pods.get(uid)
        return known is not None and known.node != ""

    def _record_allocation(self, pod: Pod) -> None:
        allocation, problem = _parse_allocation(pod)
        if allocation:
            self.bound[pod.uid] = allocation
        else:
            self.problems[pod.uid] = problem

    def confirm_pod(self, pod: Pod, now: float) -> None:
        """Update from a pod that was read ahead of the watch.

        The share of a bound pod stays assumed until the watch shows the pod: a list of all pods
        that arrives later may be older, and lack the pod.
        """
        assumed = self.assumed.get(pod.uid)
        if pod.final:
            self.remove_pod(pod.uid)
        elif pod.node and assumed:
            there = assumed.allocation._replace(node=pod.node)
            allocation = _parse_allocation(pod)[0] if pod.asks_for_gpu else there
            if allocation is None:
                self.forget_pod(pod.uid)
            else:
                confirmed = assumed._replace(allocation=allocation, since=now)
                self._set_assumed(pod.uid, confirmed)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that was deleted or is final."""
        self.policies.remove_pod(uid)
        self._remove_share(uid)

    def _remove_share(self, uid: str) -> None:
        self.groups.remove_pod(uid)
        for kept in (self.pods, self.bound, self.problems, self.refused):
            kept.pop(uid, None)
        self._set_assumed(uid, None)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Replace all pods by these.

        Shares that are assumed for pods that no event has shown yet stay, because the list may be
        older than these pods.
        """
        found = {pod.uid: pod for pod in pods}
        for uid in (self.pods.keys() | self.policies.begin_list(found)) - found.keys():
            self.remove_pod(uid)
        for pod in found.values():
            self.update_pod(pod)

    def assume_pod(self, pod: Pod, allocation: Allocation, now: float) -> None:
        """Assume a share for a pod, in place of what was assumed before."""
        self._set_assumed(pod.uid, AssumedPod(pod, allocation, now))

    def mark_sent(self, pod: Pod, allocation: Allocation, now: float) -> None:
        """Assume a share for a pod whose binding is about to be sent, perhaps again."""
        before = self.assumed.get(pod.uid)
        times = before.sent if before else 0
        self._set_assumed(pod.uid, AssumedPod(pod, allocation, now, times + 1))
        self._update_group(pod)

    def mark_refused(self, uid: str) -> None:
        """Forget the share of a pod whose binding failed, unless an earlier one may yet succeed."""
        assumed = self.assumed.get(uid)
        if assumed and assumed.sent <= 1:
            self.forget_pod(uid)

    def forget_pod(self, uid: str) -> None:
        """Forget a pod's assumed share, if any. Call this only once the pod cannot get it."""
        assumed = self.assumed.get(uid)
        self._set_assumed(uid, None)
        if assumed and assumed.sent and uid in self.pods:
            self._update_group(self.pods[uid])

    def forget_expired(self, before: float) -> None:
        """Forget shares that were assumed before a time, unless their bindings were sent.

        Reservations of groups stay; they expire in ``groups``.
        """
        for uid, assumed in list(self.assumed.items()):
            if not assumed.sent and not assumed.in_group and assumed.since < before:
                self.forget_pod(uid)

    def list_unconfirmed(self, before: float) -> list[AssumedPod]:
        """Return the assumed pods whose bindings were last sent before a time."""
        return [each for each in self.assumed.values() if each.sent and each.since < before]

    def has_share(self, uid: str) -> bool:
        """Return whether a pod has, or will have, a share of a GPU."""
        return uid in self._entered

    def _set_assumed(self, uid: str, assumed: AssumedPod | None) -> None:
        """Replace what is assumed for a pod, and update the counts of its policy and its node."""
        self.assumed.pop(uid, None)
        promise = None
        if assumed:
            self.assumed[uid] = assumed
            promise = Promise(assumed.pod, assumed.allocation.node, assumed.sent > 0)
        self.policies.update_promise(uid, promise)
        self._update_share(uid)

    def _update_share(self, uid: str) -> None:
        """Update the nodes to count the share that a pod now has or is assumed to have."""
        assumed = self.assumed.get(uid)
        share = assumed.allocation if assumed and assumed.allocation.gpus else None
        wanted = self.bound.get(uid) or share
        have = self._entered.pop(uid, None)
        if wanted:
            self._entered[uid] = wanted
        if wanted == have:
            return
        if have:
            self.freed += 1
            self.nodes[have.node].remove(uid)
            self._drop_empty_node(have.node)
        if wanted:
            self.nodes.setdefault(wanted.node, _make_empty_node(wanted.node)).add(wanted)


def _parse_allocation(pod: Pod) -> tuple[Allocation | None, str]:
    """Return the allocation of a bound pod or None, and the reason that applies if it is None."""
    try:
        return read_allocation(pod), "bound without a decision: its containers get no GPU"
    except CgpuError as error:
        return None, str(error)


def _make_empty_node(name: str) -> NodeInfo:
    """Return a node that offers nothing."""
    return NodeInfo(name, "", BINPACK, [])


def make_node_info(offer: Offer) -> NodeInfo:
    """Return a node without pods for the allocator. It has no GPUs if the node offers nothing."""
    if offer.withheld:
        return NodeInfo(offer.name, offer.mode, offer.placement, [])
    gpus = offer.gpus.values()
    return NodeInfo(offer.name, offer.mode, offer.placement, gpus, offer.links)
