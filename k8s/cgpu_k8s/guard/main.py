"""``python -m cgpu_k8s.guard``: the webhook that API servers ask about pods and bindings."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING, NoReturn

from cgpu_env import program
from cgpu_env.commandline import Parser, address
from cgpu_env.logline import line

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "cgpu-guard"
LOG = logging.getLogger(NAME)
WARNINGS = {"failed", "call_failed"}
_SCHEDULER = "cgpu-scheduler"  # the service account that writes decisions


def arguments() -> Parser:
    """The command line."""
    parser = Parser(
        prog=NAME,
        description="Tell API servers which pods, decisions and bindings to let in,"
        " and send pods that ask for GPUs to cgpu's scheduler.",
    )
    parser.add_version(NAME)
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server; by default the pod's service account, else KUBECONFIG",
    )
    parser.add_argument("--context", metavar="NAME", help="the context of the kubeconfig")
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help=f"where the Secret {NAME} and the account {_SCHEDULER} are; by default the context's",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        type=address,
        default=(None, 8443),
        help="where API servers call; port 8443 of every address by default",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help=f"the name or address that they call; by default {NAME}.NAMESPACE.svc",
    )
    parser.add_argument(
        "--runtime-class",
        metavar="NAME",
        default="",
        help="what pods that ask for GPUs get where they name no runtimeClassName; none by default",
    )
    return parser


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
    """Answer API servers until SIGTERM or SIGINT."""
    from cgpu_k8s.api.tasks import until_stopped  # noqa: PLC0415 (--help does not wait for it)

    await until_stopped(_guard(given))


async def _guard(given: argparse.Namespace) -> None:
    from aiohttp import web  # noqa: PLC0415 (--help does not wait for it)

    from cgpu_k8s.api.client import connected  # noqa: PLC0415
    from cgpu_k8s.api.configuration import load  # noqa: PLC0415
    from cgpu_k8s.guard.keeping import Keeping  # noqa: PLC0415
    from cgpu_k8s.guard.server import Guard  # noqa: PLC0415
    from cgpu_k8s.guard.settings import Settings  # noqa: PLC0415

    cluster = load(given.kubeconfig, given.context)
    namespace = given.namespace or cluster.namespace
    account = f"system:serviceaccount:{namespace}:{_SCHEDULER}"
    settings = Settings((account,), runtime_class=given.runtime_class)
    async with connected(cluster) as client:
        keeping = Keeping(client, namespace, given.host or f"{NAME}.{namespace}.svc", report)
        await keeping.begin()
        guard = Guard(settings, client, report)
        runner = web.AppRunner(guard.application(), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, *given.listen, ssl_context=keeping.tls).start()
            report("serves", {"address": "{}:{}".format(*runner.addresses[0][:2])})
            await keeping.run()
        finally:
            await runner.cleanup()
