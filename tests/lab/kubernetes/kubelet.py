"""A machine with simulated GPUs as a node of a cluster: real kubelet, containerd, and cgpu's agent.

It is an enclosure: ``/run``, ``/etc`` and ``/var/lib``, with the kubelet's folder for device
plugins, whose path is a constant of the kubelet, are private. So nothing of it meets a kubelet that
the machine may have, and all of it ends with the test run, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lab.containers import images
from lab.containers.enclosure import wait_until
from lab.driver import real_driver
from lab.kubernetes.control_plane import AGENT
from lab.kubernetes.programs import free_port, tail
from lab.machine.cri import CHANGES, CONTAINERD, IMAGE, configure, save
from lab.machine.installed import Installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from subprocess import Popen

    from lab.kubernetes.control_plane import ControlPlane

NODE = "gpu-a"
V100 = "Tesla V100-SXM2-16GB:16160"
PATIENCE = 120.0  # seconds
_REMOTE_ONLY = 27  # from this minor version on a kubelet knows no other engines
_REMOTE = ("--container-runtime=remote", f"--pod-infra-container-image={IMAGE}")
_OLD: dict[str, object] = {"port": 0}
_NEW: dict[str, object] = {"failCgroupV1": False}
STATE = "/run/cgpu"
_IMAGE = "image.tar"
# Joins a cgroup in every hierarchy, of version 1 or 2, and becomes the program.
_JOIN = """
for top in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
    [ -e "$top/cgroup.procs" ] && [ "$(stat -fc %T "$top")" != tmpfs ] || continue
    mkdir -p "$top/$1/engine" 2>/dev/null || continue
    for folder in "$top/$1" "$top/$1/engine"; do
        for file in cpuset.cpus cpuset.mems; do
            if [ -e "$folder/$file" ] && ! [ -s "$folder/../cgroup.subtree_control" ]; then
                cat "$folder/../$file" >"$folder/$file"
            fi
        done
    done
    echo $$ >"$top/$1/engine/cgroup.procs"
done
echo $$ >"$2"
shift 2
exec "$@"
"""
# Runs a program, and reports how it ended.
_REPORTING = """
"$@" </dev/null
printf '\\nended with status %d\\n' $?
"""
# Makes a folder a shared mount, as a machine's root is. A kubelet does so itself where it is none,
# while it renames a socket in there: a race that it can lose, and then it ends
# (https://github.com/k3s-io/k3s/issues/4042).
_SHARE = """
mkdir -p "$1"
mountpoint -q "$1" || mount --bind "$1" "$1"
mount --make-rshared "$1"
"""
_REPORT = re.compile(r"(.*)\nended with status (\d+)\n", re.DOTALL)


class KubeletNode:
    """The node; see ``kubelet_node``. Each program may be ended and started again."""

    def __init__(
        self, installed: Installed, plane: ControlPlane, mode: str, resources: str
    ) -> None:
        self.installed, self.plane, self.name = installed, plane, NODE
        self._running: dict[str, Popen[str]] = {}
        self._socket = installed.base / "cri" / "socket"
        self._port = free_port()
        self._mode, self._resources = mode, resources
        self._token = ""  # of the agent
        self._engine: tuple[str | Path, ...] = ("containerd",)
        self._words: list[str] = []

    def run(self, *words: str | Path) -> str:
        """What a program on the node prints."""
        return self.installed.enclosure.run(*words).stdout

    def start_containerd(self) -> None:
        """Start the engine, and return when it answers."""
        self._start("containerd", *self._engine, "--log-level=warn")
        ctr, inside = [*self.ctr(), "version"], self.installed.enclosure
        self._await("containerd", lambda: inside.run(*ctr, check=False).returncode == 0)

    def load(self, image: Path) -> None:
        """Give the engine an image, for pods."""
        self.run(*self.ctr(), "images", "import", image)

    def ctr(self) -> list[str | Path]:
        """The engine's own client, for what the kubelet has."""
        return ["ctr", "--address", self._socket, "--namespace=k8s.io"]

    def executing(
        self, pod: Any, container: str, *words: str, called: str, printed: Path | None = None
    ) -> list[str | Path]:
        """The command that starts a program in a container, under a name of its own there.

        The engine writes what it prints to a file, or passes it on.
        """
        status = pod["status"]
        statuses = status["containerStatuses"] + status.get("initContainerStatuses", [])
        [about] = [each for each in statuses if each["name"] == container]
        flags = [f"--exec-id={called}"]
        if printed is not None:
            flags.append(f"--log-uri=file://{printed}")
        identity = about["containerID"].rpartition("/")[2]
        return [*self.ctr(), "task", "exec", *flags, identity, *words]

    def execute(self, pod: Any, container: str, *words: str) -> str:
        """What a program prints in a container, which is to succeed.

        The engine writes it to a file, as ``ctr`` itself may lose it:
        https://github.com/containerd/containerd/issues/5741.
        """
        called = f"seen-{uuid.uuid4()}"
        file = self.installed.base / called
        command = ("sh", "-c", _REPORTING, "sh", *words)
        self.run(*self.executing(pod, container, *command, called=called, printed=file))
        wait_until(lambda: _REPORT.fullmatch(file.read_text()), f"all that {words} prints is there")
        report = _REPORT.fullmatch(file.read_text())
        assert report is not None
        assert report[2] == "0", f"{words}: {report[1]}"
        return report[1]

    def containers(self) -> list[str]:
        """Whose GPU memory is held: the names of the containers' files in the state directory."""
        return self.run("sh", "-c", f"ls {STATE}/containers 2>/dev/null || true").split()

    def shares(self) -> list[Any]:
        """What ``cgpu get --json`` lists of the containers that share GPUs."""
        found: list[Any] = json.loads(self.installed.cgpu("get", "--json").stdout)["containers"]
        return found

    def start_kubelet(self) -> None:
        """Start the kubelet, and return when it serves."""
        path = self.installed.base / "kubelet.yaml"
        path.write_text(yaml.safe_dump(self._settings()))
        release, home = self.plane.release, self.installed.base / "kubelet"
        self.run("sh", "-ec", _SHARE, "sh", home)
        self._start(
            "kubelet",
            release.program("kubelet"),
            f"--config={path}",
            f"--root-dir={home}",
            f"--kubeconfig={self.plane.kubeconfig(f'system:node:{NODE}')}",
            f"--hostname-override={NODE}",
            "--node-ip=127.0.0.1",  # refused as an address of a node, so it has none: no look-ups
            f"--node-labels=ack.node.gpu.schedule={self._mode}",
            f"--container-runtime-endpoint=unix://{self._socket}",
            *([] if release.is_since(_REMOTE_ONLY) else _REMOTE),
        )
        address = f"http://127.0.0.1:{self._port}/healthz"
        wget = [sys.executable, "-Ic", f"import urllib.request as u; u.urlopen({address!r})"]
        inside = self.installed.enclosure
        self._await("kubelet", lambda: inside.run(*wget, check=False).returncode == 0)

    def _settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupsPerQOS": True,
            "cgroupRoot": f"/{self.installed.enclosure.cgroup}",
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "failSwapOn": False,
            **(_NEW if self.plane.release.is_since(_REMOTE_ONLY) else _OLD),
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._port,
            "enableServer": False,
            "resolvConf": "",
            "fileCheckFrequency": "1s",
            "syncFrequency": "2s",
            "nodeStatusUpdateFrequency": "2s",
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 100,
            "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "cpuManagerPolicy": "static",
            "cpuManagerReconcilePeriod": "1s",
            "reservedSystemCPUs": "0",
        }

    def start_agent(self, pod: Any = None) -> None:
        """Start the node's agent, whose account the chart has made.

        Given a pod of the chart's, it has that one's token and arguments: its containers cannot
        run on this node, which has no network for them. Only the driver is elsewhere.
        """
        if pod is not None:
            [container] = pod["spec"]["containers"]
            self._token = self.plane.token_of(pod)
            self._words = [each for each in container["args"] if "--driver-dir" not in each]
        self._token = self._token or self.plane.agents_token(NODE)
        config = self.plane.kubeconfig(AGENT, token=self._token)
        words = ["-m", "cgpu_k8s.agent", f"--node={NODE}", f"--kubeconfig={config}"]
        words += [f"--engine={self._socket}", f"--resources={self._resources}"]
        resources = f"{self.installed.base}/kubelet/pod-resources/kubelet.sock"
        words += [f"--pod-resources={resources}", *self._words]
        self._start("agent", *python(), *words)

    def start_plugin(self, uuids: Iterable[str]) -> None:
        """Publish whole GPUs; stop it as ``plugin``."""
        program = Path(__file__).parents[2] / "system" / "programs" / "whole_gpus.py"
        self._start("plugin", *python(), program, *uuids)

    def stop(self, *names: str, by: str = "KILL") -> None:
        """End these programs with a signal; what the engine's containers run goes on."""
        for name in names:
            self.run("kill", f"-{by}", (self.installed.base / f"{name}.pid").read_text().strip())
            self._running.pop(name).wait(60)

    def reboot(self) -> None:
        """Start the machine anew, and return when its kubelet serves."""
        self.installed.reboot()
        for process in self._running.values():
            process.wait(60)
        self.start_containerd()
        self.start_kubelet()
        self.start_agent()

    def wait_until(self, condition: Callable[[], object], what: str, *programs: str) -> None:
        """Wait for what these programs do; a failure shows the ends of their logs."""
        try:
            wait_until(condition, what, PATIENCE)
        except AssertionError as error:
            found = [f"{name} does not run" for name in programs if not self._runs(name)]
            found += [tail(self.installed.base / f"{name}.log") for name in programs]
            raise AssertionError("\n".join([str(error), *found])) from None

    def _runs(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def _start(self, name: str, *command: str | Path) -> None:
        base, inside = self.installed.base, self.installed.enclosure
        pid = base / f"{name}.pid"
        pid.unlink(missing_ok=True)
        join = ["sh", "-c", _JOIN, "sh", inside.cgroup, pid]
        with (base / f"{name}.log").open("a") as log:
            self._running[name] = inside.start(*join, *command, stdout=log, stderr=log)
        self._await(name, lambda: pid.exists() and pid.read_text())

    def _await(self, name: str, condition: Callable[[], object]) -> None:
        self.wait_until(condition, f"{name} answers", name)


@contextlib.contextmanager
def kubelet_node(
    plane: ControlPlane,
    root: Path,
    mode: str,
    *gpus: str,
    resources: str = "status",
    agent: bool = True,
) -> Iterator[KubeletNode]:
    """A node of the cluster in ``mode``, with an image of ``root`` and a driver's nvidia-smi.

    Its agent runs at once, or when the block starts it.
    """
    installed = Installed("kubelet", *(gpus or (V100, V100)))
    try:
        node = KubeletNode(installed, plane, mode, resources)
        configure(installed, "install", "containerd", "--default")
        assert installed.read(CONTAINERD)
        node.start_containerd()
        node.load(pod_image(installed, root))
        node.start_kubelet()
        if agent:
            node.start_agent()
        yield node
    finally:
        installed.enclosure.stop()


def python() -> list[str]:
    return ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}", sys.executable]


def pod_image(installed: Installed, root: Path) -> Path:
    """The image of pods, for ``ctr images import``; the first node makes it for all."""
    smi = real_driver.real_nvidia_smi("535")

    def made(folder: Path) -> None:
        docker = installed.docker(lambda: None)
        docker.load("debian", root)
        container = docker.docker("create", "debian", "true").stdout.strip()
        docker.docker("cp", smi, f"{container}:/usr/bin/nvidia-smi")
        folder.mkdir()
        save(docker, container, folder / _IMAGE)
        docker.stop()

    return images.cached("pod", made, [root.name, smi.stat().st_size, CHANGES]) / _IMAGE
