"""``python -m cgpu_k8s.dra_driver``: the DRA driver of the node that it runs on."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from cgpu_env.commandline import Parser
from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver import program
from cgpu_k8s.apiserver.resources import NODES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Collection

    from cgpu_k8s.dra.node_programs import NodePrograms
    from cgpu_k8s.dra.prepare import ClaimPreparer

T = TypeVar("T")
NAME = "cgpu-dra-driver"
report = program.make_reporter(NAME, {"failed", "left_programs", "not_registered", "refused"})
REGISTRY, PLUGINS = Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins")
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CDI, SETTING = Path("/var/run/cdi"), Path("/etc/cgpu/kubernetes.json")
HOOK = "/usr/local/bin/cgpu-hook"
_AGAIN = 5.0  # seconds
_UNUSED_SECONDS = 60.0  # between two looks for claims of which the kubelet has lost track


def build_parser() -> Parser:
    """The command line."""
    parser = program.build_node_parser(
        NAME, "Offer this node's GPUs to claims, and prepare claims for their pods."
    )
    parser.add_argument(
        "--policy",
        choices=("weighted", "fixed"),
        default="weighted",
        help="whether claims get at least what they claim of a GPU's time, by default, or exactly",
    )
    for option, path, what in (
        ("--registry", REGISTRY, "the kubelet's folder in which drivers register"),
        ("--plugins", PLUGINS, "the kubelet's folder of drivers"),
        ("--cdi", CDI, "the engine's folder of CDI files that do not outlive a boot"),
    ):
        parser.add_argument(
            option, metavar="DIR", type=Path, default=path, help=f"{what}; {path} by default"
        )
    parser.add_argument(
        "--pod-resources",
        metavar="SOCKET",
        type=Path,
        default=POD_RESOURCES,
        help=f"where the kubelet says which devices there are; {POD_RESOURCES} by default",
    )
    parser.add_argument(
        "--setting",
        metavar="FILE",
        type=Path,
        default=SETTING,
        help=f"where the mode of a node is whose pods follow decisions; {SETTING} by default",
    )
    hook = parser.add_mutually_exclusive_group()
    hook.add_argument(
        "--hook",
        metavar="FILE",
        default=HOOK,
        help=f"cgpu-hook, where the engine finds it; {HOOK} by default",
    )
    hook.add_argument(
        "--programs",
        metavar="DIR",
        help="the node's folder in which to install what claims need, with cgpu-hook; it is removed"
        " when the driver ends and no claim is held",
    )
    parser.add_argument(
        "--node-process",
        metavar="PID",
        type=int,
        default=1,
        help="a process of the node, by whose root and mounts the folder is reached; 1 by default",
    )
    parser.add_argument(
        "--node-driver-dir",
        metavar="DIR",
        help="directory of the driver's libraries where the node has it; by default it is searched",
    )
    parser.add_argument(
        "--engine",
        metavar="SOCKET",
        help="where the kubelet's container engine listens; by default at its usual place",
    )
    parser.add_argument(
        "--nvidia-names",
        action="store_true",
        help="also offer GPUs by the names of NVIDIA's driver, which manifests for it select by",
    )
    parser.add_argument("--state-dir", metavar="DIR", help="the node's state directory")
    parser.add_argument(
        "--driver-dir",
        metavar="DIR",
        help="directory of the driver's libraries, where the node has it elsewhere than we",
    )
    return parser


def main() -> NoReturn:
    """Work until stopped."""
    program.run(NAME, build_parser, serve)


async def serve(given: argparse.Namespace) -> None:
    """Publish and prepare until cancelled."""
    from cgpu_k8s.apiserver.client import open_client  # noqa: PLC0415
    from cgpu_k8s.apiserver.configuration import load_cluster  # noqa: PLC0415
    from cgpu_k8s.apiserver.tasks import run_together  # noqa: PLC0415
    from cgpu_k8s.dra.barrier import Barrier  # noqa: PLC0415
    from cgpu_k8s.dra.cdi import HookPlace  # noqa: PLC0415
    from cgpu_k8s.dra.claims import POLICIES  # noqa: PLC0415
    from cgpu_k8s.dra.gpus import GpuFacts  # noqa: PLC0415
    from cgpu_k8s.dra.prepare import ClaimPlace, ClaimPreparer  # noqa: PLC0415
    from cgpu_k8s.dra.publisher import SlicePublisher  # noqa: PLC0415
    from cgpu_k8s.kubelet import cdi_support  # noqa: PLC0415
    from cgpu_k8s.kubelet.container_runtime import (  # noqa: PLC0415
        ContainerRuntime,
        find_nvidias_hook,
    )
    from cgpu_k8s.kubelet.dra_plugin import DraPlugin  # noqa: PLC0415
    from cgpu_k8s.kubelet.pod_resources import PodResources  # noqa: PLC0415
    from cgpu_k8s.kubelet.registration import DriverSockets, Registration  # noqa: PLC0415
    from cgpu_k8s.names import DRIVER  # noqa: PLC0415
    from cgpu_k8s.node.driver import Driver  # noqa: PLC0415 (not for --help)
    from cgpu_node.facts.node import driver_folder  # noqa: PLC0415
    from cgpu_node.paths import open_state  # noqa: PLC0415
    from cgpu_node.settings.config import load_config  # noqa: PLC0415

    def find_folder() -> str:
        return driver_folder(given.driver_dir, load_config())

    cluster, state = load_cluster(given.kubeconfig, given.context), open_state(given.state_dir)
    programs = await asyncio.to_thread(_make_programs, given, state)
    hook = HookPlace(programs.hook if programs else given.hook, state, given.node_driver_dir)
    driver = Driver(find_folder)
    try:
        async with open_client(cluster) as client:
            place = ClaimPlace(
                given.node, given.cdi, hook, given.driver_dir, POLICIES[given.policy]
            )
            item = await _insist(lambda: client.get(NODES.path(given.node)))
            engine = ContainerRuntime(
                given.engine,
                lambda name, config, root: (
                    find_nvidias_hook(name, config, root)
                    or cdi_support.find_problem(name, config, str(given.cdi))
                ),
                cdi_support.UNKNOWN,
            )
            plugins = PodResources(given.pod_resources, report, None)
            barrier = Barrier(given.setting, lambda: engine.find_problem(item), programs, plugins)

            async def find_conflict(uuids: Collection[str]) -> str:
                return plugins.find_conflict(uuids) or await publisher.find_conflict(uuids)

            facts = GpuFacts(driver, barrier.find, find_conflict, find_folder)
            preparer = ClaimPreparer(place, client, facts)
            sockets = DriverSockets(given.registry, given.plugins, DRIVER)
            registration = Registration(sockets, DraPlugin(preparer, report), report)
            publisher = SlicePublisher(
                client, given.node, facts.observe, report, nvidia_names=given.nvidia_names
            )
            report("serves", {"node": given.node})
            try:
                await run_together(
                    plugins.run(), registration.run(), publisher.run(), recover(preparer)
                )
            finally:
                await preparer.finish()  # or it would be held on a node that is left
    finally:
        driver.close()
        if programs:
            _leave_node(programs, state)


def _make_programs(given: argparse.Namespace, state: str) -> NodePrograms | None:
    """Return what is to be installed on the node; None: it has the hook."""
    from cgpu_k8s.dra.node_programs import NodePlace, NodePrograms  # noqa: PLC0415
    from cgpu_k8s.dra.programs import collect_programs  # noqa: PLC0415

    if given.programs is None:
        return None
    place = NodePlace(
        given.programs.rstrip("/"), given.node_process, given.cdi, state, given.node_driver_dir
    )
    return NodePrograms(place, collect_programs())


def _leave_node(programs: NodePrograms, state: str) -> None:
    """Remove all from the node, if no claim needs it.

    Nobody knows here whether another driver follows; if one does, it installs anew.
    """
    from cgpu_node.shares.registry import Registry  # noqa: PLC0415

    try:
        kept = programs.remove(Registry(state))
    except (CgpuError, OSError) as error:
        kept = str(error)
    if kept:
        report("left_programs", {"because": kept})
    else:
        report("removed_programs", {})


async def recover(preparer: ClaimPreparer) -> None:
    """Give back what claims had that went while no driver ran, or that the kubelet forgot."""
    with contextlib.suppress(CgpuError, OSError):  # the first claim's refusal says what is wrong
        await preparer.warm()
    act = preparer.recover
    while True:
        gone = await _insist(act)
        if gone:
            report("gave_back", {"claims": ",".join(gone)})
        await asyncio.sleep(_UNUSED_SECONDS)
        act = preparer.give_back_unused


async def _insist(act: Callable[[], Awaitable[T]]) -> T:
    """Do it again and again until it succeeds; report an error when it is another one."""
    failure = ""
    while True:
        try:
            return await act()
        except (CgpuError, OSError) as error:
            if str(error) != failure:
                failure = str(error)
                report("failed", {"error": failure})
        await asyncio.sleep(_AGAIN)


if __name__ == "__main__":
    main()
