"""The table of ``cgpu-smi``, and the names of containers in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from cgpu_env.errors import printable
from cgpu_env.values import MIB

if TYPE_CHECKING:
    from rich.console import OverflowMethod
    from rich.table import Table

    from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

_ID_WIDTH = 12
_NARROWEST, _ROOMY = 80, 100
_LONGEST_FOLDED = 40


def print_tables(usage: Usage) -> None:
    """Print a table for each GPU. For a lost GPU without containers, print only a note."""
    from cgpu_cli.show.screen import Screen, is_ascii

    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    console = Screen(width=width, highlight=False, markup=False)
    for gpu in (gpu for gpu in usage.gpus if gpu.lost is None or gpu.containers):
        console.print(_build_table(usage, gpu, width, more="..." if is_ascii() else "…"), "")
    for note in usage.list_remarks():
        console.print(f"note: {note}", soft_wrap=True)


def _build_table(usage: Usage, gpu: GpuTotals, width: int, *, more: str) -> Table:
    """Build a GPU's table. ``more`` ends a name that is cut; Rich's own end is at the edge."""
    from rich import box
    from rich.table import Table

    is_roomy = width >= _ROOMY
    table = Table(
        title=_format_heading(usage, gpu, width),
        title_justify="left",
        title_style="bold",
        caption=_format_caption(gpu),
        caption_justify="left",
        caption_style="",
        box=box.ASCII2,
        expand=True,
        padding=(0, 1) if is_roomy else (0, 1, 0, 0),
    )
    table.add_column("Container", no_wrap=True)
    table.add_column("Weight", justify="right", no_wrap=True)
    table.add_column("Compute", justify="right", no_wrap=True)
    table.add_column("Memory-Usage", justify="right", no_wrap=True)
    table.add_column("Procs", justify="right", no_wrap=True)
    is_cut = is_roomy and more == "…"
    overflow: OverflowMethod = "ellipsis" if is_cut else "fold"
    table.add_column("Name", ratio=1, no_wrap=is_cut, overflow=overflow)
    for use, its in usage.uses_on_gpu(gpu.uuid):
        called = printable(format_title(use))
        if not is_cut and len(called) > _LONGEST_FOLDED:
            called = f"{called[: _LONGEST_FOLDED - len(more)]}{more}"
        table.add_row(*_format_row(use, its), called)
    if gpu.others is not None:
        table.add_row(*_format_others_row(gpu.others))
    return table


def _format_heading(usage: Usage, gpu: GpuTotals, width: int) -> str:
    """Return one line, or two if the GPU's name does not fit into one."""
    name, identity = f"GPU {gpu.index}  {gpu.name}", f"{gpu.uuid}  Driver {usage.driver_version}"
    line = f"{name}  {identity}"
    return line if len(line) <= width else f"{name}\n{identity}"


def _format_caption(gpu: GpuTotals) -> str:
    share, whole = gpu.measured_percent, gpu.utilisation_percent
    busy = "" if share is None else f", {share:.1f}% of its time measured"
    busy += "" if whole is None else f", {whole:.0f}% busy"
    held = (gpu.foreign_bytes or 0) // MIB
    return (
        f"{gpu.containers} of {gpu.max_inst} containers, weight {gpu.weight} of {gpu.max_inst},"
        f" {gpu.promised_bytes // MIB}MiB of {gpu.total_bytes // MIB}MiB promised\n"
        f"policy {gpu.policy} ({gpu.policy_name}), prio_ratio {gpu.prio_ratio}{busy}"
        + (f"\n{held}MiB held outside these containers" if held else "")
    )


def _format_compute(compute: Compute | None) -> str:
    if compute is None:
        return "-"
    share, estimate = compute.measured_percent, compute.estimated_percent
    guess = "-" if estimate is None else f"~{estimate:.0f}%"
    return f"{guess if share is None else f'{share:.1f}%'} / {compute.limit_percent:.1f}%"


def format_title(use: Use) -> str:
    """Return the name of a container; for a session, its command line without folders.

    For a claim, return its name, with the pods' containers that have it.
    """
    if use.kind != "session":
        having = ", ".join(each.partition("/")[2] for each in use.pods)
        return f"{use.name} ({having})" if having else use.name or "-"
    return " ".join(word.rstrip("/").rpartition("/")[2] for word in use.command)


def format_weight(weight: int, *, is_high: bool) -> str:
    """Return a weight with a mark for high priority; ``-`` if the container shares what is left."""
    return f"{weight or '-'}{'!' if is_high else ''}"


def format_others_title(others: Others) -> str:
    """Return the name of the row for all containers that are not shown one by one."""
    return f"{others.containers} other{'s' if others.containers > 1 else ''}"


def _format_row(use: Use, its: GpuUse) -> tuple[str, ...]:
    return (
        use.id[:_ID_WIDTH],
        format_weight(use.weight, is_high=use.high_priority),
        _format_compute(its.compute),
        _format_memory(its.used_bytes, its.cap_bytes),
        str(len(its.processes)),
    )


def _format_others_row(others: Others) -> tuple[str, ...]:
    share = others.measured_percent
    return (
        format_others_title(others),
        str(others.weight),
        "-" if share is None else f"{share:.1f}%",
        _format_memory(others.used_bytes, others.cap_bytes),
        "-",
        "-",
    )


def _format_memory(used: int, most: int) -> str:
    return f"{used // MIB}MiB / {most // MIB}MiB"
