"""The real kube-scheduler with cgpu's extender, on a real control plane: one replica or several."""

from __future__ import annotations

import contextlib
import signal
import ssl
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
from lab.kubernetes.control_plane import SCHEDULER as THEIRS
from lab.kubernetes.programs import free_port, running, tail

Json = dict[str, Any]
EXTENDER, LEASE = "cgpu-extender", "cgpu-scheduler"
SCHEDULER = "kube-scheduler"
_GROUP = "rbac.authorization.k8s.io"
_RBAC = f"{_GROUP}/v1"
_ONE_PORT = 23  # from this minor version on a scheduler serves HTTPS only
_PORTS = ("healthzBindAddress", "metricsBindAddress")
_PATIENCE = 60.0


def install(plane: ControlPlane) -> None:
    """Apply the chart's manifests, and let the extender use its roles.

    Without the webhooks, as no Service works here: ``lab.worlds.guard`` has them.
    """
    objects = plane.chart()
    _apply(plane, [each for each in objects if "Webhook" not in each["kind"]])
    grant(plane)


def grant(plane: ControlPlane) -> None:
    """Give the extender, as a user of its own, its roles alone.

    In its pod it has the account of the scheduler, which may do more.
    """
    objects: list[Json] = []
    for role in plane.chart():
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
        user: as whom its extender asks; "": as one that may do no more than its roles allow, or
            where policies let nobody else decide, as the scheduler's account.
        led: whether its extender is asked about pods without GPUs, too.

    Attributes:
        address: where its extender answers.
        user: as whom its extender asks.
    """

    def __init__(
        self,
        plane: ControlPlane,
        host: str,
        server: str = "",
        user: str = "",
        *,
        led: bool = False,
    ) -> None:
        self.host = host
        self.user = user or (ACCOUNT if plane.release.has_policies else EXTENDER)
        self.address = f"http://127.0.0.1:{free_port()}"
        self._port = free_port()
        has_one_port = plane.release.is_since(_ONE_PORT)
        self._health = f"http{'s' * has_one_port}://127.0.0.1:{self._port}"
        self._folder = plane.folder / host
        self._folder.mkdir(exist_ok=True)
        extender = [sys.executable, "-m", "cgpu_k8s.extender",
                    "--listen", self.address.removeprefix("http://"),
                    "--kubeconfig", plane.kubeconfig(self.user, server),
                    "--lease", f"{chart.NAMESPACE}/{LEASE}",
                    *(["--pods-without-gpus"] if led else [])]  # fmt: skip
        configuration = self._configuration(plane, led=led)
        scheduler = [plane.release.program(SCHEDULER), f"--config={configuration}",
                     "--bind-address=127.0.0.1",
                     f"--secure-port={self._port if has_one_port else 0}"]  # fmt: skip
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

    def _configuration(self, plane: ControlPlane, *, led: bool) -> Path:
        """The chart's, for an extender elsewhere and a scheduler outside the cluster."""
        path = self._folder / "scheduler.yaml"
        options = ["--set=scheduler.podsWithoutGpus=true"] if led else []
        found = chart.one(plane.chart(*options), "ConfigMap", LEASE)
        content = yaml.safe_load(found["data"]["config.yaml"])
        connection = content.get("clientConnection", {})
        content["clientConnection"] = {**connection, "kubeconfig": str(plane.kubeconfig(ACCOUNT))}
        if not plane.release.is_since(_ONE_PORT):  # the chart's is one for all of the machine
            content |= dict.fromkeys(_PORTS, f"127.0.0.1:{self._port}")
        content["extenders"][0]["urlPrefix"] = f"{self.address}/gpushare-scheduler"
        path.write_text(yaml.safe_dump(content))
        return path


@contextlib.contextmanager
def scheduling(
    plane: ControlPlane, host: str = "one", server: str = "", user: str = "", *, led: bool = False
) -> Iterator[Replica]:
    """A replica until the end of the block, which begins when it is ready."""
    replica = Replica(plane, host, server, user, led=led)
    try:
        replica.start_in_turn()
        yield replica
    finally:
        replica.close()


@contextlib.contextmanager
def of_the_cluster(plane: ControlPlane, **settings: Any) -> Iterator[None]:
    """The scheduler that a cluster has without cgpu, until the end of the block.

    ``settings``: of its configuration.
    """
    path = plane.folder / "default-scheduler.yaml"
    connection = {"kubeconfig": str(plane.kubeconfig(THEIRS))}
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **settings,
        "clientConnection": {**settings.get("clientConnection", {}), **connection},
    }
    path.write_text(yaml.safe_dump(content))
    command = [plane.release.program(SCHEDULER), f"--config={path}", "--secure-port=0"]
    with running(plane.folder / "default-scheduler.log", command):
        yield


def _answer(address: str) -> bytes | None:
    trust = None
    if address.startswith("https"):  # it signs its certificate itself
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(address, timeout=30, context=trust) as found:
            return bytes(found.read())
    except (urllib.error.URLError, OSError):
        return None
