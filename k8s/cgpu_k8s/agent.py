"""``python -m cgpu_k8s.agent``: the agent of the node that it runs on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cgpu_env.commandline import Parser
from cgpu_k8s.apiserver import program
from cgpu_k8s.names import AGENT_LOCK
from cgpu_node.lockfile import try_lock

if TYPE_CHECKING:
    import argparse

NAME = "cgpu-agent"
report = program.make_reporter(NAME, {"failed", "not_registered", "object_not_read", "waits"})
PLUGINS = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SETTING = Path("/etc/cgpu/kubernetes.json")
_PERIOD = 2.0  # seconds between two attempts to take the lock


def build_parser() -> Parser:
    """Return the parser of the command line."""
    parser = program.build_node_parser(
        NAME, "Offer this node's GPUs to pods that share them, and follow its mode."
    )
    parser.add_argument(
        "--pass-through",
        metavar="NAMESPACE",
        action="append",
        help="its pods are like any other container; may be repeated; by default as before",
    )
    parser.add_argument(
        "--plugins",
        metavar="DIR",
        type=Path,
        default=PLUGINS,
        help=f"the kubelet's folder for device plugins; {PLUGINS} by default",
    )
    parser.add_argument(
        "--pod-resources",
        metavar="SOCKET",
        type=Path,
        default=POD_RESOURCES,
        help=f"where the kubelet says which pods have which devices; {POD_RESOURCES} by default",
    )
    parser.add_argument(
        "--engine",
        metavar="SOCKET",
        help="where the kubelet's container engine listens; by default at its usual place",
    )
    parser.add_argument(
        "--resources",
        choices=("status", "devices"),
        default="status",
        help="how a node offers memory and time: written into its status, by default; or, where"
        " nobody may write that, as a device for each unit",
    )
    parser.add_argument(
        "--setting",
        metavar="FILE",
        type=Path,
        default=SETTING,
        help=f"where the mode in force is written; {SETTING} by default",
    )
    parser.add_argument("--state-dir", metavar="DIR", help="the node's state directory")
    parser.add_argument("--driver-dir", metavar="DIR", help="directory of the driver's libraries")
    return parser


def main() -> NoReturn:
    """Run the agent until stopped."""
    program.run(NAME, build_parser, serve)


async def serve(given: argparse.Namespace) -> None:
    """Run the agent until cancelled."""
    from cgpu_k8s.apiserver.client import open_client  # noqa: PLC0415
    from cgpu_k8s.apiserver.configuration import load_cluster  # noqa: PLC0415
    from cgpu_k8s.apiserver.tasks import run_together  # noqa: PLC0415
    from cgpu_k8s.kubelet.container_runtime import ContainerRuntime  # noqa: PLC0415
    from cgpu_k8s.kubelet.device_plugin import DevicePlugin, UnitPlugins  # noqa: PLC0415
    from cgpu_k8s.kubelet.pod_resources import PodResources  # noqa: PLC0415
    from cgpu_k8s.node.agent import Agent, Place, Plugins  # noqa: PLC0415 (not for --help)
    from cgpu_k8s.node.auditor import ShareAuditor  # noqa: PLC0415
    from cgpu_k8s.node.driver import Driver  # noqa: PLC0415
    from cgpu_k8s.node.gpu_observer import GpuObserver  # noqa: PLC0415
    from cgpu_k8s.node.shares import Shares  # noqa: PLC0415
    from cgpu_node.facts.node import driver_folder  # noqa: PLC0415
    from cgpu_node.paths import open_state  # noqa: PLC0415
    from cgpu_node.settings.config import load_config  # noqa: PLC0415

    cluster, state = load_cluster(given.kubeconfig, given.context), open_state(given.state_dir)
    passing = None if given.pass_through is None else tuple(given.pass_through)
    lock = await _take_agent_lock(f"{state}/{AGENT_LOCK}")
    try:
        place = Place(given.node, given.setting, state, passing)
        shares = ShareAuditor(Shares(state), given.setting)
        driver = Driver(lambda: driver_folder(given.driver_dir, load_config()))
        try:
            async with open_client(cluster) as client:
                gpu_count = DevicePlugin(given.plugins, report)
                units = UnitPlugins(given.plugins, report) if given.resources == "devices" else None
                report("serves", {"node": given.node})
                pods = PodResources(given.pod_resources, report, state)
                plugins = Plugins(gpu_count, units, pods.find_conflict)
                gpus = GpuObserver(driver, ContainerRuntime(given.engine))
                agent = Agent(place, client, gpus, shares, plugins, report)
                await run_together(agent.run(), pods.run())
        finally:
            driver.close()
    finally:
        os.close(lock)


async def _take_agent_lock(path: str) -> int:
    """Take the lock that one agent of the node can hold, after another has released it."""
    lock = try_lock(path)
    if lock is None:
        report("waits", {"for": f"another agent of this node, which holds {path}"})
    while lock is None:
        await asyncio.sleep(_PERIOD)
        lock = try_lock(path)
    return lock


if __name__ == "__main__":
    main()
