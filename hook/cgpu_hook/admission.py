"""Whether a request fits beside the containers that a node has already (SPEC ENV-9, SCH-10)."""

from __future__ import annotations

import cgpu_native
from cgpu_env.errors import CgpuError, shown
from cgpu_env.request import MEM_CONTAINER, WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_env.request import GpuShare, Request
    from cgpu_hook.node import Node
    from cgpu_hook.record import Record

POLICIES = range(7)
DEFAULT_POLICY = 6
_MIB = 1 << 20


class AdmissionError(CgpuError):
    """A request is well formed, but there is no room for it on a GPU."""


def check(
    request: Request, records: Iterable[Record], node: Node, given: Mapping[str, str]
) -> None:
    """Refuse a request that does not fit on one of its GPUs.

    Args:
        request: what a container asks for.
        records: the containers and sessions that live.
        node: the facts about the node.
        given: the variables as the user wrote them, to be quoted.

    Raises:
        AdmissionError: one sentence that names the variable, its value and what is free.
    """
    if len(request.gpus) > cgpu_native.MAX_GPUS:
        raise AdmissionError(f"{len(request.gpus)} GPUs: at most {cgpu_native.MAX_GPUS} have room")
    others = list(records)
    for share in request.gpus:
        beside = [record for record in others if _share(record, share.uuid) is not None]
        _check_count(share, beside, node, given)
        _check_weight(request, share, beside, node, given)
        if not node.overcommit:
            _check_memory(share, beside, node, given)


def policy_for(request: Request, records: Iterable[Record], wanted: int | None) -> int:
    """The compute policy that a container gets: the one its GPUs are under already, else WANTED.

    Raises:
        AdmissionError: WANTED is another one than a living container has on one of the GPUs.
    """
    held = [
        (record.policy, share.index, record.id)
        for record in records
        for share in request.gpus
        if _share(record, share.uuid) is not None
    ]
    for policy, index, name in held:
        if wanted not in (None, policy):
            raise AdmissionError(
                f"--policy {wanted}: GPU {index} is under policy {policy} while {name} runs"
            )
    if wanted is not None:
        return wanted
    return held[0][0] if held else DEFAULT_POLICY


def _share(record: Record, uuid: str) -> GpuShare | None:
    return next((share for share in record.gpus if share.uuid == uuid), None)


def _check_count(
    share: GpuShare, beside: list[Record], node: Node, given: Mapping[str, str]
) -> None:
    if len(beside) >= node.max_inst:
        raise AdmissionError(
            f"{_asked(given)}: GPU {share.index} has {len(beside)} containers already,"
            f" and max_inst allows {node.max_inst}"
        )


def _asked(given: Mapping[str, str]) -> str:
    """The variable that asks for memory as the user wrote it, if it did."""
    value = given.get(MEM_CONTAINER)
    return MEM_CONTAINER if value is None else f"{MEM_CONTAINER}={shown(value)}"


def _check_weight(
    request: Request,
    share: GpuShare,
    beside: list[Record],
    node: Node,
    given: Mapping[str, str],
) -> None:
    free = node.max_inst - sum(record.weight for record in beside)
    if request.weight > free:
        raise AdmissionError(
            f"{WEIGHT}={given.get(WEIGHT, request.weight)}: GPU {share.index} has"
            f" {max(free, 0)} of {node.max_inst} free"
        )


def _check_memory(
    share: GpuShare, beside: list[Record], node: Node, given: Mapping[str, str]
) -> None:
    total = next(gpu.memory_bytes for gpu in node.gpus if gpu.uuid == share.uuid)
    taken = sum(other.memory_bytes for r in beside if (other := _share(r, share.uuid)))
    if share.memory_bytes > total - taken:
        free = max(0, total - taken) // _MIB
        raise AdmissionError(
            f"{_asked(given)}: {share.memory_bytes // _MIB} MiB asked on GPU {share.index},"
            f" where {free} of {total // _MIB} MiB are free"
        )
