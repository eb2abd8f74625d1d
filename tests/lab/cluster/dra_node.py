"""A node whose GPUs are claimed: real kubelet, containerd with CDI, and cgpu's DRA driver."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from lab.containers import newer_containerd
from lab.containers.enclosure import wait_until
from lab.kubernetes import scheduler
from lab.kubernetes.control_plane import DRA_DRIVER, control_plane, controllers
from lab.kubernetes.kubectl import PATIENCE, Kubectl
from lab.kubernetes.kubelet import NODE, V100, KubeletNode, pod_image, python
from lab.kubernetes.programs import free_port
from lab.machine.cri import CONTAINERD, IMAGE, write_configuration
from lab.machine.installed import Installed
from lab.machine.node import HOOK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.control_plane import ControlPlane
    from lab.kubernetes.programs import Release

Json = dict[str, Any]
MODE, DRIVER = "dra", "gpu.cgpu"
ENABLED, DISABLED = "--set=dra.enabled=true", "--set=dra.enabled=false"
NVIDIA = "--set=dra.nvidiaClass=true"
CONVERTING = "--set=dra.convert=true"
_CDI = "/var/run/cdi"


class DraNode(KubeletNode):
    """The node; see ``dra_node``."""

    def __init__(self, installed: Installed, plane: ControlPlane) -> None:
        super().__init__(installed, plane, MODE, "status")
        self._metrics = ""  # the address of the node's server
        folder = newer_containerd.programs_folder()
        self._engine = (
            "env",
            f"PATH={folder}:/usr/sbin:/usr/bin:/sbin:/bin",
            folder / "containerd",
        )

    def start_driver(self, *words: str) -> None:
        """Start the DRA driver with the account that the chart has made for it."""
        kubelet = self.installed.base / "kubelet"
        self._token = self._token or self.plane.agents_token(NODE, DRA_DRIVER)
        options = [
            f"--node={NODE}",
            f"--kubeconfig={self.plane.kubeconfig(DRA_DRIVER, token=self._token)}",
            f"--registry={kubelet / 'plugins_registry'}",
            f"--plugins={kubelet / 'plugins'}",
            f"--pod-resources={kubelet / 'pod-resources/kubelet.sock'}",
            f"--engine={self._socket}",
            "--nvidia-names",
            *self._name_programs(),
            *words,
        ]
        self._start("driver", *self._python(), "-m", "cgpu_k8s.dra_driver", *options)

    def _name_programs(self) -> list[str]:
        """The options by which the driver knows the node's hook."""
        return [f"--hook={HOOK}"]

    def _python(self) -> list[str]:
        return python()

    @contextlib.contextmanager
    def session(self, *words: str) -> Iterator[None]:
        """A program under ``cgpu-run`` on the node, until the end of the block."""
        command = [*python(), "-m", "cgpu_cli.run", *words, "sleep", "1000"]
        self._start("session", *command)
        wait_until(lambda: len(self.containers()) == 1, "the session has its share")
        try:
            yield
        finally:
            self.stop("session")

    def specification(self, pod: Any, container: str) -> Any:
        """The configuration with which the engine made a container."""
        [about] = [each for each in pod["status"]["containerStatuses"] if each["name"] == container]
        identity = about["containerID"].rpartition("/")[2]
        where = f"/run/cri/io.containerd.runtime.v2.task/k8s.io/{identity}/config.json"
        return json.loads(self.run("cat", where))

    def reboot(self) -> None:
        """Start the machine anew, with the driver in place of an agent."""
        self.installed.reboot()
        for process in self._running.values():
            process.wait(60)
        self.start_containerd()
        self.start_kubelet()
        self.start_driver()

    def kill(self, pod: Any, container: str) -> None:
        """End a container by a signal, as a program that crashes."""
        [about] = [each for each in pod["status"]["containerStatuses"] if each["name"] == container]
        identity = about["containerID"].rpartition("/")[2]
        self.run(*self.ctr(), "task", "kill", "--signal=KILL", identity)

    def log(self, name: str) -> str:
        """What a program has written."""
        return (self.installed.base / f"{name}.log").read_text(errors="replace")

    def cdi_files(self) -> list[str]:
        """The names of the CDI files on the node."""
        return self.run("sh", "-c", f"ls {_CDI} 2>/dev/null || true").split()

    def metrics(self, name: str) -> list[dict[str, str]]:
        """The labels of the samples of a metric, which the node's ``cgpud`` serves from now on."""
        if not self._metrics:
            self._metrics = f"127.0.0.1:{free_port()}"
            path, served = "/etc/cgpu/config.toml", f'[server]\nmetrics = "{self._metrics}"\n'
            self.installed.write(path, f"{self.installed.read(path)}\n{served}")
        found: list[str] = []

        def ask() -> bool:
            url = f"http://{self._metrics}/metrics"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as page:
                found.append(page.read().decode())
            return bool(found)

        wait_until(ask, "metrics are served")
        families = text_string_to_metric_families(found[0])
        samples = [sample for family in families for sample in family.samples]
        return [sample.labels for sample in samples if sample.name == name]

    def diagnose(self, check: str) -> list[Json]:
        """The findings of a check of ``cgpu doctor`` on the node."""
        answer = json.loads(self.installed.cgpu("doctor", "--json", check=False).stdout)
        return [each for each in answer["findings"] if each["check"] == check]

    def devices(self) -> list[Json]:
        """The devices that the node offers."""
        path = "/apis/resource.k8s.io/v1/resourceslices"
        return [
            device
            for each in self.plane.read(path)["items"]
            for device in each["spec"].get("devices", [])
        ]


@contextlib.contextmanager
def dra_node(
    plane: ControlPlane,
    root: Path,
    *gpus: str,
    cdi: bool = True,
    kind: type[DraNode] = DraNode,
) -> Iterator[DraNode]:
    """A node of the cluster, with an image of ``root``; the block starts its driver."""
    installed = Installed("dra", *(gpus or (V100, V100)))
    try:
        node = kind(installed, plane)
        write_configuration(installed, enable_cdi=cdi)
        assert installed.read(CONTAINERD)
        node.start_containerd()
        node.load(pod_image(installed, root))
        node.start_kubelet()
        yield node
    finally:
        installed.enclosure.stop()


class Claiming(Kubectl):
    """kubectl on the cluster of a node whose GPUs are claimed."""

    node: DraNode

    def install(self) -> None:
        """Apply what the chart has for claims; nobody here makes its pods."""
        objects = [each for each in self.node.plane.chart(ENABLED, NVIDIA) if _is_of_driver(each)]
        self("apply", "--filename=-", given=yaml.safe_dump_all(objects))

    def await_devices(self, count: int = 2) -> None:
        """Return when the node offers all of its GPUs."""
        offered = lambda: len(self.node.devices()) == count  # noqa: E731
        self.node.wait_until(offered, f"{count} GPUs are offered", "driver", "kubelet")

    def await_event(self, pod: str, words: str) -> None:
        """Return once a pod has an event with these words.

        A kubelet's first one may have others: the API server has to learn whose claim it is.
        """
        chosen = f"--field-selector=involvedObject.name={pod}"

        def is_there() -> bool:
            return any(words in each["message"] for each in self.get("events", chosen)["items"])

        wait_until(is_there, f"{pod} has an event with {words!r}", PATIENCE)


@contextlib.contextmanager
def claiming_cluster(
    folder: Path,
    release: Release,
    root: Path,
    *gpus: str,
    more: tuple[str, ...] = (),
    kind: type[DraNode] = DraNode,
    accounts: bool = False,
) -> Iterator[Claiming]:
    """A cluster with its own scheduler, whose one node is for claims; nothing of cgpu's is there.

    Args:
        folder: of the control plane.
        release: of Kubernetes.
        root: of the image of pods.
        gpus: of the node; two V100 if none are named.
        more: controllers beside that of claims.
        kind: of the node.
        accounts: whether pods have the tokens of their accounts, which needs more controllers.
    """
    with (
        control_plane(folder, release, accounts=accounts) as plane,
        controllers(plane, "resourceclaim-controller", *more),
        scheduler.of_the_cluster(plane),
        dra_node(plane, root, *gpus, kind=kind) as node,
    ):
        yield Claiming(node)


def _is_of_driver(item: Json) -> bool:
    labels = item["metadata"].get("labels", {})
    return bool(labels.get("app.kubernetes.io/component") == "dra-driver")


def claim(name: str, **capacity: str) -> Json:
    """A claim for one GPU; words of ``capacity`` are what it wants of it, all if there are none."""
    exactly: Json = {"deviceClassName": DRIVER}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def templated(name: str, expression: str, **capacity: str) -> Json:
    """A ResourceClaimTemplate for NVIDIA's driver, which selects by an expression."""
    found = claim(name, **capacity)
    [request] = found["spec"]["devices"]["requests"]
    request["exactly"]["deviceClassName"] = "gpu.nvidia.com"
    request["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return {**found, "kind": "ResourceClaimTemplate", "spec": {"spec": found["spec"]}}


def claiming(name: str, claim_name: str, *containers: str, **spec: Any) -> Json:
    """A pod with these containers, ``main`` by default, which have one claim and sleep."""
    named = [
        {
            "name": each,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "resources": {"claims": [{"name": "gpu"}]},
        }
        for each in containers or ("main",)
    ]
    about = {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**about, "containers": named, **spec},
    }


def consumed(item: Json) -> list[Json]:
    """What a claim's allocation says that it has of each device."""
    results = item["status"]["allocation"]["devices"]["results"]
    return json.loads(json.dumps([each["consumedCapacity"] for each in results]))
