"""Reads the part of this node's GPUs that the scheduler allocated to a claim. Pure.

Only ``status.allocation`` counts: only the scheduler writes it, while users write the ``spec``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import GpuShare, Request
from cgpu_env.values import MIB
from cgpu_k8s.dra.parameters import NO_WEIGHT, read_parameters
from cgpu_k8s.dra.slices import CORE_STEP, WHOLE_CORES, device_name
from cgpu_k8s.names import CLAIM_CORES, CLAIM_MEMORY, DRIVER
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.quantities import parse_memory, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_k8s.dra.parameters import ClaimParameters
    from cgpu_k8s.objects.fields import Json
    from cgpu_node.facts.node import NodeGpu

WEIGHTED_FAIR, FIXED = 6, 3
# GPUs give at least the claimed part of their time, or exactly that part.
POLICIES = {"weighted": WEIGHTED_FAIR, "fixed": FIXED}
_ONE_ON_ALL = (
    "a claim has one weight and one priority on all of its GPUs: ask for the same of each, or put"
    " them into claims of their own"
)


class ClaimName(NamedTuple):
    """A claim as a kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the claim's name in messages."""
        return f"claim {self.namespace}/{self.name}"


class ClaimDevice(NamedTuple):
    """A device of ours that was allocated for a request of the claim."""

    request: str
    pool: str
    device: str
    share_id: str


class ClaimGrant(NamedTuple):
    """The part of this node's GPUs that a claim has.

    Attributes:
        claim: which one.
        devices: one for each result of the allocation that is for our driver.
        request: caps, and one weight and one priority for all of them.
        policy: the policy that the claim's GPUs must have.
    """

    claim: ClaimName
    devices: tuple[ClaimDevice, ...]
    request: Request
    policy: int


def read_grant(
    claim: ClaimName, item: Json, node: str, gpus: Sequence[NodeGpu], policy: int
) -> ClaimGrant:
    """Return what a claim has on the node called ``node``.

    Args:
        claim: as the kubelet names it.
        item: the claim as the API server has it.
        node: this node's name.
        gpus: the node's GPUs, lost ones included.
        policy: under which claims share GPUs.

    Raises:
        CgpuError: the claim can get nothing here; one sentence says why.
    """
    uid = get_member(get_member(item, "metadata", dict), "uid", str)
    if uid != claim.uid:
        raise CgpuError(
            f"{claim}: the API server has another one of that name, with the UID {printable(uid)},"
            f" and {claim.uid} is gone: delete the pod, so that it gets the new one"
        )
    allocation = get_member(get_member(item, "status", dict), "allocation", dict)
    if not allocation:
        raise CgpuError(f"{claim}: it has no allocation any more: delete the pod")
    ours = _list_results(item)
    configs = get_objects(get_member(allocation, "devices", dict), "config")
    devices = tuple(_read_device(claim, each, node) for each in ours)
    if not devices:
        raise CgpuError(f"{claim}: none of its devices is of the driver {DRIVER}")
    by_name = {device_name(gpu.index): gpu for gpu in gpus}
    shares = [
        _read_share(claim, each, by_name.get(device.device))
        for each, device in zip(ours, devices, strict=True)
    ]
    uuids = [share.uuid for share in shares]
    if len({*uuids}) < len(uuids):
        raise CgpuError(
            f"{claim}: two of its requests have parts of the same GPU, and a claim has one cap on"
            " each: put them into claims of their own"
        )
    try:
        parameters = [read_parameters(configs, device.request) for device in devices]
    except CgpuError as error:
        raise CgpuError(f"{claim}: {error}") from None
    weight = _read_weight(claim, ours, parameters, policy)
    if len({each.high_priority for each in parameters}) > 1:
        raise CgpuError(f"{claim}: its requests have different priorities: {_ONE_ON_ALL}")
    ordered = tuple(sorted(shares, key=lambda share: share.index))
    request = Request(ordered, weight, parameters[0].high_priority)
    return ClaimGrant(claim, devices, request, policy)


def list_devices(item: Json, node: str) -> set[str]:
    """Return the names of the devices of ours that a claim is allocated on a node."""
    return {
        get_member(each, "device", str)
        for each in _list_results(item)
        if get_member(each, "pool", str) == node
    }


def _list_results(item: Json) -> list[dict[str, Any]]:
    """Return what a claim is allocated of our driver's devices, on any node."""
    allocation = get_member(get_member(item, "status", dict), "allocation", dict)
    results = get_objects(get_member(allocation, "devices", dict), "results")
    return [each for each in results if each.get("driver") == DRIVER]


def _read_device(claim: ClaimName, result: Json, node: str) -> ClaimDevice:
    found = ClaimDevice(
        *(get_member(result, name, str) for name in ("request", "pool", "device", "shareID"))
    )
    if found.pool != node:
        raise CgpuError(
            f"{claim}: its device {printable(found.device)} is of the node"
            f" {printable(found.pool)}, not of {node}"
        )
    if get_member(result, "adminAccess", bool):
        raise CgpuError(f"{claim}: adminAccess: {DRIVER} gives nobody a GPU without a cap")
    return found


def _read_share(claim: ClaimName, result: Json, gpu: NodeGpu | None) -> GpuShare:
    device = printable(get_member(result, "device", str))
    if gpu is None:
        raise GpuLostError(f"{claim}: this node has no {device} any more: delete the pod")
    if gpu.in_mig_mode:
        raise GpuLostError(
            f"{claim}: {device} is in MIG mode by now, and {DRIVER} shares whole GPUs: delete the"
            " pod"
        )
    if gpu.lost:
        raise GpuLostError(f"{claim}: {device} does not answer: {gpu.lost}")
    written = get_strings(result, "consumedCapacity").get(CLAIM_MEMORY)
    if written is None:
        raise CgpuError(
            f"{claim}: its allocation names no {CLAIM_MEMORY} of {device}: expected a Kubernetes"
            " with the feature DRAConsumableCapacity, which is on from 1.36"
        )
    size = parse_memory(written)
    if size is None or size < MIB:
        raise CgpuError(
            f"{claim}: {CLAIM_MEMORY}={printable(written)} of {device}: expected whole bytes, and"
            " at least 1Mi"
        )
    if size > gpu.total_bytes:
        raise CgpuError(
            f"{claim}: {CLAIM_MEMORY}={printable(written)} of {device}, which has"
            f" {gpu.total_bytes // MIB}Mi: delete the pod, so that it is allocated anew"
        )
    return GpuShare(gpu.index, gpu.uuid, size)


def _read_weight(
    claim: ClaimName, results: Sequence[Json], parameters: Sequence[ClaimParameters], policy: int
) -> int:
    """Return the claim's weight, which is the same on all of its GPUs.

    Its cores give the weight, because they are a promise; without cores its parameters do. With
    neither it is 0: the claim was promised no time, and shares what is left by its memory.
    """
    written = [get_strings(each, "consumedCapacity").get(CLAIM_CORES, "0") for each in results]
    if len({*written}) > 1:
        raise CgpuError(f"{claim}: {CLAIM_CORES}={printable(', '.join(written))}: {_ONE_ON_ALL}")
    cores = parse_quantity(written[0])
    if cores is None or cores % CORE_STEP or not 0 <= cores <= WHOLE_CORES:
        raise CgpuError(
            f"{claim}: {CLAIM_CORES}={printable(written[0])}: expected a multiple of {CORE_STEP}"
            f" from 0 to {WHOLE_CORES}"
        )
    if cores:
        own = next((each.weight for each in parameters if each.is_weight_own), None)
        if own is not None:
            raise CgpuError(
                f"{claim}: weight={own}: it claims {CLAIM_CORES}={cores}, which are a weight of"
                f" {cores // CORE_STEP}: leave out one of the two"
            )
        return cores // CORE_STEP
    if policy == FIXED:
        raise CgpuError(
            f"{claim}: it claims no {CLAIM_CORES}, and GPUs here give exactly what is claimed of"
            f" their time: claim a multiple of {CORE_STEP} up to {WHOLE_CORES}"
        )
    weights = [each.weight or NO_WEIGHT for each in parameters]
    if len({*weights}) > 1:
        named = ", ".join(str(weight or "none") for weight in weights)
        raise CgpuError(f"{claim}: weight={named}: {_ONE_ON_ALL}")
    return weights[0]
