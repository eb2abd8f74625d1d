"""Checks whether a request fits on a node beside the containers that are there."""

from __future__ import annotations

import cgpu_native
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import MEM_CONTAINER, WEIGHT
from cgpu_env.values import BLANKS, MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_env.request import GpuShare, Request
    from cgpu_node.facts.node import Node
    from cgpu_node.settings.rules import Rules
    from cgpu_node.shares.record import Record


def check_request(
    request: Request,
    records: Iterable[Record],
    node: Node,
    rules: Mapping[str, Rules],
) -> None:
    """Refuse a request that does not fit on one of its GPUs.

    Args:
        request: what a container asks for.
        records: the living containers and sessions.
        node: the facts about the node.
        rules: the rules in force on each of the request's GPUs, by UUID.

    Raises:
        CgpuError: one sentence that names the variable, its value and what is free.
    """
    if len(request.gpus) > cgpu_native.MAX_GPUS:
        raise CgpuError(f"{len(request.gpus)} GPUs: at most {cgpu_native.MAX_GPUS} have room")
    others = list(records)
    check_weight(request, rules)
    asked = _format_memory_source(request)
    for share in request.gpus:
        beside = records_on_gpu(others, share.uuid)
        most = rules[share.uuid].max_inst
        _check_count(share, beside, most, asked)
        _check_free_weight(request, share, beside, most)
        if not node.config.overcommit:
            _check_memory(share, beside, node, asked)


def check_weight(request: Request, rules: Mapping[str, Rules]) -> None:
    """Refuse a weight above the max_inst of one of its GPUs.

    Raises:
        CgpuError: one sentence that names the variable, its value and what is allowed.
    """
    for share in request.gpus:
        most = rules[share.uuid].max_inst
        if request.weight > most:
            raise CgpuError(
                f"{_format_weight(request)}: expected a whole number from 1 to {most},"
                f" the max_inst of GPU {share.index}"
            )


def check_policy(
    request: Request,
    records: Iterable[Record],
    rules: Mapping[str, Rules],
    wanted: int,
    *,
    is_guest: bool,
) -> None:
    """Refuse the compute policy ``wanted`` if a container is on a GPU under another one.

    A guest's policy is refused even if no container is there.

    Raises:
        CgpuError: one sentence that names the GPU, its policy and who runs there.
    """
    others = list(records)
    for share in request.gpus:
        policy = rules[share.uuid].policy
        if policy == wanted:
            continue
        there = f"policy {wanted}: GPU {share.index} is under policy {policy}"
        for record in records_on_gpu(others, share.uuid):
            raise CgpuError(f"{there} while {record.id} runs")
        if is_guest:
            raise CgpuError(
                f"{there}, which only root can change", hint=f"--policy {policy}, or none"
            )


def records_on_gpu(records: Iterable[Record], uuid: str) -> list[Record]:
    """Return the ``records`` that have a share of the GPU."""
    return [record for record in records if _find_share(record, uuid) is not None]


def sum_promised(records: Iterable[Record], uuid: str) -> int:
    """Return how much of a GPU ``records`` promise in total.

    A record promises the container's cap. If the cap was lowered below what the container held, it
    promises what the container held then.
    """
    return sum(share.cap_bytes for r in records if (share := _find_share(r, uuid)))


def sum_owed(records: Iterable[Record], uuid: str) -> int:
    """Return how much of a GPU the containers of ``records`` may hold, or hold if that is more.

    The figure is exact, but to get it the ledger of each container whose cap was lowered is read.
    """
    return sum(_read_owed(r, share) for r in records if (share := _find_share(r, uuid)))


def _read_owed(record: Record, share: GpuShare) -> int:
    number = record.gpus.index(share)
    try:
        cap = cgpu_native.read_limits(f"{record.directory}/limits").gpus[number].cap_bytes
        if cap >= share.cap_bytes:
            return share.cap_bytes
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            return still_promised(share.cap_bytes, cap, ledger.read_used(number))
    except (OSError, cgpu_native.NativeError, IndexError):  # it ends just now, or is ruined
        return share.cap_bytes


def still_promised(promised: int, cap: int, held: int | None) -> int:
    """Return the bytes of a GPU that are promised to one container, and so to no other.

    Args:
        promised: what its record promises. It is more than the cap if the cap was lowered below
            what the container held.
        cap: its cap.
        held: what it holds; None: not known.
    """
    return promised if held is None else min(promised, max(cap, held))


def free_weight(weights: Iterable[int], max_inst: int) -> int:
    """Return the weight that can be promised on a GPU; 0 if more than max_inst is taken."""
    return max(0, max_inst - sum(weights))


def _find_share(record: Record, uuid: str) -> GpuShare | None:
    return next((share for share in record.gpus if share.uuid == uuid), None)


def _check_count(share: GpuShare, beside: list[Record], most: int, asked: str) -> None:
    if len(beside) >= most:
        already = "1 container" if len(beside) == 1 else f"{len(beside)} containers"
        raise CgpuError(
            f"{asked}: GPU {share.index} has {already} already, and max_inst allows {most}"
        )


def _given_variables(request: Request) -> Mapping[str, str]:
    """Return the variables as the user wrote them, to be quoted."""
    return request.asked.given if request.asked else {}


def _format_weight(request: Request) -> str:
    name = WEIGHT if request.asked else "weight"
    return f"{name}={printable(_given_variables(request).get(WEIGHT, str(request.weight)))}"


def _format_memory_source(request: Request) -> str:
    """Return the source of the requested memory: the variable as written, or the node's default.

    What was not made from variables, such as a claim, is called by the plain word.
    """
    if request.asked is None:
        return "memory"
    value = _given_variables(request).get(MEM_CONTAINER, "")
    if value.strip(BLANKS):
        return f"{MEM_CONTAINER}={printable(value)}"
    size = request.asked.default_memsize
    part = f"={size}" if isinstance(size, str) else ""
    return f"the node's default_memsize{part}" if size else MEM_CONTAINER


def _check_free_weight(
    request: Request,
    share: GpuShare,
    beside: list[Record],
    most: int,
) -> None:
    free = free_weight((record.weight for record in beside), most)
    if request.weight <= free:
        return
    if request.weight == 1 and WEIGHT not in _given_variables(request):
        taken = sum(record.weight for record in beside)
        less = f"one without {WEIGHT}" if request.asked else "this one"
        raise CgpuError(
            f"no weight is left on GPU {share.index}: its containers have {taken} of"
            f" max_inst={most} together, and {less} needs 1"
        )
    raise CgpuError(f"{_format_weight(request)}: GPU {share.index} has {free} of {most} free")


def _check_memory(share: GpuShare, beside: list[Record], node: Node, asked: str) -> None:
    total = next(gpu.total_bytes for gpu in node.gpus if gpu.uuid == share.uuid)
    taken = sum_promised(beside, share.uuid)
    if share.cap_bytes > total - taken:
        taken = sum_owed(beside, share.uuid)
    if share.cap_bytes > total - taken:
        free = max(0, total - taken) // MIB
        raise CgpuError(
            f"{asked}: {share.cap_bytes // MIB} MiB asked on GPU {share.index},"
            f" where {free} of {total // MIB} MiB are free"
        )
