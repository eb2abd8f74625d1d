"""A cluster as it is shown: nodes with their GPUs, and the shares of pods on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.names import CORES, COUNT, MEMORY, SCHEDULE, WHOLE_GPU
from cgpu_k8s.objects.allocations import Allocation, read_allocation
from cgpu_k8s.objects.fields import get_member, get_strings
from cgpu_k8s.objects.gpus import CORE_MEM, TOPOLOGY
from cgpu_k8s.objects.nodes import LEFT_ALONE, Offer, read_node
from cgpu_k8s.objects.pod_request import WHOLE
from cgpu_k8s.objects.pods import Pod, read_pod, read_wait
from cgpu_k8s.objects.published import (
    Share,
    published_notes,
    read_asked_share,
    read_published,
    sum_shares,
)
from cgpu_k8s.objects.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.gpus import OfferedGpu
    from cgpu_k8s.objects.pod_request import Part

_MOST_GPUS = 999


class NodeFacts(NamedTuple):
    """The facts of a node's object that are shown.

    Attributes:
        offer: its GPUs, as its agent describes them, and which of them it offers.
        shares: whether its label lets pods have its GPUs, whole or shared.
        capacity: the resources that it publishes, of all its GPUs together.
        gpus: how many GPUs it publishes.
        whole: how many of them pods can have as a whole.
    """

    offer: Offer
    shares: bool
    capacity: Share
    gpus: int
    whole: int


class GpuPod(NamedTuple):
    """The facts of a pod that asks for a share of a GPU.

    Attributes:
        pod: its request, and its node.
        asked: its request, of all its GPUs together.
        notes: its annotations that published tools read.
        waits: why its scheduler has found no node for it; "": it has, or has not tried.
    """

    pod: Pod
    asked: Share
    notes: Mapping[str, str]
    waits: str = ""

    @property
    def published_shares(self) -> dict[int, Share]:
        """Return the shares in the annotations of published tools, by the GPU's index."""
        return read_published(self.notes, self.asked)

    def find_allocation(self) -> tuple[Allocation | None, str]:
        """Return the allocation in its own annotation, and a sentence if that does not count."""
        try:
            return read_allocation(self.pod), ""
        except CgpuError as error:
            return None, str(error)


class GpuView(NamedTuple):
    """One GPU of a node; ``uuid`` is "" if no agent has described it."""

    uuid: str = ""
    healthy: bool = True
    held: Share = Share()
    total: Share = Share()
    allocated: Share = Share()


class PodView(NamedTuple):
    """A pod on a node.

    Attributes:
        namespace: its namespace.
        name: its name there.
        uid: its UID.
        shares: its shares, by the GPU's index.
        pending: the share that it asks for and does not have on the node.
        problem: why its annotation does not count; a sentence or "".
        claim: the name of the claim that gives it its shares; "": an allocation does.
    """

    namespace: str
    name: str
    uid: str
    shares: dict[int, Share]
    pending: Share
    problem: str
    claim: str = ""


class NodeView(NamedTuple):
    """A node.

    Attributes:
        offer: its name, address and mode, and why it offers nothing.
        total: the memory and time of its GPUs.
        gpus: its GPUs, by index.
        pods: the pods on it that ask for a part of a GPU, those that have none last.
    """

    offer: Offer
    total: Share
    gpus: dict[int, GpuView]
    pods: tuple[PodView, ...]

    @property
    def pending(self) -> Share:
        """Return the shares that pods on the node ask for and do not have."""
        return sum_shares(pod.pending for pod in self.pods)

    @property
    def allocated(self) -> Share:
        """Return the shares that pods have, and those that are pending."""
        return sum_shares([*(gpu.allocated for gpu in self.gpus.values()), self.pending])


def read_node_facts(node: Json) -> NodeFacts:
    """Read a node's object.

    Raises:
        ObjectError: it is no node.
    """
    capacity = get_member(get_member(node, "status", dict), "capacity", dict)
    units, cores, count, whole = (
        parse_quantity(capacity.get(name)) or 0 for name in (MEMORY, CORES, COUNT, WHOLE_GPU)
    )
    label = get_strings(get_member(node, "metadata", dict), "labels").get(SCHEDULE, "")
    return NodeFacts(
        read_node(node),
        label not in LEFT_ALONE,
        Share(units, cores),
        min(count, _MOST_GPUS),
        whole if label == TOPOLOGY else 0,  # others publish this resource, too
    )


def read_gpu_pod(pod: Json) -> GpuPod | None:
    """Read a pod's object; None if it asks for no share of a GPU.

    Raises:
        ObjectError: it is no pod.
    """
    found = read_pod(pod)
    if not found.asks_for_gpu:
        return None
    return GpuPod(found, read_asked_share(pod, found), published_notes(pod), read_wait(pod))


def make_views(machines: Iterable[NodeFacts], gpu_pods: Iterable[GpuPod]) -> list[NodeView]:
    """Return the nodes that publish memory of GPUs, or whole ones, by name, each with its pods."""
    on: dict[str, list[GpuPod]] = {}
    for gpu_pod in gpu_pods:
        if not gpu_pod.pod.final:
            on.setdefault(gpu_pod.pod.node, []).append(gpu_pod)
    shown = [each for each in machines if each.capacity.units > 0 or each.whole]
    shown.sort(key=lambda machine: machine.offer.name)
    return [_make_node_view(each, on.get(each.offer.name, [])) for each in shown]


def _make_node_view(machine: NodeFacts, gpu_pods: list[GpuPod]) -> NodeView:
    gpus = _make_gpu_views(machine)
    pods = sorted(
        (_make_pod_view(gpu_pod, machine.offer, gpus) for gpu_pod in gpu_pods), key=_sort_key
    )
    used = {index: sum_shares(pod.shares.get(index, Share()) for pod in pods) for index in gpus}
    described = bool(machine.offer.gpus)
    return NodeView(
        machine.offer,
        sum_shares(gpu.total for gpu in gpus.values()) if described else machine.capacity,
        {index: gpu._replace(allocated=used[index]) for index, gpu in gpus.items()},
        tuple(pods),
    )


def _make_gpu_views(machine: NodeFacts) -> dict[int, GpuView]:
    """Return a node's GPUs as its agent describes them; if it does not, all alike."""
    timed = machine.offer.mode == CORE_MEM
    found = {
        gpu.index: GpuView(
            gpu.uuid,
            gpu.healthy,
            Share(gpu.held, (gpu.cores - gpu.allocatable.cores) * timed),
            Share(gpu.units, gpu.cores * timed),
        )
        for gpu in sorted(machine.offer.gpus.values(), key=lambda gpu: gpu.index)
    }
    if found or not machine.gpus:
        return found
    each = Share(*(amount // machine.gpus for amount in machine.capacity))
    return {index: GpuView(total=each) for index in range(machine.gpus)}


def _make_pod_view(gpu_pod: GpuPod, offer: Offer, gpus: dict[int, GpuView]) -> PodView:
    allocation, problem = gpu_pod.find_allocation()
    given: dict[int, Share] = {}
    if allocation and offer.gpus:
        known = [offer.gpus[uuid] for uuid in allocation.gpus if uuid in offer.gpus]
        given = {gpu.index: _get_share(allocation.part, gpu) for gpu in known}
    elif not problem:
        given = {index: share for index, share in gpu_pod.published_shares.items() if index in gpus}
    rest = Share() if given else gpu_pod.asked
    if allocation and 0 < len(given) < len(allocation.gpus):  # a GPU is gone
        gone = len(allocation.gpus) - len(given)
        rest = Share(allocation.part.units * gone, allocation.part.cores * gone)
    return PodView(gpu_pod.pod.namespace, gpu_pod.pod.name, gpu_pod.pod.uid, given, rest, problem)


def _get_share(part: Part, gpu: OfferedGpu) -> Share:
    return Share(gpu.units) if part == WHOLE else Share(part.units, part.cores)


def _sort_key(pod: PodView) -> tuple[int, str, str]:
    """Return the key that sorts pods by GPU, as published tools do; pods without one come last."""
    return (min(pod.shares, default=_MOST_GPUS + 1), pod.namespace, pod.name)
