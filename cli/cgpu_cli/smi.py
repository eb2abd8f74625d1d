"""``cgpu-smi``: shows what the containers and sessions on each GPU use, and may use, of it."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import CgpuError, program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_cli.show.fields import Form
    from cgpu_env.commandline import Parser
    from cgpu_node.view.view import GpuTotals

_LOOP_SECONDS = 5.0  # as nvidia-smi has it
_EPILOG = """\
exit status: 0 shown, also after an interrupted --loop; 2 the state directory or the driver cannot
be read, or an option is wrong; 130 interrupted.

Compute is measured share / limit in percent of the GPU's time, over the last second. A share is not
measured while a container has the GPU to itself, under policy 5, and while no cgpud runs. ~ is then
the utilisation that the driver reports, of the GPU if it has one container, otherwise of the
container's processes; - means not known. Under policy 4 each share is an estimate, marked with ~. A
limit by weight is a part of what high-priority containers (!) leave; their limit is prio_ratio. The
weight - shares what other weights leave.

-q and --json show the processes' ids: on the host (0 or N/A if they are not found there) and in
their containers.

Fields are named as in nvidia-smi if it has them; [N/A] means not known. memory.used of a GPU is
what containers hold, and memory.free the rest, promised or not. memory.foreign is the part of the
rest that processes outside these containers hold.
"""
_WHO = """
Root sees all containers and sessions. If root's cgpud serves the node, a user sees their own
sessions, the totals of each GPU, and all others together on one line. With --state-dir, and if
root's cgpud does not answer, a user sees the sessions of an account of their own; a note says what
is not shown. A query of fields prints the note on standard error.
"""


def build_parser() -> Parser:
    """Return the parser of the command line."""
    from cgpu_cli.show import fields
    from cgpu_cli.show.words import add_gpus, parse_seconds
    from cgpu_env.commandline import Parser
    from cgpu_node.paths import DRIVER_VARIABLE, STATE_VARIABLE, read_variable

    parser = Parser(
        prog="cgpu-smi",
        description="Show the containers and sessions on each GPU: what they use and may use.",
        epilog=_EPILOG + _list_fields() + _WHO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version("cgpu-smi")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="for programs; sizes in bytes")
    what.add_argument("-q", "--query", action="store_true", help="everything, one line each")
    what.add_argument("-L", "--list-gpus", action="store_true", help="names and UUIDs of the GPUs")
    for name, query in fields.QUERIES.items():
        what.add_argument(
            f"--query-{name}",
            metavar="FIELD,...",
            dest="asked",
            type=fields.make_parser(name),
            help=f"these fields, {query.what}",
        )
    parser.add_argument(
        "--format",
        metavar="csv[,noheader][,nounits]",
        type=fields.parse_form,
        help="how to print the fields of a query",
    )
    add_gpus(parser)
    parser.add_argument(
        "-l",
        "--loop",
        metavar="SECONDS",
        type=parse_seconds,
        nargs="?",
        const=_LOOP_SECONDS,
        help="repeat until interrupted, every 5 s by default; --json: one line each time",
    )
    state, driver = read_variable(STATE_VARIABLE), read_variable(DRIVER_VARIABLE)
    where = "where the driver's libraries are"
    parser.add_argument("--state-dir", metavar="DIR", default=state, help="where state is kept")
    parser.add_argument("--driver-dir", metavar="DIR", default=driver, help=where)
    return parser


def main() -> NoReturn:
    """Show the table, or the output that the options select, and exit."""
    program.run("cgpu-smi", _run_command)


def _run_command() -> int:
    given = build_parser().parse_args()
    form = _choose_form(given)
    if given.loop is None:
        _show_usage(given, form)
        return 0
    try:
        while True:
            _show_usage(given, form)
            form = form._replace(has_header=False)
            time.sleep(given.loop)
    except KeyboardInterrupt:
        return 0


def _choose_form(given: argparse.Namespace) -> Form:
    """Return the form of fields. Refuse --format without fields, as nvidia-smi does."""
    from cgpu_cli.show.fields import QUERIES, Form

    if given.format is not None and given.asked is None:
        options = [f"--query-{name}" for name in QUERIES]
        raise CgpuError(
            f"--format: expected only with {', '.join(options[:-1])} or {options[-1]}",
            hint="such as: cgpu-smi --query-gpu=index,name,memory.free --format=csv",
        )
    return given.format or Form()


def _show_usage(given: argparse.Namespace, form: Form) -> None:
    from cgpu_cli.running.guest import UNSERVED
    from cgpu_cli.show.look import query_usage, query_usage_once
    from cgpu_cli.show.words import filter_usage

    see = query_usage if given.list_gpus else query_usage_once
    usage = filter_usage(see(given.state_dir, given.driver_dir), given.id)
    if given.json:
        from cgpu_cli.answer import print_json

        print_json(usage.as_json(), is_one_line=given.loop is not None)
    elif given.asked is not None:
        if UNSERVED in usage.notes:  # the fields have no room for it
            print(f"cgpu-smi: note: {UNSERVED}", file=sys.stderr)
        _print_lines(given.asked.format_lines(usage, form))
    elif given.list_gpus:
        _print_lines(map(_format_gpu, usage.gpus))
    elif given.query:
        from cgpu_cli.show.query import format_usage

        _print_lines(format_usage(usage))
    else:
        from cgpu_cli.show.table import print_tables

        if given.loop is not None:
            print(time.strftime("%a %b %d %H:%M:%S %Y"))
        print_tables(usage)


def _format_gpu(gpu: GpuTotals) -> str:
    if gpu.lost is not None:
        return f"GPU {gpu.index}: (UUID: {gpu.uuid or 'not known'}) does not answer: {gpu.lost}"
    return f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})"


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _list_fields() -> str:
    """Return the fields of each query, as text."""
    from cgpu_cli.show.fields import QUERIES

    found = (f"--query-{name}: {', '.join(query.known)}" for name, query in QUERIES.items())
    return "".join(f"{textwrap.fill(line, 100, subsequent_indent='  ')}\n" for line in found)


if __name__ == "__main__":
    main()
