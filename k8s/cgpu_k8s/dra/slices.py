"""The ResourceSlice of a node: its GPUs as devices that several claims may share. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import printable
from cgpu_env.request import DEFAULT_MAX_INST
from cgpu_k8s.names import (
    CLAIM_CORES,
    CLAIM_MEMORY,
    CLAIM_SLOTS,
    CLAIM_TAINT,
    DRIVER,
    NVIDIA_DRIVER,
)
from cgpu_k8s.objects.fields import get_member, get_objects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from cgpu_k8s.objects.fields import Json

API = "resource.k8s.io/v1"
CORE_STEP = 5  # percent of a GPU's time; max_inst units of weight are all of it
WHOLE_CORES = CORE_STEP * DEFAULT_MAX_INST
_LONGEST_STRING = 64  # of an attribute
_PER_GI = 1024
_STANDARD = "resource.kubernetes.io/"
_NUMBER = re.compile(r"\d+")


class GpuProblem(NamedTuple):
    """A reason why claims must not get a GPU.

    Attributes:
        taint: the value of its device's taint, such as ``GPU-is-lost-error-15``; "": the GPU has
            no device.
        sentence: what is wrong and, after a semicolon, what to do.
    """

    taint: str
    sentence: str


class SliceGpu(NamedTuple):
    """A GPU as it is published.

    Attributes:
        index: the driver's number of it, which its device's name has.
        uuid: of the GPU.
        name: the product's.
        mib: its memory in MiB, rounded down.
        facts: what else the driver says of it, by attributes' names: ``brand``,
            ``architecture``, ``cudaComputeCapability``, ``driverVersion``, ``cudaDriverVersion``
            and ``pciBusID``, each as text, as far as it is known.
        pcie_root: such as ``pci0000:00``; "": not known.
        numa_node: None: not known, or the only one.
        problem: None: claims may have it.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    name: str
    mib: int
    facts: Mapping[str, str] = {}
    pcie_root: str = ""
    numa_node: int | None = None
    problem: GpuProblem | None = None


class SliceNode(NamedTuple):
    """The node of a slice: its name and UID."""

    name: str
    uid: str


_VERSIONS = frozenset(("cudaComputeCapability", "driverVersion", "cudaDriverVersion"))


def device_name(index: int) -> str:
    """Return the name of a GPU's device."""
    return f"gpu-{index}"


def slice_name(node: str) -> str:
    """Return the name of a node's slice."""
    return f"{node}-{DRIVER}"


def plan_slice(
    node: SliceNode,
    gpus: Iterable[SliceGpu],
    current: Json | None,
    *,
    has_taints: bool = True,
    nvidia_names: bool = False,
) -> dict[str, Any] | None:
    """Return the slice to write; None if the API server has it already.

    Args:
        node: the node of the slice.
        gpus: the node's GPUs.
        current: the slice as the API server has it; None: it has none.
        has_taints: whether the API server keeps taints of devices. If not, GPUs with a problem are
            left out.
        nvidia_names: whether devices also have attributes and a capacity under the names of
            NVIDIA's driver, by which manifests for it select. The scheduler reads them for every
            pod that waits: docs/decisions/0946-nvidias-names-where-they-are-used.md.

    Returns:
        A slice to create; if it has a ``resourceVersion``, it replaces ``current``.
    """
    # The API server does not store an empty list.
    spec = {"devices": [], **get_member(current or {}, "spec", dict)}
    taints = {each.get("name"): get_objects(each, "taints") for each in spec["devices"]}
    devices = [
        _describe_device(gpu, taints.get(device_name(gpu.index), []), nvidia_names=nvidia_names)
        for gpu in sorted(gpus, key=lambda gpu: gpu.index)
        if gpu.problem is None or (has_taints and gpu.problem.taint)
    ]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    wanted: dict[str, Any] = {"driver": DRIVER, "nodeName": node.name, "devices": devices}
    about: dict[str, Any] = {"name": slice_name(node.name), "ownerReferences": [owner]}
    generation = 1
    if current is not None:
        metadata = get_member(current, "metadata", dict)
        owners = [each.get("uid") for each in get_member(metadata, "ownerReferences", list)]
        if owners == [node.uid] and {name: spec.get(name) for name in wanted} == wanted:
            return None
        about["resourceVersion"] = get_member(metadata, "resourceVersion", str)
        generation = get_member(spec, "pool", dict).get("generation", 0) + 1
    pool = {"name": node.name, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": about,
        "spec": {**wanted, "pool": pool},
    }


def find_other_offer(slices: Iterable[Json], uuids: Collection[str]) -> str:
    """Return a sentence if another driver's slice has one of these GPUs; "": none has."""
    for item in slices:
        spec = get_member(item, "spec", dict)
        driver = get_member(spec, "driver", str)
        for device in get_objects(spec, "devices") if driver != DRIVER else ():
            # a driver may call the attribute anything
            values = get_member(device, "attributes", dict).values()
            texts = {get_member(each, "string", str) for each in values}
            for uuid in texts.intersection(uuids):
                return (
                    f"GPU {uuid} is also offered by the DRA driver {printable(driver)}, so it would"
                    " be given twice: keep that driver off this node"
                )
    return ""


def has_dropped_taints(sent: Json, stored: Json) -> bool:
    """Return whether the API server dropped taints of the slice that it was sent."""
    return _count_taints(sent) > _count_taints(stored)


def has_dropped_sharing(sent: Json, stored: Json) -> bool:
    """Return whether the API server dropped that several claims can share a device."""
    return _count_shared(sent) > _count_shared(stored)


def _count_shared(item: Json) -> int:
    devices = get_objects(get_member(item, "spec", dict), "devices")
    return sum(get_member(each, "allowMultipleAllocations", bool) for each in devices)


def _count_taints(item: Json) -> int:
    devices = get_objects(get_member(item, "spec", dict), "devices")
    return sum(len(get_objects(each, "taints")) for each in devices)


def _describe_device(
    gpu: SliceGpu, taints: Sequence[Json], *, nvidia_names: bool
) -> dict[str, Any]:
    """Return the device of a GPU; ``taints``: those that the stored device has."""
    found: dict[str, Any] = {
        "name": device_name(gpu.index),
        "allowMultipleAllocations": True,
        "attributes": _list_attributes(gpu),
        "capacity": {
            CLAIM_MEMORY: _limit_memory(gpu.mib),
            CLAIM_CORES: {
                "value": str(WHOLE_CORES),
                "requestPolicy": {
                    "default": "0",
                    "validRange": {"min": "0", "max": str(WHOLE_CORES), "step": str(CORE_STEP)},
                },
            },
            CLAIM_SLOTS: {
                "value": str(DEFAULT_MAX_INST),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }
    if nvidia_names:
        _add_nvidia_names(found, gpu.mib)
    if gpu.problem is None:
        return found
    return {**found, "taints": [_make_taint(gpu.problem.taint, taints)]}


def _add_nvidia_names(device: dict[str, Any], mib: int) -> None:
    """Let selectors for NVIDIA's driver find what they read; claims take nothing of the memory."""
    own = [each for each in device["attributes"].items() if "/" not in each[0]]
    device["attributes"].update({f"{NVIDIA_DRIVER}/{name}": value for name, value in own})
    device["capacity"][f"{NVIDIA_DRIVER}/{CLAIM_MEMORY}"] = {
        "value": format_mib(mib),
        "requestPolicy": {"default": "0", "validValues": ["0"]},
    }


def _make_taint(value: str, taints: Sequence[Json]) -> Json:
    """Return the taint as it is stored, with the time that the API server added, or a new one."""
    taint = {"key": CLAIM_TAINT, "value": value, "effect": "NoSchedule"}
    return next((each for each in taints if {**each, **taint} == each), taint)


def _limit_memory(mib: int) -> dict[str, Any]:
    whole = format_mib(mib)
    steps = {"min": "1Mi", "max": whole, "step": "1Mi"}
    return {"value": whole, "requestPolicy": {"default": whole, "validRange": steps}}


def format_mib(mib: int) -> str:
    """Return an amount of memory as the API server writes it, so that the two compare equal.

    >>> [format_mib(each) for each in (2500, 16384, 1 << 20)]
    ['2500Mi', '16Gi', '1Ti']
    """
    units = ("Mi", "Gi", "Ti")
    for unit in units[:-1]:
        if mib % _PER_GI:
            return f"{mib}{unit}"
        mib //= _PER_GI
    return f"{mib}{units[-1]}"


def _list_attributes(gpu: SliceGpu) -> dict[str, Any]:
    """Return the attributes that NVIDIA's driver has."""
    known: dict[str, Any] = {
        "type": _text("gpu"),
        "index": {"int": gpu.index},  # of earlier releases of NVIDIA's driver; manifests name it
        "uuid": _text(gpu.uuid),
        "productName": _text(gpu.name),
    }
    for name, value in gpu.facts.items():
        found = _version(value) if name in _VERSIONS else _text(value)
        if found is not None:
            known[name] = found
    if gpu.pcie_root:
        known[f"{_STANDARD}pcieRoot"] = _text(gpu.pcie_root)
    if gpu.numa_node is not None:
        known[f"{_STANDARD}numaNode"] = {"int": gpu.numa_node}
    return known


def _text(value: str) -> dict[str, str]:
    return {"string": value[:_LONGEST_STRING]}


def _version(value: str) -> dict[str, str] | None:
    """Return a version in Kubernetes' form; None if the text is no version.

    >>> _version("535.129.03")
    {'version': '535.129.3'}
    """
    parts = value.split(".")
    if not 1 <= len(parts) <= 3 or not all(map(_NUMBER.fullmatch, parts)):  # noqa: PLR2004
        return None
    return {"version": ".".join(str(int(part)) for part in (*parts, "0", "0")[:3])}
