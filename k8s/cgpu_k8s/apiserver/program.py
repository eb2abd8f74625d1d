"""A program that follows the API server until it is stopped: its command line, log and end."""

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
    """Return the options that all programs have."""
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
    """Return the function that writes a line of the log: an event and its fields.

    Args:
        name: of the program.
        warnings: the events that are warnings.
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
        name: of the program.
        arguments: its command line.
        serve: the rest of the program; it imports what ``--help`` does not wait for.
    """

    def parse_and_serve() -> int:
        given = arguments().parse_args()
        logging.basicConfig(stream=sys.stderr, format="%(message)s")
        logging.getLogger(name).setLevel(logging.INFO)  # not of libraries
        with extra.report_missing():
            asyncio.run(run_until_stopped(serve(given)))
        return 0

    program.run(name, parse_and_serve)
