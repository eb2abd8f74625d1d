"""A node whose GPUs are claimed, on which neither Python nor cgpu is installed or configured."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lab.cluster.dra_node import ENABLED, DraNode
from lab.kubernetes import chart
from lab.machine.node import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.control_plane import ControlPlane
    from lab.machine.installed import Installed

PROGRAMS = "/opt/cgpu-dra"  # by the chart
# Becomes a program in whose mounts the folders and files of $1 are empty. It sees what is mounted
# outside later, and outside nobody sees what is mounted here, but below /run.
_HIDING = """
for path in $1; do
    mount --make-slave "$(stat -c %m "$path")"
done
for path in $1; do
    if [ -d "$path" ]; then mount -t tmpfs tmpfs "$path"; else mount --bind /dev/null "$path"; fi
done
shift
exec "$@"
"""
_PYTHONS = """
for path in "$@" /usr/lib/python3* /usr/local/lib/python3* /usr/bin/python3* /usr/local/bin/python3*
do
    if [ -e "$path" ] && ! [ -L "$path" ]; then echo "$path"; fi
done
"""
# What a machine's own programs change all the time, and what mounts of pods are.
_LIVELY = ("/run/cri", "/run/containerd", "/run/runc")
_LISTED = ("/etc", "/opt", "/run", "/usr/bin", "/usr/local/bin", "/var/lib/kubelet")


class BareNode(DraNode):
    """The node. What runs on it runs in the engine's mounts; the driver is in the image's."""

    def __init__(self, installed: Installed, plane: ControlPlane) -> None:
        super().__init__(installed, plane)
        self.packages: Path | None = None  # of the driver; None: those of the source tree
        self.run("rm", "-r", "/etc/cgpu")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/opt")
        self.run("mount", "--make-rshared", "/")  # as on a machine
        hidden = self.run("sh", "-c", _PYTHONS, "sh", ROOT, sys.base_prefix).split()
        unshared = ("unshare", "--mount", "--propagation=unchanged")
        self._engine = (*unshared, "sh", "-ec", _HIDING, "sh", " ".join(hidden), *self._engine)

    def run_there(self, *words: str) -> str:
        """What a program prints in the mounts of the node itself."""
        return self.run("nsenter", f"--mount=/proc/{self._engine_process()}/ns/mnt", *words)

    def _engine_process(self) -> str:
        return (self.installed.base / "containerd.pid").read_text().strip()

    def _name_programs(self) -> list[str]:
        """As the chart's pod has them. Only the image's own folder of the driver is another."""
        folder = self.installed.node.driver
        objects = self.plane.chart(ENABLED, f"--set=agent.driverDir={folder}")
        pod = chart.one(objects, "DaemonSet", "cgpu-dra-driver")["spec"]["template"]["spec"]
        [container] = pod["containers"]
        words = [each for each in container["args"] if "--driver-dir=/driver" not in each]
        return [*words, f"--driver-dir={folder}", f"--node-process={self._engine_process()}"]

    def _python(self) -> list[str]:
        path = os.pathsep.join(filter(None, [str(self.packages or ""), *sys.path]))
        # What it mounts or unmounts itself, the node does not see.
        unshared = ["unshare", "--mount", "--propagation=slave"]
        return [*unshared, "env", f"PYTHONPATH={path}", sys.executable]

    def versions(self) -> list[str]:
        """The names of the versions of programs on the node."""
        return self.run_there("sh", "-c", f"ls {PROGRAMS} 2>/dev/null || true").split()

    def list_files(self) -> list[str]:
        """Every file and mount of the node that a driver could leave there, and their kinds."""
        prune = [word for each in _LIVELY for word in ("-path", each, "-prune", "-o")]
        kubelet = self.installed.base / "kubelet"
        folders = [*_LISTED, *(f"{kubelet}/{each}" for each in ("plugins", "plugins_registry"))]
        found = self.run_there("find", *folders, *prune, "-printf", "%p %y %l\\n").splitlines()
        mounts = self.run_there("cut", "-d ", "-f5,9-", "/proc/self/mountinfo").splitlines()
        return sorted([*found, *(each for each in mounts if "cgpu" in each.partition(" ")[0])])

    def list_programs(self) -> list[str]:
        """The executables of the processes that run from the folder of programs."""
        shown = self.run("sh", "-c", "readlink /proc/[0-9]*/exe || true").splitlines()
        return [each for each in shown if each.startswith(PROGRAMS)]
