"""``cgpu-smi -q``: everything that is known, a line each, as ``nvidia-smi -q`` lays it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_env.errors import shown
from cgpu_hook.names import name_of
from cgpu_native import policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_hook.node import NodeGpu
    from cgpu_hook.record import Record
    from cgpu_hook.usage import Compute, GpuUse, Usage

_MIB = 1 << 20
_WIDTH = 44
_INDENT = "    "
_NS = 1e9


def lines(usage: Usage) -> Iterator[str]:
    """The whole node."""
    yield "==============CGPU-SMI LOG=============="
    yield ""
    yield _line(0, "Driver Version", usage.node.driver_version)
    yield _line(0, "Attached GPUs", len(usage.node.gpus))
    for gpu in usage.node.gpus:
        yield from _gpu(usage, gpu)
    for note in usage.node.notes:
        yield f"note: {note}"


def _line(depth: int, key: str, value: object) -> str:
    return f"{_INDENT * depth + key:<{_WIDTH}}: {value}"


def _gpu(usage: Usage, gpu: NodeGpu) -> Iterator[str]:
    uses, rules = usage.on(gpu.uuid), usage.rules(gpu.uuid)
    yield f"GPU {gpu.index}"
    yield _line(1, "Product Name", gpu.name)
    yield _line(1, "GPU UUID", gpu.uuid)
    yield _line(1, "Policy", f"{rules.policy} ({policies.POLICIES[rules.policy]})")
    yield _line(1, "Priority Ratio", f"{rules.prio_ratio} %")
    yield _line(1, "Containers", f"{len(uses)} of {rules.max_inst}")
    yield f"{_INDENT}Memory"
    yield _line(2, "Total", _mib(gpu.memory_bytes))
    yield _line(2, "Promised", _mib(sum(use.memory_bytes for _, use in uses)))
    yield _line(2, "Used By Containers", _mib(sum(use.used_bytes for _, use in uses)))
    for record, use in uses:
        yield from _container(record, use)


def _container(record: Record, use: GpuUse) -> Iterator[str]:
    yield f"{_INDENT}{record.kind.title()} {shown(record.id)}"
    yield _line(2, "Name", shown(name_of(record)) or "N/A")
    yield _line(2, "Command", shown(" ".join(record.command)))
    yield _line(2, "Weight", record.weight)
    yield _line(2, "High Priority", "Yes" if record.high_priority else "No")
    yield f"{_INDENT * 2}Memory"
    yield _line(3, "Cap", _mib(use.memory_bytes))
    yield _line(3, "Used", _mib(use.used_bytes) if use.readable else "N/A")
    yield _line(3, "Refused Requests", use.refused)
    yield f"{_INDENT * 2}Compute"
    if use.compute is not None:
        yield from _compute(use.compute)
    yield _line(2, "Processes", len(use.processes))
    for process in use.processes:
        yield _line(3, f"Process ID {process.pid or 'N/A'}", _mib(process.used_bytes))
        yield _line(4, "Process ID In Container", process.container_pid)


def _compute(its: Compute) -> Iterator[str]:
    measured = its.measured_percent
    yield _line(3, "Utilisation", "N/A" if measured is None else f"{measured:.1f} %")
    yield _line(3, "Limit", f"{its.limit_percent:.1f} %")
    yield _line(3, "Share Without Arbiter", f"{its.share_percent:.1f} %")
    yield _line(3, "Arbitrated", "Yes" if its.arbitrated else "No")
    yield _line(3, "Charged", f"{its.charged_ns / _NS:.3f} s")
    yield _line(3, "Waits", its.waits)
    yield _line(3, "Throttled", f"{its.throttled_ns / _NS:.3f} s")


def _mib(size: int) -> str:
    return f"{size // _MIB} MiB"
