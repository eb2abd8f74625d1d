"""``python -m cgpu_k8s.extender``: the extender beside one kube-scheduler."""

from __future__ import annotations

import argparse
import socket
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, NoReturn

from cgpu_env.commandline import Parser, parse_address
from cgpu_k8s.apiserver import program

if TYPE_CHECKING:
    from aiohttp import web

NAME = "cgpu-extender"
_SCRAPERS = 64  # connections for metrics at a time; an answer has 1.8 MB for 8,000 GPUs
report = program.make_reporter(
    NAME, {"watch_failed", "object_not_read", "not_bound", "call_failed", "policy_not_written"}
)


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = program.build_base_parser(
        NAME, "Tell a kube-scheduler where pods that share GPUs go, and bind them."
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        type=parse_address,
        default=("127.0.0.1", 32766),
        help="where the scheduler calls; 127.0.0.1:32766 by default",
    )
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT",
        type=parse_address,
        help="where /metrics and /readyz are answered too, and nothing else; nowhere by default",
    )
    parser.add_argument(
        "--lease",
        metavar="NAMESPACE/NAME",
        type=_parse_lease,
        help="the scheduler's lease; without it the scheduler must be the only one",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        default=socket.gethostname(),
        help="the scheduler's host name, with which it holds the lease; ours by default",
    )
    parser.add_argument(
        "--pods-without-gpus",
        action="store_true",
        help="the scheduler asks about pods without GPUs, too; otherwise the status of a"
        " ResourcePolicy that selects some says that it does not lead them",
    )
    return parser


def _is_local(request: web.Request) -> bool:
    """Return whether the caller is in this pod, like the scheduler that the extender serves."""
    return ip_address(str(request.remote)).is_loopback


def _parse_lease(word: str) -> tuple[str, str]:
    namespace, _, name = word.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{word}: expected NAMESPACE/NAME")
    return namespace, name


def main() -> NoReturn:
    """Serve until stopped."""
    program.run(NAME, build_parser, serve)


async def serve(given: argparse.Namespace) -> None:
    """Follow the API server and answer the scheduler until cancelled."""
    # These imports are slow, and --help must not wait for them.
    from cgpu_k8s.apiserver.client import open_client  # noqa: PLC0415
    from cgpu_k8s.apiserver.configuration import load_cluster  # noqa: PLC0415
    from cgpu_k8s.apiserver.port import Port  # noqa: PLC0415
    from cgpu_k8s.apiserver.tasks import run_together  # noqa: PLC0415
    from cgpu_k8s.scheduler.cache import SchedulerCache  # noqa: PLC0415
    from cgpu_k8s.scheduler.informers import ClusterInformer, WatchedLease  # noqa: PLC0415
    from cgpu_k8s.scheduler.leader_lease import LeaderLease  # noqa: PLC0415
    from cgpu_k8s.scheduler.policies.policy_controller import PolicyController  # noqa: PLC0415
    from cgpu_k8s.scheduler.server import Extender  # noqa: PLC0415

    cache, leader_lease = SchedulerCache(), LeaderLease(given.host) if given.lease else None
    cache.policies.leads_all = given.pods_without_gpus
    async with open_client(load_cluster(given.kubeconfig, given.context)) as client:
        lease = WatchedLease(given.lease[0], given.lease[1], leader_lease) if leader_lease else None
        following = ClusterInformer(client, cache, lease, report)
        extender = Extender(
            cache, client, leader_lease, following.find_missing, following.get_heard_times, report
        )
        async with AsyncExitStack() as served:
            for what, port, address in (
                ("calls", Port(extender.make_application(), _is_local), given.listen),
                (
                    "metrics",
                    Port(extender.make_public_application(), most=_SCRAPERS),
                    given.metrics,
                ),
            ):
                if address:
                    served.push_async_callback(port.close)
                    report("serves", {what: await port.open(*address)})
            controller = PolicyController(client, cache.policies, extender.find_problem, report)
            await run_together(following.run(extender.binder.resolve_unconfirmed), controller.run())


if __name__ == "__main__":
    main()
