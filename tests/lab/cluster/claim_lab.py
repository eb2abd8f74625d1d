"""A DRA driver as a process, with what it stands between: driver, API server and kubelet."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from cgpu_k8s.apiserver.resources import CLAIMS, NODES, SLICES
from cgpu_node.shares.registry import Registry
from lab.cluster.claims import DRIVER, NODE, allocated
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import Gpu, make_machine
from lab.kubernetes.agents import FakeEngine, asked
from lab.kubernetes.device_plugins import field, fields
from lab.kubernetes.objects import node
from lab.kubernetes.programs import running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from cgpu_node.shares.record import Record
    from lab.kubernetes.fake_server import FakeServer

Json = dict[str, Any]
V100 = [Gpu("Tesla V100-SXM2-16GB", 16160, number) for number in range(2)]
HOOK = "/usr/local/bin/cgpu-hook"


class Answer(NamedTuple):
    """The driver's answer about one claim.

    Attributes:
        devices: the texts of each device, by their fields' numbers.
        error: why there are none; "": there are.
    """

    devices: list[dict[int, str]]
    error: str


class ClaimLab:
    """A node: its driver, its kubelet's folders, its object, and its claims."""

    def __init__(
        self, fake: FakeServer, engine: FakeEngine, folder: Path, gpus: Sequence[Gpu] = V100
    ) -> None:
        self.fake, self.engine, self.folder = fake, engine, folder
        engine.programs = {"runc": ""}
        engine.more = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", str(folder / "cdi")]}
        self.driver = make_machine(folder / "driver", gpus)
        self.state, self.cdi = folder / "state", folder / "cdi"
        self.registry, self.plugins = folder / "registry", folder / "plugins"
        self.setting, self.log = folder / "kubernetes.json", folder / "log"
        item = node(NODE)
        item["status"]["nodeInfo"] = {"containerRuntimeVersion": "containerd://1.7.24"}
        asked(fake, "POST", NODES.path(), item)

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """The driver, once a kubelet can find it, until the end of the block."""
        config = self.fake.kubeconfig(self.folder / "config")
        options = {
            "kubeconfig": config,
            "node": NODE,
            "registry": self.registry,
            "plugins": self.plugins,
            "pod-resources": self.folder / "pod-resources.sock",  # which nobody serves
            "cdi": self.cdi,
            "hook": HOOK,
            "engine": self.engine.socket,
            "setting": self.setting,
            "state-dir": self.state,
            "driver-dir": self.driver,
        }
        command = [sys.executable, "-m", "cgpu_k8s.dra_driver"]
        command += [f"--{name}={value}" for name, value in options.items()]
        self.socket.unlink(missing_ok=True)
        with running(self.log, [*command, *words]) as process:
            wait_until(self.socket.exists, "a kubelet finds it")
            yield process
        assert "Traceback" not in self.log.read_text()

    @property
    def socket(self) -> Path:
        """By which kubelets find the driver."""
        return self.registry / f"{DRIVER}-reg.sock"

    def ask(self, method: str, request: bytes = b"") -> bytes:
        """Call the driver's registration, as a kubelet does."""
        return _call(self.socket, f"pluginregistration.Registration/{method}", request)

    def prepare(self, *claims: Json) -> dict[str, Answer]:
        """What the driver answers about each claim, by UID."""
        answer = self._ask_driver("NodePrepareResources", claims)
        found = {}
        for uid, value in answer.items():
            parts = fields(value)
            found[uid] = Answer(
                [
                    {key: text.decode() for key, text in fields(each)}
                    for number, each in parts
                    if number == 1
                ],
                "".join(text.decode() for number, text in parts if number == 2),
            )
        return found

    def unprepare(self, *claims: Json) -> dict[str, str]:
        """The error about each claim, by UID."""
        answer = self._ask_driver("NodeUnprepareResources", claims)
        return {
            uid: "".join(text.decode() for _, text in fields(value))
            for uid, value in answer.items()
        }

    def _ask_driver(self, method: str, claims: tuple[Json, ...]) -> dict[str, bytes]:
        endpoint = dict(fields(self.ask("GetInfo")))[3].decode()
        request = b"".join(
            field(
                1,
                field(1, each["metadata"]["namespace"].encode())
                + field(2, each["metadata"]["uid"].encode())
                + field(3, each["metadata"]["name"].encode()),
            )
            for each in claims
        )
        service = f"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"
        entries = [
            dict(fields(each)) for _, each in fields(_call(Path(endpoint), service, request))
        ]
        return {entry[1].decode(): entry[2] for entry in entries}

    def claim(self, *results: Json, name: str = "train", **more: Any) -> Json:
        """A claim that the API server has, with these devices."""
        item = allocated(*results, **more)
        item["metadata"] = {"name": name, "namespace": "default"}
        made: Json = asked(self.fake, "POST", CLAIMS.path(namespace="default"), item)
        return made

    def delete(self, claim: Json) -> None:
        """Remove a claim from the API server."""
        path = CLAIMS.path(claim["metadata"]["name"], namespace="default")
        asked(self.fake, "DELETE", path)

    def slices(self) -> list[Json]:
        return self.fake.items("resourceslices", "resource.k8s.io")

    def devices(self) -> list[str]:
        return [device["name"] for each in self.slices() for device in each["spec"]["devices"]]

    def taints(self) -> dict[str, str]:
        """The value of each device's taint, by the device's name; "": it has none."""
        return {
            device["name"]: "".join(taint["value"] for taint in device.get("taints", []))
            for each in self.slices()
            for device in each["spec"]["devices"]
        }

    def delete_slice(self) -> None:
        """As a kubelet does whose driver is away."""
        asked(self.fake, "DELETE", SLICES.path(self.slices()[0]["metadata"]["name"]))

    def writes(self) -> list[str]:
        return [each for each in self.fake.calls if each.startswith(("PATCH", "POST", "PUT"))]

    def held(self) -> list[Record]:
        return Registry(str(self.state)).list_records()

    def files(self) -> list[Path]:
        return sorted(self.cdi.iterdir()) if self.cdi.exists() else []

    def edits(self) -> Json:
        """What the one CDI file changes of a container."""
        [path] = self.files()
        [device] = json.loads(path.read_text())["devices"]
        found: Json = device["containerEdits"]
        return found


def _call(socket: Path, method: str, request: bytes) -> bytes:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answer = channel.unary_unary(f"/{method}")(request, timeout=30)
    assert isinstance(answer, bytes)
    return answer
