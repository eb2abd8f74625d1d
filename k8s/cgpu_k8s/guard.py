"""``python -m cgpu_k8s.guard``: the webhook that API servers ask about pods, bindings and nodes."""

from __future__ import annotations

import argparse
from typing import NoReturn

from cgpu_env.commandline import Parser, parse_address
from cgpu_k8s.apiserver import program

NAME = "cgpu-guard"
report = program.make_reporter(NAME, {"failed", "call_failed"})
# The service accounts of the scheduler, which writes decisions, and of the agents.
_SCHEDULER, _AGENT = "cgpu-scheduler", "cgpu-agent"


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = program.build_base_parser(
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
        type=parse_address,
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
    parser.add_argument(
        "--convert",
        action="store_true",
        help="let the cluster's own scheduler place pods that ask for GPUs, by claims for the same;"
        " needs more rights",
    )
    return parser


def main() -> NoReturn:
    """Serve until stopped."""
    program.run(NAME, build_parser, serve)


async def serve(given: argparse.Namespace) -> None:
    """Answer API servers until cancelled."""
    # These imports are slow, and --help must not wait for them.
    from cgpu_k8s.admission.cert_rotation import CertRotator  # noqa: PLC0415
    from cgpu_k8s.admission.server import Guard  # noqa: PLC0415
    from cgpu_k8s.admission.settings import Settings  # noqa: PLC0415
    from cgpu_k8s.apiserver.client import open_client  # noqa: PLC0415
    from cgpu_k8s.apiserver.configuration import load_cluster  # noqa: PLC0415
    from cgpu_k8s.apiserver.port import Port  # noqa: PLC0415
    from cgpu_k8s.apiserver.tasks import run_together  # noqa: PLC0415
    from cgpu_k8s.dra.conversion import convert_pod  # noqa: PLC0415
    from cgpu_k8s.dra.template_keeper import TemplateKeeper  # noqa: PLC0415

    cluster = load_cluster(given.kubeconfig, given.context)
    namespace = given.namespace or cluster.namespace
    scheduler, agent = (
        f"system:serviceaccount:{namespace}:{name}" for name in (_SCHEDULER, _AGENT)
    )
    settings = Settings((scheduler,), agent, runtime_class=given.runtime_class)
    async with open_client(cluster) as client:
        rotator = CertRotator(client, namespace, given.host or f"{NAME}.{namespace}.svc", report)
        await rotator.wait_for_keys()
        convert = convert_pod if given.convert else None
        guard = Guard(settings, client, report, rotator.compute_words, convert)
        port = Port(guard.make_application(), guard.is_from_api_server, rotator.tls)
        try:
            report("serves", {"address": await port.open(*given.listen)})
            keeping = [TemplateKeeper(client, report).run()] if given.convert else []
            await run_together(rotator.run(), *keeping)
        finally:
            await port.close()


if __name__ == "__main__":
    main()
