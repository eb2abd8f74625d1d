"""``cgpu-smi -q``: all that is known, one value a line, in the layout of ``nvidia-smi -q``."""

from __future__ import annotations

from collections.abc import Iterator

from cgpu_env.errors import printable
from cgpu_env.values import MIB
from cgpu_node.view import marks
from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

_WIDTH = 44
_INDENT = "    "
_NS = 1e9


def format_usage(usage: Usage) -> Iterator[str]:
    """Yield the lines about the whole node."""
    yield "==============CGPU-SMI LOG=============="
    yield ""
    yield _format_line(0, "Driver Version", usage.driver_version)
    yield _format_line(0, "Attached GPUs", len(usage.gpus))
    for gpu in usage.gpus:
        yield from _format_gpu(usage, gpu)
    for note in usage.list_remarks():
        yield f"note: {note}"


def _format_line(depth: int, key: str, value: object) -> str:
    return f"{_INDENT * depth + key:<{_WIDTH}}: {value}"


def _format_gpu(usage: Usage, gpu: GpuTotals) -> Iterator[str]:
    yield f"GPU {gpu.index}"
    yield _format_line(1, "Product Name", gpu.name)
    yield _format_line(1, "GPU UUID", gpu.uuid)
    yield _format_line(1, "Policy", f"{gpu.policy} ({gpu.policy_name})")
    yield _format_line(1, "Priority Ratio", f"{gpu.prio_ratio} %")
    yield _format_line(1, "Containers", f"{gpu.containers} of {gpu.max_inst}")
    yield _format_line(1, "Utilisation", _format_percent(gpu.utilisation_percent))
    yield f"{_INDENT}Memory"
    yield _format_line(2, "Total", _format_mib(gpu.total_bytes))
    yield _format_line(2, "Promised", _format_mib(gpu.promised_bytes))
    yield _format_line(2, "Used By Containers", _format_mib(gpu.used_bytes))
    foreign = gpu.foreign_bytes
    yield _format_line(2, "Used By Others", "N/A" if foreign is None else _format_mib(foreign))
    for use, its in usage.uses_on_gpu(gpu.uuid):
        yield from _format_container(use, its)
    if gpu.others is not None:
        yield from _format_others(gpu.others)


def _format_others(others: Others) -> Iterator[str]:
    share = others.measured_percent
    yield f"{_INDENT}Others"
    yield _format_line(2, "Containers", others.containers)
    yield _format_line(2, "Weight", others.weight)
    yield f"{_INDENT * 2}Memory"
    yield _format_line(3, "Cap", _format_mib(others.cap_bytes))
    yield _format_line(3, "Used", _format_mib(others.used_bytes))
    yield f"{_INDENT * 2}Compute"
    yield _format_line(3, "Utilisation", _format_percent(share))


def _format_container(use: Use, its: GpuUse) -> Iterator[str]:
    yield f"{_INDENT}{use.kind.title()} {printable(use.id)}"
    yield _format_line(2, "Name", printable(use.name) or "N/A")
    yield _format_line(2, "Command", printable(" ".join(use.command)))
    for pod in use.pods:
        yield _format_line(2, "Pod", printable(pod))
    yield _format_line(2, "Weight", use.weight or "0 (what is left, by memory)")
    yield _format_line(2, "High Priority", "Yes" if use.high_priority else "No")
    if its.mark is not None:
        yield _format_line(2, "Mark", f"{its.mark}: {marks.SENTENCES[its.mark]}")
    yield f"{_INDENT * 2}Memory"
    yield _format_line(3, "Cap", _format_mib(its.cap_bytes))
    yield _format_line(3, "Used", _format_mib(its.used_bytes) if its.is_readable else "N/A")
    yield _format_line(3, "Refused Requests", its.refused)
    yield f"{_INDENT * 2}Compute"
    if its.compute is not None:
        yield from _format_compute(its.compute)
    yield _format_line(2, "Processes", len(its.processes))
    for process in its.processes:
        yield _format_line(3, f"Process ID {process.pid or 'N/A'}", _format_mib(process.used_bytes))
        yield _format_line(4, "Process ID In Container", process.container_pid)


def _format_compute(its: Compute) -> Iterator[str]:
    yield _format_line(3, "Utilisation", _format_percent(its.measured_percent))
    yield _format_line(3, "Estimated Utilisation", _format_percent(its.estimated_percent))
    yield _format_line(3, "Limit", f"{its.limit_percent:.1f} %")
    yield _format_line(3, "Share Without Arbiter", f"{its.share_percent:.1f} %")
    yield _format_line(3, "Arbitrated", "Yes" if its.arbitrated else "No")
    yield _format_line(3, "Charged", f"{its.charged_ns / _NS:.3f} s")
    yield _format_line(3, "Estimated Beside That", f"{its.estimated_ns / _NS:.3f} s")
    yield _format_line(3, "Waits", its.waits)
    yield _format_line(3, "Throttled", f"{its.throttled_ns / _NS:.3f} s")


def _format_percent(percent: float | None) -> str:
    return "N/A" if percent is None else f"{percent:.1f} %"


def _format_mib(size: int) -> str:
    return f"{size // MIB} MiB"
