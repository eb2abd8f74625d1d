"""``cgpu-smi``: the containers and sessions on each GPU: what they use and may use of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from cgpu_cli.look import look
from cgpu_cli.query import lines
from cgpu_env import CgpuError
from cgpu_env.errors import shown
from cgpu_hook.paths import DRIVER_VARIABLE, STATE_VARIABLE, named

if TYPE_CHECKING:
    from rich.console import OverflowMethod
    from rich.table import Table

    from cgpu_hook.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

_MIB = 1 << 20
_ID_WIDTH = 12
_NARROWEST, _ROOMY = 80, 100
_LONGEST_FOLDED = 40
_SHORTEST, _LONGEST = 0.1, 86400  # seconds
_EPILOG = """\
exit status: 0 shown, also where --loop was interrupted; 2 the state directory or the driver cannot
be read, or a wrong option.

Compute is measured share / limit in percent of the GPU's time, over the last second. A share is not
measured (-) while a container has the GPU to itself, under policy 5, and where no cgpud runs. A
limit by weight is a part of what high-priority containers (!) leave, which have prio_ratio.

-q and --json show the processes' ids: on the host, 0 or N/A where they are not found there, and in
their containers.

Root sees all containers and sessions. Where root's cgpud serves the node, a user sees their own
sessions, the totals of each GPU, and all others together on one line. With --state-dir, and where
root's cgpud does not run, a user sees the sessions of an account of their own.
"""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="cgpu-smi",
        description="Show the containers and sessions on each GPU: what they use and may use.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs; sizes in bytes")
    form.add_argument("-q", "--query", action="store_true", help="everything, a line each")
    parser.add_argument(
        "-l",
        "--loop",
        metavar="SECONDS",
        type=seconds,
        help="show it again and again until interrupted; --json: one line each time",
    )
    state, driver = named(STATE_VARIABLE), named(DRIVER_VARIABLE)
    where = "where the driver's libraries are"
    parser.add_argument("--state-dir", metavar="DIR", default=state, help="where state is kept")
    parser.add_argument("--driver-dir", metavar="DIR", default=driver, help=where)
    return parser


def main() -> NoReturn:
    """Show the table, or what else is asked for, and exit."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends us quietly, as any command
    given = arguments().parse_args()
    try:
        _look(given)
        while given.loop is not None:
            time.sleep(given.loop)
            _look(given)
    except KeyboardInterrupt:
        sys.exit(0)
    except CgpuError as error:
        print(f"cgpu-smi: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


def seconds(word: str) -> float:
    """How long to wait between two looks, from a command line.

    Raises:
        ArgumentTypeError: it is no such time.
    """
    with contextlib.suppress(ValueError):
        value = float(word)
        if _SHORTEST <= value <= _LONGEST:
            return value
    allowed = f"expected a number of seconds from {_SHORTEST} to {_LONGEST}"
    raise argparse.ArgumentTypeError(f"{shown(word)!r}: {allowed}")


def _look(given: argparse.Namespace) -> None:
    usage = look(given.state_dir, given.driver_dir)
    if given.json:
        print(json.dumps(usage.as_json(), indent=2 if given.loop is None else None), flush=True)
    elif given.query:
        print("\n".join(lines(usage)), flush=True)
    else:
        if given.loop is not None:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        show(usage)


def show(usage: Usage) -> None:
    """Print one table for each GPU."""
    from rich.console import Console

    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    console = Console(width=width, highlight=False, markup=False)
    for gpu in usage.gpus:
        console.print(_table(usage, gpu, is_roomy=width >= _ROOMY), "")
    for note in usage.remarks():
        console.print(f"note: {note}", soft_wrap=True)


def _table(usage: Usage, gpu: GpuTotals, *, is_roomy: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}  Driver {usage.driver_version}",
        title_justify="left",
        title_style="bold",
        caption=_promised(gpu),
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
    overflow: OverflowMethod = "ellipsis" if is_roomy else "fold"
    table.add_column("Name", ratio=1, no_wrap=is_roomy, overflow=overflow)
    for use, its in usage.on(gpu.uuid):
        called = shown(title(use))
        folded = called if len(called) <= _LONGEST_FOLDED else f"{called[: _LONGEST_FOLDED - 1]}…"
        table.add_row(*_row(use, its), called if is_roomy else folded)
    if gpu.others is not None:
        table.add_row(*_others_row(gpu.others))
    return table


def _promised(gpu: GpuTotals) -> str:
    share = gpu.measured_percent
    busy = "" if share is None else f", {share:.1f}% of its time measured"
    return (
        f"{gpu.containers} of {gpu.max_inst} containers, weight {gpu.weight} of {gpu.max_inst},"
        f" {gpu.promised_bytes // _MIB}MiB of {gpu.memory_bytes // _MIB}MiB promised\n"
        f"policy {gpu.policy} ({gpu.policy_name}), prio_ratio {gpu.prio_ratio}{busy}"
    )


def _percent(compute: Compute | None) -> str:
    if compute is None:
        return "-"
    share = compute.measured_percent
    return f"{'-' if share is None else f'{share:.1f}%'} / {compute.limit_percent:.1f}%"


def title(use: Use) -> str:
    """What people call it; a session goes by its command line, without folders."""
    if use.kind == "container":
        return use.name or "-"
    return " ".join(word.rstrip("/").rpartition("/")[2] for word in use.command)


def others_title(others: Others) -> str:
    """The name of the entry for all that the user may not see one by one."""
    return f"{others.containers} other{'s' if others.containers > 1 else ''}"


def _row(use: Use, its: GpuUse) -> tuple[str, ...]:
    return (
        use.id[:_ID_WIDTH],
        f"{use.weight}{'!' if use.high_priority else ''}",
        _percent(its.compute),
        _memory(its.used_bytes, its.memory_bytes),
        str(len(its.processes)),
    )


def _others_row(others: Others) -> tuple[str, ...]:
    share = others.measured_percent
    return (
        others_title(others),
        str(others.weight),
        "-" if share is None else f"{share:.1f}%",
        _memory(others.used_bytes, others.memory_bytes),
        "-",
        "-",
    )


def _memory(used: int, most: int) -> str:
    return f"{used // _MIB}MiB / {most // _MIB}MiB"


if __name__ == "__main__":
    main()
