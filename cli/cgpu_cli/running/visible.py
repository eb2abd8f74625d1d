"""The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to a session, and their numbers in its program.

The list is read as the driver reads it. A number counts the GPUs in the order that
``CUDA_DEVICE_ORDER`` names. The list ends at the first item that names no GPU. If it names a GPU
twice, no GPU is left.
"""

from __future__ import annotations

from cgpu_env.devices import (
    VENDOR,
    GpuLostError,
    check_devices,
    format_lost_gpu,
    select_answering,
    select_gpus,
)
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import VISIBLE as GPUS
from cgpu_env.values import BLANKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cgpu_env.request import GpuShare
    from cgpu_node.facts.node import Node, NodeGpu

VISIBLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_MIG = "mig-"
_LONGEST_NUMBER = 4


def choose_uuids(environment: Mapping[str, str], node: Node, listed: str | None) -> list[str]:
    """Return the UUIDs of a session's GPUs, in the session's order.

    Args:
        environment: the caller's environment.
        node: the facts about the node.
        listed: ``--gpus``; None: all GPUs that the environment leaves.

    Raises:
        CgpuError: ``listed`` is wrong or names a GPU that the environment leaves out, or the
            environment names an instance of MIG.
        GpuLostError: one of the GPUs does not answer, or none does.
    """
    gpus = [gpu.as_gpu for gpu in node.gpus]
    left = [gpu.uuid for gpu in _list_visible(environment, node)]
    if listed is None or check_devices(GPUS, listed) == ["all"]:
        if VISIBLE not in environment:
            return [gpu.uuid for gpu in select_answering(gpus)]
        for gpu in gpus:
            if gpu.lost and gpu.uuid in left:
                raise GpuLostError(
                    f"{VISIBLE}={printable(environment[VISIBLE])}: {format_lost_gpu(gpu)}"
                )
        return left
    wanted = select_gpus(GPUS, listed, gpus)
    for gpu in wanted:
        if gpu.uuid not in left:
            allowed = ", ".join(str(each.index) for each in gpus if each.uuid in left) or "none"
            raise CgpuError(
                f"--gpus {printable(listed)}: {VISIBLE}={printable(environment[VISIBLE])} leaves"
                f" out GPU {gpu.index}: expected GPUs that it names ({allowed}), or another"
                f" {VISIBLE}"
            )
    return [gpu.uuid for gpu in wanted]


def set_variables(environment: dict[str, str], shares: Iterable[GpuShare], node: Node) -> None:
    """Name a session's GPUs by their NVML numbers. Without GPUs, change no variable."""
    numbers = {gpu.uuid: gpu.index for gpu in node.gpus}
    named = ",".join(str(numbers[share.uuid]) for share in shares)
    if named:
        environment.update({VISIBLE: named, ORDER: BY_BUS})


def _list_visible(environment: Mapping[str, str], node: Node) -> list[NodeGpu]:
    text = environment.get(VISIBLE)
    if text is None:
        return list(node.gpus)
    numbered = node.gpus if environment.get(ORDER) == BY_BUS else _sort_by_cuda(node)
    found: list[NodeGpu] = []
    for item in text.split(","):
        gpu = _find_gpu(item.strip(BLANKS), numbered)
        if gpu is None:
            break
        if gpu in found:
            return []
        found.append(gpu)
    return found


def _sort_by_cuda(node: Node) -> list[NodeGpu]:
    """Return the GPUs in CUDA's order; in NVML's, if CUDA's is not known of all of them."""
    rank = {uuid: number for number, uuid in enumerate(node.cuda_order)}
    if any(gpu.uuid not in rank for gpu in node.gpus):
        return list(node.gpus)
    return sorted(node.gpus, key=lambda gpu: rank[gpu.uuid])


def _find_gpu(item: str, numbered: Sequence[NodeGpu]) -> NodeGpu | None:
    """Return the GPU that an item of the list names."""
    name = item.lower()
    if name.startswith(_MIG):
        raise CgpuError(
            f"{VISIBLE}={printable(item)}: cgpu-run shares whole GPUs, not instances of MIG:"
            " expected numbers or UUIDs of GPUs, such as 0 or GPU-8f3a"
        )
    if name.startswith(VENDOR.lower()):
        found = [gpu for gpu in numbered if gpu.uuid.lower().startswith(name)]
        return found[0] if len(found) == 1 else None
    if not (name.isascii() and name.isdecimal() and len(name) <= _LONGEST_NUMBER):
        return None
    return numbered[int(name)] if int(name) < len(numbered) else None
