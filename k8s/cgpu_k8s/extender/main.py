"""``python -m cgpu_k8s.extender``: the extender beside one kube-scheduler."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program
from cgpu_env.commandline import Parser, address
from cgpu_env.logline import line

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "cgpu-extender"
LOG = logging.getLogger(NAME)
WARNINGS = {"watch_failed", "object_not_read", "not_bound", "call_failed"}


def arguments() -> Parser:
    """The command line."""
    parser = Parser(
        prog=NAME,
        description="Tell a kube-scheduler where pods that share GPUs go, and bind them.",
    )
    parser.add_version(NAME)
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server; by default the pod's service account, else KUBECONFIG",
    )
    parser.add_argument("--context", metavar="NAME", help="the context of the kubeconfig")
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        type=address,
        default=("127.0.0.1", 32766),
        help="where the scheduler calls; 127.0.0.1:32766 by default",
    )
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT",
        type=address,
        help="where /metrics and /readyz are answered too, and nothing else; nowhere by default",
    )
    parser.add_argument(
        "--lease",
        metavar="NAMESPACE/NAME",
        type=_lease,
        help="the scheduler's lease; without it the scheduler must be the only one",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        default=socket.gethostname(),
        help="the scheduler's host name, with which it holds the lease; ours by default",
    )
    return parser


def _lease(word: str) -> tuple[str, str]:
    namespace, _, name = word.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{word}: expected NAMESPACE/NAME")
    return namespace, name


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Serve until stopped."""
    program.run(NAME, lambda: _work(words))


def _work(words: Sequence[str] | None) -> int:
    given = arguments().parse_args(words)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    asyncio.run(serve(given))
    return 0


def report(event: str, fields: dict[str, object]) -> None:
    """Write a line of the log."""
    LOG.log(logging.WARNING if event in WARNINGS else logging.INFO, "%s", line(event, fields))


async def serve(given: argparse.Namespace) -> None:
    """Follow the API server and answer the scheduler until SIGTERM or SIGINT."""
    from aiohttp import web  # noqa: PLC0415 (--help does not wait for it)

    from cgpu_k8s.api.client import connected  # noqa: PLC0415
    from cgpu_k8s.api.configuration import load  # noqa: PLC0415
    from cgpu_k8s.api.tasks import until_stopped  # noqa: PLC0415
    from cgpu_k8s.books.books import Books  # noqa: PLC0415
    from cgpu_k8s.extender.fence import Fence  # noqa: PLC0415
    from cgpu_k8s.extender.following import Following, Lease  # noqa: PLC0415
    from cgpu_k8s.extender.server import Extender  # noqa: PLC0415

    books, fence = Books(), Fence(given.host) if given.lease else None
    async with connected(load(given.kubeconfig, given.context)) as client:
        lease = Lease(given.lease[0], given.lease[1], fence) if fence else None
        following = Following(client, books, lease, report)
        extender = Extender(books, client, fence, following.missing, following.heard, report)
        async with AsyncExitStack() as served:
            for what, app, address in (
                ("calls", extender.application(), given.listen),
                ("metrics", extender.public(), given.metrics),
            ):
                if address:
                    runner = web.AppRunner(app, access_log=None)
                    served.push_async_callback(runner.cleanup)
                    await runner.setup()
                    await web.TCPSite(runner, *address).start()
                    report("serves", {what: "{}:{}".format(*runner.addresses[0][:2])})
            await until_stopped(following.run(extender.binder.resolve))
