"""``cgpud``: the command line of the node's server."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_env.commandline import Parser


def build_parser() -> Parser:
    """Return the parser of the command line."""
    from cgpu_env.commandline import Parser
    from cgpu_node.paths import DRIVER_VARIABLE, STATE_VARIABLE, read_variable

    parser = Parser(
        prog="cgpud",
        description="Serve the containers of a node: divide the time of its GPUs among them.",
        epilog="The first command or container that needs it starts it; a service runs from boot.",
    )
    parser.add_version("cgpud")
    state, driver = read_variable(STATE_VARIABLE), read_variable(DRIVER_VARIABLE)
    parser.add_argument("--state-dir", metavar="DIR", default=state, help="where state is kept")
    parser.add_argument(
        "--driver-dir", metavar="DIR", default=driver, help="where the driver's libraries are"
    )
    parser.add_argument(
        "--idle-exit",
        metavar="SECONDS",
        type=float,
        help="end when there has been no container for that long",
    )
    parser.add_argument(
        "--tree",
        metavar="DIR",
        help="show the control tree at DIR; by default beside the default state directory",
    )
    parser.add_argument(
        "--mount-tree",
        action="store_true",
        help="mount the tree of a server that runs as a service, and end",
    )
    parser.add_argument(
        "--unmount-tree", action="store_true", help="unmount a tree that a server has left, and end"
    )
    parser.add_argument("--log", metavar="FILE", help="log to FILE instead of stderr")
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT",
        help="serve Prometheus there, for example 127.0.0.1:9477",
    )
    parser.add_argument("--replace", action="store_true", help="replace a server that already runs")
    return parser


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Serve until stopped, and exit. The status is 0 also if another server serves already."""
    gc.enable()
    program.run("cgpud", lambda: _serve_by_options(words))


def _serve_by_options(words: Sequence[str] | None) -> int:
    given = build_parser().parse_args(words)
    from cgpu_server.serve import run_server

    run_server(given, words)
    return 0


if __name__ == "__main__":
    main()
