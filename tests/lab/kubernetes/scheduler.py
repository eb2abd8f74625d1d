"""The real kube-scheduler with cgpu's extender, on a real control plane: one replica or several."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ACCOUNT, ControlPlane
from lab.kubernetes.programs import free_port, kubernetes, running, tail

Json = dict[str, Any]
EXTENDER, LEASE = "cgpu-extender", "cgpu-scheduler"
SCHEDULER = "kube-scheduler"
_GROUP = "rbac.authorization.k8s.io"
_RBAC = f"{_GROUP}/v1"
_PORTS = ("healthzBindAddress", "metricsBindAddress")
_PATIENCE = 60.0


def install(plane: ControlPlane) -> None:
    """Apply the chart's manifests, and let the extender use its roles.

    Without the webhooks, as no Service works here: ``lab.worlds.guard`` has them.
    """
    objects = chart.rendered("1.20.2", plane.folder)
    _apply(plane, [each for each in objects if "Webhook" not in each["kind"]])
    grant(plane)


def grant(plane: ControlPlane) -> None:
    """Give the extender, as a user of its own, its roles alone.

    In its pod it has the account of the scheduler, which may do more.
    """
    objects: list[Json] = []
    for role in chart.rendered("1.20.2", plane.folder):
        kind = role["kind"]
        if kind not in ("Role", "ClusterRole") or role["metadata"]["name"] != EXTENDER:
            continue
        about = {"name": f"{EXTENDER}-alone"}
        if kind == "Role":
            about["namespace"] = role["metadata"]["namespace"]
        binding: Json = {"apiVersion": _RBAC, "kind": f"{kind}Binding", "metadata": about}
        binding["roleRef"] = {"apiGroup": _GROUP, "kind": kind, "name": EXTENDER}
        binding["subjects"] = [{"apiGroup": _GROUP, "kind": "User", "name": EXTENDER}]
        objects.append(binding)
    _apply(plane, objects)


def _apply(plane: ControlPlane, objects: list[Json]) -> None:
    words = ["apply", "--filename=-", f"--kubeconfig={plane.kubeconfig()}"]
    chart.done("kubectl", *words, home=plane.folder, given=yaml.safe_dump_all(objects))


class Replica:
    """What runs in a pod of the chart's scheduler, on a host of its own name.

    Args:
        plane: the control plane.
        host: the host's name, by which its scheduler holds the lease.
        server: where its extender reaches the API server; "": directly.
        user: as whom its extender asks.

    Attributes:
        address: where its extender answers.
    """

    def __init__(
        self, plane: ControlPlane, host: str, server: str = "", user: str = EXTENDER
    ) -> None:
        self.host = host
        self.address, self._health = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._folder = plane.folder / host
        self._folder.mkdir(exist_ok=True)
        extender = [sys.executable, "-m", "cgpu_k8s.extender",
                    "--listen", self.address.removeprefix("http://"),
                    "--kubeconfig", plane.kubeconfig(user, server),
                    "--lease", f"{chart.NAMESPACE}/{LEASE}"]  # fmt: skip
        scheduler = [kubernetes(SCHEDULER), f"--config={self._configuration(plane)}",
                     "--secure-port=0"]  # fmt: skip
        self._commands = {EXTENDER: extender, SCHEDULER: scheduler}
        self._running: dict[str, contextlib.ExitStack] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *programs: str) -> None:
        """Start its programs, or some of them."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.host]
        for name in programs or (EXTENDER, SCHEDULER):
            stack = self._running[name] = contextlib.ExitStack()
            command = [*named, *self._commands[name]]
            self._processes[name] = stack.enter_context(running(self._log(name), command))

    def start_in_turn(self) -> None:
        """Start both, the scheduler when its extender is ready; return when both are.

        A scheduler tries a pod whose call failed again only after a minute.
        """
        for name, where in (
            (EXTENDER, f"{self.address}/readyz"),
            (SCHEDULER, f"{self._health}/healthz"),
        ):
            self.start(name)
            try:
                wait_until(lambda at=where: _answer(at) is not None, f"{name} is ready", _PATIENCE)
            except AssertionError as error:
                raise AssertionError(f"{self.host}: {error}\n{tail(self._log(name))}") from None

    def send(self, number: signal.Signals, *programs: str) -> None:
        """Send a signal to its programs, or some of them; return when those it kills have ended."""
        for name in programs or tuple(self._processes):
            self._processes[name].send_signal(number)
            if number == signal.SIGKILL:
                self._processes[name].wait()

    def ended(self, program: str) -> bool:
        """Whether one of its programs has ended."""
        return self._processes[program].poll() is not None

    def close(self) -> None:
        """End what runs."""
        self.send(signal.SIGCONT)
        for each in self._running.values():
            each.close()

    def answer(self, path: str) -> bytes | None:
        """What its extender answers to a GET; None: it does not, or not with success."""
        return _answer(f"{self.address}/{path}")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _configuration(self, plane: ControlPlane) -> Path:
        """The chart's, for an extender elsewhere and a scheduler outside the cluster."""
        path = self._folder / "scheduler.yaml"
        found = chart.one(chart.rendered("1.20.2", plane.folder), "ConfigMap", LEASE)
        content = yaml.safe_load(found["data"]["config.yaml"])
        connection = content.get("clientConnection", {})
        content["clientConnection"] = {**connection, "kubeconfig": str(plane.kubeconfig(ACCOUNT))}
        # The chart's port is one for all of the machine.
        content |= dict.fromkeys(_PORTS, self._health.removeprefix("http://"))
        content["extenders"][0]["urlPrefix"] = f"{self.address}/gpushare-scheduler"
        path.write_text(yaml.safe_dump(content))
        return path


@contextlib.contextmanager
def scheduling(
    plane: ControlPlane, host: str = "one", server: str = "", user: str = EXTENDER
) -> Iterator[Replica]:
    """A replica until the end of the block, which begins when it is ready."""
    replica = Replica(plane, host, server, user)
    try:
        replica.start_in_turn()
        yield replica
    finally:
        replica.close()


def _answer(address: str) -> bytes | None:
    try:
        with urllib.request.urlopen(address, timeout=30) as found:
            return bytes(found.read())
    except (urllib.error.URLError, OSError):
        return None
