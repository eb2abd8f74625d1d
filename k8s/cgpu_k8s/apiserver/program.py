"""The command line, log and shutdown of programs that follow the API server."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program
from cgpu_env.commandline import Parser
from cgpu_env.logline import format_line
from cgpu_k8s.apiserver import extra
from cgpu_k8s.apiserver.tasks import run_until_stopped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Coroutine

    Report = Callable[[str, dict[str, object]], None]
    Serve = Callable[[argparse.Namespace], Coroutine[None, None, None]]


def build_base_parser(name: str, description: str) -> Parser:
    """Return a parser with the options that all programs have."""
    found = Parser(prog=name, description=description)
    found.add_version(name)
    found.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server; by default the pod's service account, else KUBECONFIG",
    )
    found.add_argument("--context", metavar="NAME", help="the context of the kubeconfig")
    return found


def build_node_parser(name: str, description: str) -> Parser:
    """Return the options of programs that work for the node that they run on."""
    found = build_base_parser(name, description)
    found.add_argument(
        "--node",
        metavar="NAME",
        default=os.environ.get("NODE_NAME") or socket.gethostname(),
        help="this node; by default NODE_NAME, else the host's name",
    )
    return found


def make_reporter(name: str, warnings: Collection[str]) -> Report:
    """Return the function that logs an event with its fields.

    Args:
        name: the program's name.
        warnings: the events to log as warnings.
    """
    log = logging.getLogger(name)

    def report_event(event: str, fields: dict[str, object]) -> None:
        log.log(
            logging.WARNING if event in warnings else logging.INFO, "%s", format_line(event, fields)
        )

    return report_event


def run(name: str, arguments: Callable[[], Parser], serve: Serve) -> NoReturn:
    """Read the command line, and serve until SIGTERM or SIGINT.

    Args:
        name: the program's name.
        arguments: returns the parser of its command line.
        serve: does the work. It contains the slow imports, so that ``--help`` does not wait.
    """

    def parse_and_serve() -> int:
        given = arguments().parse_args()
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger(name).setLevel(logging.INFO)  # libraries keep WARNING
        with extra.report_missing():
            asyncio.run(run_until_stopped(serve(given)))
        return 0

    program.run(name, parse_and_serve)
