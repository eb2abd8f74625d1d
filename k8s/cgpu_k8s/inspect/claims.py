"""Nodes that give their GPUs to claims, as they are shown: who has which part of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.inspect.cluster import GpuView, NodeView, PodView
from cgpu_k8s.names import CLAIM_CORES, CLAIM_MEMORY, CLAIM_SLOTS, DRIVER, SCHEDULE
from cgpu_k8s.objects.published import Share, sum_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cgpu_k8s.inspect.cluster import NodeFacts
    from cgpu_k8s.objects.claims import ClaimingPod, OfferedDevice, PodClaim
    from cgpu_k8s.objects.nodes import Offer

LABEL = "dra"  # the value of SCHEDULE on such nodes
_MIB = 20
_NOBODY = "-"  # of a claim without a pod
DRIVERS = "kubectl get pods -A -o wide -l app.kubernetes.io/component=dra-driver"


class ClaimFacts(NamedTuple):
    """The facts about claims that the API server has.

    Attributes:
        slices: the nodes whose driver has a ResourceSlice, with its devices.
        claims: all claims, by namespace and name; None: not known.
        waiting: the pods that may wait for a claim, because they have no node.
        classes: the DeviceClasses that select devices of our driver.
        resources: the class that each extended resource stands for.
        problem: why something of this is not known; a sentence, or "".
    """

    slices: Mapping[str, Sequence[OfferedDevice]] = {}
    claims: Mapping[tuple[str, str], PodClaim] | None = None
    waiting: Sequence[ClaimingPod] = ()
    classes: frozenset[str] = frozenset((DRIVER,))
    resources: Mapping[str, str] = {}
    problem: str = ""

    @property
    def devices(self) -> list[OfferedDevice]:
        """Return all devices."""
        return [device for each in self.slices.values() for device in each]


class DeviceView(NamedTuple):
    """A device of a node.

    Attributes:
        name: of the device.
        uuid: the GPU's UUID; "": no driver publishes it now.
        taints: what keeps claims from it.
        total: MiB, and percent of its time, in all.
        slots: how many claims can have parts of it.
        allocated: what claims have of it; None: not known.
        taken: how many claims have parts of it; None: not known.
    """

    name: str
    uuid: str
    taints: tuple[str, ...]
    total: Share
    slots: int
    allocated: Share | None
    taken: int | None


class ClaimView(NamedTuple):
    """A claim that has parts of a node's GPUs; ``shares`` by the number of the device."""

    claim: PodClaim
    shares: Mapping[int, Share]


class ClaimNodeView(NamedTuple):
    """A node that gives its GPUs to claims.

    Attributes:
        offer: its name and address.
        devices: by number: the GPU's index, if the device's name has one.
        claims: those that have parts of its devices, by namespace and name.
        problem: why no more claims get its GPUs, or some of them; a sentence, or "".
    """

    offer: Offer
    devices: Mapping[int, DeviceView]
    claims: tuple[ClaimView, ...]
    problem: str

    @property
    def total(self) -> Share:
        """Return the sum over its devices."""
        return sum_shares(each.total for each in self.devices.values())

    @property
    def allocated(self) -> Share | None:
        """Return the sum over its devices; None: not known."""
        found = [each.allocated for each in self.devices.values()]
        known = [each for each in found if each is not None]
        return sum_shares(known) if len(known) == len(found) else None


def is_for_claims(machine: NodeFacts) -> bool:
    """Return whether a node's label gives its GPUs to claims."""
    return machine.offer.labels.get(SCHEDULE) == LABEL


def make_claim_nodes(machines: Iterable[NodeFacts], facts: ClaimFacts) -> list[ClaimNodeView]:
    """Return the nodes that give GPUs to claims, or whose GPUs claims still have, by name."""
    having = {part.node for claim in (facts.claims or {}).values() for part in claim.parts}
    shown = [
        each.offer
        for each in machines
        if is_for_claims(each) or each.offer.name in {*facts.slices, *having}
    ]
    return [_make_node(offer, facts) for offer in sorted(shown, key=lambda offer: offer.name)]


def _make_node(offer: Offer, facts: ClaimFacts) -> ClaimNodeView:
    offered = {device.name: device for device in facts.slices.get(offer.name, ())}
    claims = [
        claim
        for claim in (facts.claims or {}).values()
        if any(part.node == offer.name for part in claim.parts)
    ]
    parts = [part for claim in claims for part in claim.parts if part.node == offer.name]
    numbers = _number_devices(offered, {part.device for part in parts})
    views = []
    for claim in sorted(claims, key=lambda each: (each.namespace, each.name)):
        shares: dict[int, Share] = {}
        for part in claim.parts:
            if part.node == offer.name:
                number = numbers[part.device]
                share = _read_share(part.amounts, offered.get(part.device))
                shares[number] = sum_shares([shares.get(number, Share()), share])
        views.append(ClaimView(claim, shares))
    is_known = facts.claims is not None
    devices = {
        number: _make_device(
            name,
            offered.get(name),
            [view.shares[number] for view in views if number in view.shares] if is_known else None,
        )
        for name, number in sorted(numbers.items(), key=lambda item: item[1])
    }
    missing = sorted({part.device for part in parts} - offered.keys())
    return ClaimNodeView(offer, devices, tuple(views), _find_problem(offer.name, facts, missing))


def _number_devices(offered: Mapping[str, OfferedDevice], named: Iterable[str]) -> dict[str, int]:
    """Return a number for each device: its GPU's index, or else one above all indices."""
    found: dict[str, int] = {}
    rest = []
    for name in (*offered, *sorted({*named} - offered.keys())):
        device = offered.get(name)
        word = name.removeprefix("gpu-")
        index = device.index if device else int(word) if word.isdecimal() else None
        if index is None:
            rest.append(name)
        else:
            found[name] = index
    first = max(found.values(), default=-1) + 1
    return {**found, **{name: number for number, name in enumerate(rest, first)}}


def _read_share(amounts: Mapping[str, int], device: OfferedDevice | None) -> Share:
    whole = device.capacity if device else {}
    memory, cores = (amounts.get(name, whole.get(name, 0)) for name in (CLAIM_MEMORY, CLAIM_CORES))
    return Share(-(-memory >> _MIB), cores)


def _make_device(
    name: str, device: OfferedDevice | None, shares: Sequence[Share] | None
) -> DeviceView:
    whole = device.capacity if device else {}
    return DeviceView(
        name,
        device.uuid if device else "",
        device.taints if device else (),
        Share(whole.get(CLAIM_MEMORY, 0) >> _MIB, whole.get(CLAIM_CORES, 0)),
        whole.get(CLAIM_SLOTS, 0),
        None if shares is None else sum_shares(shares),
        None if shares is None else len(shares),
    )


def _find_problem(node: str, facts: ClaimFacts, missing: Sequence[str]) -> str:
    if node not in facts.slices:
        return f"no driver {DRIVER} publishes its GPUs: {DRIVERS}"
    devices = facts.slices[node]
    if not devices:
        return "its driver offers no GPU now, and its log says why"
    if missing:
        return f"claims have parts of {', '.join(missing)}, which does not answer any more"
    tainted = [f"{each.name} ({', '.join(each.taints)})" for each in devices if each.taints]
    return f"no more claims get {', '.join(tainted)}, by taints" if tainted else ""


class ClaimsView(NamedTuple):
    """All that is shown of claims.

    Attributes:
        nodes: those that give their GPUs to claims.
        waiting: the pods without a node that ask for our devices by claims, and why each waits;
            None: not asked.
        problem: why something of this is not known; a sentence, or "".
    """

    nodes: list[ClaimNodeView]
    waiting: dict[ClaimingPod, str] | None
    problem: str


def to_node_view(node: ClaimNodeView) -> NodeView:
    """Return a node with claims in the form of a node with shares: one line for each pod."""
    rows = [
        PodView(claim.namespace, pod, claim.uid, {**shares}, Share(), "", claim.name)
        for claim, shares in node.claims
        for pod in claim.pods or (_NOBODY,)
    ]
    rows.sort(key=lambda row: (min(row.shares), row.namespace, row.name))
    gpus = {
        number: GpuView(each.uuid, not each.taints, Share(), each.total, each.allocated or Share())
        for number, each in node.devices.items()
    }
    return NodeView(node.offer, node.total, gpus, tuple(rows))
