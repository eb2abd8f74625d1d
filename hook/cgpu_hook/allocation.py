"""A container's share by its pod's allocation. Its variables are written, never read."""

from __future__ import annotations

from cgpu_env.devices import GpuLostError, format_lost_gpu
from cgpu_env.errors import CgpuError
from cgpu_env.request import (
    DISABLE,
    MEM_CONTAINER,
    MEM_DEV,
    NVIDIA_VISIBLE,
    PREFIX,
    WEIGHT,
    Asked,
    GpuShare,
    Request,
)
from cgpu_env.values import MIB
from cgpu_hook.edit import is_legacy, is_vendor_hook
from cgpu_hook.plan import Plan
from cgpu_hook.pod import (
    MEM_IDX,
    MEM_POD,
    check_generations,
    check_spec,
    find_allocation,
    refuse_unallocated,
)
from cgpu_node.allocation_annotation import ANNOTATION, CORE_STEP
from cgpu_node.facts.node import DeviceNode
from cgpu_node.paths import state_path
from cgpu_node.settings.kubernetes import CORE_MEM, TOPOLOGY, UNLIMITED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cgpu_hook.plan import Draft
    from cgpu_node.allocation_annotation import AllocationAnnotation, Grant
    from cgpu_node.facts.node import Node, NodeGpu

_UNIT_MIB = 1024  # of aliyun.com/gpu-mem; a GPU has as many as fit into its memory
_NO_GPU = "void"
_DEVICES = ("/dev/nvidia", "/run/nvidia-container-devices", "/var/run/nvidia-container-devices")


def withhold_gpus(draft: Draft) -> None:
    """Remove what would give a GPU to a container that its pod's allocation does not name.

    Raises:
        CgpuError: the pod asks for a part of a GPU for it, or the allocation is not for this pod.
    """
    pod, kubernetes = draft.pod, draft.settings.kubernetes
    if pod is None or kubernetes is None:
        return
    found = None if pod.is_sandbox else find_allocation(pod, kubernetes.node)
    if found is not None and pod.container in found.containers:
        draft.allocation = found
        return
    if not pod.is_sandbox:
        refuse_unallocated(pod, found, state_path(draft.setting.state_dir))
    withheld = tuple(DeviceNode(path, path) for path in _list_gpu_paths(draft.config))
    draft.plan = Plan(withheld=withheld)
    bare = _without_vendor(draft.config)
    if bare != draft.config:
        draft.config = bare


def check_allocation(draft: Draft) -> None:
    """Refuse an allocation that does not fit this node, or gives more than the pod asks for.

    Raises:
        CgpuError: it is refused; the sentence names the field.
    """
    pod, kubernetes, found = draft.pod, draft.settings.kubernetes, draft.allocation
    if pod is None or kubernetes is None or found is None:
        return
    from cgpu_hook.container import load_host

    draft.config = load_host(draft)
    gpus = {gpu.uuid: gpu for gpu in draft.node.gpus}
    for name, grants in found.containers.items():
        for uuid, grant in grants.items():
            if uuid not in gpus:
                raise _make_unknown_error(f"containers.{name}.{uuid}", draft.node)
            _check_grant(f"containers.{name}.{uuid}", grant, gpus[uuid], kubernetes.mode)
    units = _count_units(found, gpus)
    check_generations(pod, found, units)
    check_spec(pod, units, found, kubernetes.mode, draft.host_files.state_dir)


def read_allocation(draft: Draft) -> None:
    """Find the share that the pod's allocation gives the container, and write its variables.

    Raises:
        GpuLostError: a GPU of the share does not answer.
        CgpuError: the container's GPUs have different parts of their time for it.
    """
    pod, kubernetes, found = draft.pod, draft.settings.kubernetes, draft.allocation
    if pod is None or kubernetes is None or found is None:
        return
    gpus, mode = {gpu.uuid: gpu for gpu in draft.node.gpus}, kubernetes.mode
    own = found.containers[pod.container]
    for gpu in (gpus[uuid] for uuid in own):
        if gpu.lost:
            raise GpuLostError(
                f"{ANNOTATION}: containers.{pod.container}: {format_lost_gpu(gpu.as_gpu)}"
            )
    weights = {grant.core // CORE_STEP for grant in own.values()}
    if len(weights) > 1:
        raise _make_error(f"containers.{pod.container}: expected the same core on each GPU")
    [weight] = weights
    units = _count_units(found, gpus)
    everything = sum(sum(parts.values()) for parts in units.values())
    given = {
        NVIDIA_VISIBLE: ",".join(own),
        MEM_IDX: _join_numbers(gpus[uuid].index for uuid in own),
        MEM_POD: pod.annotations.get(MEM_POD, str(everything)),
        MEM_CONTAINER: _join_numbers(units[pod.container][uuid] for uuid in own),
        MEM_DEV: _join_numbers(_count_gpu_units(gpus[uuid]) for uuid in own),
        **({WEIGHT: str(weight)} if mode == CORE_MEM else {}),
        **({DISABLE: "true"} if mode in UNLIMITED else {}),
    }
    shares = tuple(
        GpuShare(gpus[uuid].index, uuid, min(grant.mem * MIB, gpus[uuid].total_bytes))
        for uuid, grant in own.items()
    )
    draft.config = _with_variables(draft.config, given)
    draft.is_capped = mode not in UNLIMITED
    if draft.is_capped or not is_legacy(draft.config):  # else NVIDIA's hook follows the variable
        draft.request = Request(shares, weight or 1, high_priority=False, asked=Asked(given))


MODIFIERS = (withhold_gpus, check_allocation, read_allocation)


def _count_units(
    found: AllocationAnnotation, gpus: Mapping[str, NodeGpu]
) -> dict[str, dict[str, int]]:
    """The memory of an allocation in whole units, by container and GPU's UUID."""
    return {
        name: {uuid: _count_grant_units(grant, gpus[uuid]) for uuid, grant in grants.items()}
        for name, grants in found.containers.items()
    }


def _make_unknown_error(field: str, node: Node) -> CgpuError:
    """Return the error for a GPU that this node lacks, or that was lost while it had no name."""
    what = f"{field}: this node has no such GPU"
    unnamed = [format_lost_gpu(gpu.as_gpu) for gpu in node.lost_gpus if not gpu.uuid]
    if not unnamed:
        return _make_error(what)
    return GpuLostError(f"{ANNOTATION}: {'; '.join([what, *unnamed])}")


def _check_grant(field: str, grant: Grant, gpu: NodeGpu, mode: str) -> None:
    most = gpu.total_bytes // MIB
    if grant.mem > most:
        raise _make_error(
            f"{field}.mem={grant.mem}: expected at most {most}, all of GPU {gpu.index}"
        )
    if mode == TOPOLOGY and grant.mem < most:
        raise _make_error(
            f"{field}.mem={grant.mem}: expected {most}, all of GPU {gpu.index}, on a node in mode"
            f" {mode}"
        )
    if (grant.core > 0) != (mode == CORE_MEM):
        allowed = f"at least {CORE_STEP}" if mode == CORE_MEM else "0 or no core"
        raise _make_error(f"{field}.core={grant.core}: expected {allowed} on a node in mode {mode}")


def _count_gpu_units(gpu: NodeGpu) -> int:
    return max(1, gpu.total_bytes // MIB // _UNIT_MIB)


def _count_grant_units(grant: Grant, gpu: NodeGpu) -> int:
    """Return the part's memory in units, rounded up, because its MiB were rounded down."""
    return -(-grant.mem * _count_gpu_units(gpu) * MIB // gpu.total_bytes)


def _join_numbers(numbers: Any) -> str:  # noqa: ANN401
    return ",".join(map(str, numbers))


def _with_variables(config: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return ``config`` with ``variables`` in place of all cgpu variables of image and pod."""
    process = config.get("process") or {}
    others = [entry for entry in process.get("env") or [] if not _is_replaced(entry)]
    env = [*others, *(f"{name}={value}" for name, value in variables.items())]
    return {**config, "process": {**process, "env": env}}


def _is_replaced(entry: object) -> bool:
    name = entry.partition("=")[0] if isinstance(entry, str) else ""
    return name in (DISABLE, NVIDIA_VISIBLE) or name.startswith(PREFIX)


def _list_gpu_paths(config: dict[str, Any]) -> list[str]:
    """The paths in the container at which its configuration has a device node of a GPU."""
    linux = config.get("linux") or {}
    paths = [d.get("path") for d in linux.get("devices") or [] if isinstance(d, dict)]
    paths += [mount["destination"] for mount in config.get("mounts") or []]
    return sorted({path for path in paths if isinstance(path, str) and path.startswith(_DEVICES)})


def _without_vendor(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` without NVIDIA's hooks, and with no GPU in the variables that they read."""
    hooks = config.get("hooks") or {}
    if is_legacy(config):
        others = [hook for hook in hooks["prestart"] if not is_vendor_hook(hook)]
        config = {**config, "hooks": {**hooks, "prestart": others}}
    env = (config.get("process") or {}).get("env") or []
    if any(isinstance(entry, str) and entry.startswith(f"{NVIDIA_VISIBLE}=") for entry in env):
        config = _with_variables(config, {NVIDIA_VISIBLE: _NO_GPU})
    return config


def _make_error(problem: str) -> CgpuError:
    return CgpuError(f"{ANNOTATION}: {problem}")
