"""The GPUs that nodes offer and the shares that pods have, from the events of nodes and pods.

A pod counts once: by its own annotation as soon as its binding is seen, until then by its
reservation. Every change ends in the same state whatever came before, so events may be repeated.
Design: docs/design/kubernetes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.allocations import Allocation, read_decision
from cgpu_k8s.objects.nodes import BINPACK
from cgpu_k8s.scheduler.allocation import NodeInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.objects.nodes import Offer
    from cgpu_k8s.objects.pods import Pod


class Reservation(NamedTuple):
    """The share that a pod will have once it is bound.

    Attributes:
        pod: the pod as it was when it was placed.
        decision: what it gets.
        since: when it was made or last sent, by a clock in seconds that never goes back.
        sent: how often its binding was sent to the API server. Once it was, it may have been
            carried out, and only the pod itself can show that it was not.
    """

    pod: Pod
    decision: Allocation
    since: float
    sent: int = 0


class Books:
    """The cluster's GPUs.

    Attributes:
        offers: the nodes that are known, by name.
        nodes: the same for the allocator, with what pods have; also nodes that are gone and on
            which pods still are.
        pods: pods that ask for a part of a GPU and have not ended, by UID.
        bound: what pods have by their annotations, by UID.
        problems: why the annotation of a bound pod counts for nothing, by UID.
        reservations: what pods will have, by UID.
    """

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.pods: dict[str, Pod] = {}
        self.bound: dict[str, Allocation] = {}
        self.problems: dict[str, str] = {}
        self.reservations: dict[str, Reservation] = {}
        self._entered: dict[str, Allocation] = {}

    def update_node(self, offer: Offer) -> None:
        """A node was added or modified."""
        if self.offers.get(offer.name) == offer:
            return  # most events of a node are about something else; its answers stay known
        self.offers[offer.name] = offer
        self._replace_node(make_node_info(offer))

    def remove_node(self, name: str) -> None:
        """A node was deleted; pods on it count until they are deleted too."""
        if self.offers.pop(name, None):
            self._replace_node(_make_empty_node(name))
            self._drop_empty_node(name)

    def replace_nodes(self, offers: Iterable[Offer]) -> None:
        """Take over these nodes, and forget all others."""
        found = {offer.name: offer for offer in offers}
        for name in self.offers.keys() - found.keys():
            self.remove_node(name)
        for offer in found.values():
            self.update_node(offer)

    def _replace_node(self, node: NodeInfo) -> None:
        before = self.nodes.get(node.name)
        for decision in before.taken.values() if before else ():
            node.add(decision)
        self.nodes[node.name] = node

    def _drop_empty_node(self, name: str) -> None:
        if name not in self.offers and not self.nodes[name].taken:
            del self.nodes[name]

    def update_pod(self, pod: Pod) -> None:
        """A pod was added or modified."""
        if not pod.asks_for_gpu or pod.final:
            self.remove_pod(pod.uid)
            return
        if not pod.node and self._is_bound(pod.uid):
            return  # older than what is known: its binding was read before the watch showed it
        self.pods[pod.uid] = pod._replace(allocation="")
        self.bound.pop(pod.uid, None)
        self.problems.pop(pod.uid, None)
        if pod.node:
            self.reservations.pop(pod.uid, None)  # its binding is seen: it has that, or nothing
            self._record_decision(pod)
        self._update_share(pod.uid)

    def _is_bound(self, uid: str) -> bool:
        known = self.pods.get(uid)
        return known is not None and known.node != ""

    def _record_decision(self, pod: Pod) -> None:
        decision, problem = _parse_decision(pod)
        if decision:
            self.bound[pod.uid] = decision
        else:
            self.problems[pod.uid] = problem

    def confirm_pod(self, pod: Pod, now: float) -> None:
        """A pod was read beside the watch: what it has is kept for it until the watch shows it.

        A list of all pods that comes later may be older, and does not have the pod then.
        """
        reservation = self.reservations.get(pod.uid)
        if pod.final or not pod.asks_for_gpu:
            self.remove_pod(pod.uid)
        elif pod.node and reservation:
            decision, _ = _parse_decision(pod)
            if decision is None:
                self.release(pod.uid)
                return
            self.reservations[pod.uid] = reservation._replace(decision=decision, since=now)
            self._update_share(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """A pod was deleted, or all its containers have ended for good."""
        for kept in (self.pods, self.bound, self.problems, self.reservations):
            kept.pop(uid, None)
        self._update_share(uid)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Take over these pods, and forget all others.

        Reservations of pods that no event has shown yet stay: the list may be older than they are.
        """
        found = {pod.uid: pod for pod in pods}
        for uid in self.pods.keys() - found.keys():
            self.remove_pod(uid)
        for pod in found.values():
            self.update_pod(pod)

    def reserve(self, pod: Pod, decision: Allocation, now: float) -> None:
        """Count what a pod will have, in place of what it had reserved before."""
        self.reservations[pod.uid] = Reservation(pod, decision, now)
        self._update_share(pod.uid)

    def mark_sent(self, pod: Pod, decision: Allocation, now: float) -> None:
        """Count what a pod will have; its binding is about to be sent, perhaps again."""
        before = self.reservations.get(pod.uid)
        times = before.sent if before else 0
        self.reservations[pod.uid] = Reservation(pod, decision, now, times + 1)
        self._update_share(pod.uid)

    def mark_refused(self, uid: str) -> None:
        """The API server refused what was sent last; what was sent before may be on its way."""
        reservation = self.reservations.get(uid)
        if reservation and reservation.sent <= 1:
            self.release(uid)

    def release(self, uid: str) -> None:
        """A pod surely does not get what it has reserved; no reservation is no error."""
        self.reservations.pop(uid, None)
        self._update_share(uid)

    def expire(self, before: float) -> None:
        """Release what was reserved before a time and was not sent since."""
        for uid, reservation in list(self.reservations.items()):
            if not reservation.sent and reservation.since < before:
                self.release(uid)

    def list_overdue(self, before: float) -> list[Reservation]:
        """Return the reservations sent before a time whose outcome is not known yet."""
        return [each for each in self.reservations.values() if each.sent and each.since < before]

    def has_share(self, uid: str) -> bool:
        """Return whether a pod has, or will have, a share of a GPU."""
        return uid in self._entered

    def _update_share(self, uid: str) -> None:
        """Make a node count what a pod has now."""
        reservation = self.reservations.get(uid)
        wanted = self.bound.get(uid) or (reservation.decision if reservation else None)
        have = self._entered.pop(uid, None)
        if wanted:
            self._entered[uid] = wanted
        if wanted == have:
            return
        if have:
            self.nodes[have.node].remove(uid)
            self._drop_empty_node(have.node)
        if wanted:
            self.nodes.setdefault(wanted.node, _make_empty_node(wanted.node)).add(wanted)


def _parse_decision(pod: Pod) -> tuple[Allocation | None, str]:
    """Return the decision in a bound pod's annotation, and the reason if it does not count."""
    try:
        return read_decision(pod), "bound without a decision: its containers get no GPU"
    except CgpuError as error:
        return None, str(error)


def _make_empty_node(name: str) -> NodeInfo:
    """A node that offers nothing."""
    return NodeInfo(name, "", BINPACK, [])


def make_node_info(offer: Offer) -> NodeInfo:
    """Return the node for the allocator, without pods; without GPUs while it offers nothing."""
    offered = [] if offer.withheld else [gpu.to_offered_gpu() for gpu in offer.gpus.values()]
    return NodeInfo(offer.name, offer.mode, offer.placement, offered)
