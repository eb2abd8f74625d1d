"""``python -m cgpu_k8s.guard``: the webhook that API servers ask about pods, bindings and nodes."""

from __future__ import annotations

import argparse
from typing import NoReturn

from cgpu_env.commandline import Parser, address
from cgpu_k8s.api import program

NAME = "cgpu-guard"
report = program.reporter(NAME, {"failed", "call_failed"})
# The service accounts that write decisions, and what nodes offer.
_SCHEDULER, _AGENT = "cgpu-scheduler", "cgpu-agent"


def arguments() -> Parser:
    """The command line."""
    parser = program.parser(
        NAME,
        "Tell API servers which pods, decisions, bindings and changes of nodes to let in,"
        " and send pods that ask for GPUs to cgpu's scheduler.",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        help=f"where the Secret {NAME} and the accounts {_SCHEDULER} and {_AGENT} are; by default"
        " the context's",
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


def main() -> NoReturn:
    """Serve until stopped."""
    program.run(NAME, arguments, serve)


async def serve(given: argparse.Namespace) -> None:
    """Answer API servers until cancelled."""
    # Here, so that --help does not wait for them.
    from cgpu_k8s.api.client import connected  # noqa: PLC0415
    from cgpu_k8s.api.configuration import load  # noqa: PLC0415
    from cgpu_k8s.api.port import Port  # noqa: PLC0415
    from cgpu_k8s.guard.keeping import Keeping  # noqa: PLC0415
    from cgpu_k8s.guard.server import Guard  # noqa: PLC0415
    from cgpu_k8s.guard.settings import Settings  # noqa: PLC0415

    cluster = load(given.kubeconfig, given.context)
    namespace = given.namespace or cluster.namespace
    scheduler, agent = (
        f"system:serviceaccount:{namespace}:{name}" for name in (_SCHEDULER, _AGENT)
    )
    settings = Settings((scheduler,), agent, runtime_class=given.runtime_class)
    async with connected(cluster) as client:
        keeping = Keeping(client, namespace, given.host or f"{NAME}.{namespace}.svc", report)
        await keeping.begin()
        guard = Guard(settings, client, report, keeping.words)
        port = Port(guard.application(), guard.is_servers, keeping.tls)
        try:
            report("serves", {"address": await port.open(*given.listen)})
            await keeping.run()
        finally:
            await port.close()
