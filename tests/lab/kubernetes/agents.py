"""A node's agent as a process, with what it stands between: driver, API server and kubelet."""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import psutil

from cgpu_k8s.apiserver.resources import NODES
from cgpu_sim import machine
from lab.driver.nvml_base import Gpu, make_machine
from lab.kubernetes.device_plugins import fake_kubelet
from lab.kubernetes.objects import node
from lab.kubernetes.programs import running
from lab.machine.cri import packed

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.device_plugins import FakeKubelet
    from lab.kubernetes.fake_server import FakeServer

V100 = [Gpu("Tesla V100-SXM2-16GB", 16160, number) for number in range(4)]
COUNT = "aliyun.com/gpu-count"
OURS, NVIDIA = "/usr/bin/cgpu-runtime", "/usr/bin/nvidia-container-runtime"
_GPU_LOST = 15  # NVML's error
VERBOSE = b"\x08\x01"


class FakeEngine:
    """containerd at ``socket``.

    Attributes:
        programs: of its runtimes, by name.
        questions: how often it was asked.
        more: of its configuration.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.programs = {"runc": "", "cgpu": OURS}
        self.questions = 0
        self.more: dict[str, object] = {}
        self._server: Any = None

    def start(self) -> None:
        """Listen at a new socket."""
        self._server = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_unary_rpc_method_handler(self._status)
        methods = {"Status": handler}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """End, and leave no socket."""
        self._server.stop(None).wait()
        self.socket.unlink(missing_ok=True)

    def _status(self, request: bytes, _context: Any) -> bytes:
        self.questions += 1
        assert request == VERBOSE
        runtimes = {
            name: {"PodAnnotations": ["cgpu/*"], "options": {"BinaryName": program}}
            for name, program in self.programs.items()
        }
        config = json.dumps({"containerd": {"runtimes": runtimes}, **self.more})
        info = [{1: "golang", 2: '"go1.19"'}, {1: "config", 2: config}]
        return packed({1: {1: {1: "RuntimeReady", 2: 1}}, 2: info})


@contextmanager
def fake_engine(socket: Path) -> Iterator[FakeEngine]:
    """An engine that runs until the end of the block."""
    engine = FakeEngine(socket)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def asked(fake: FakeServer, method: str, path: str, body: object = None, kind: str = "") -> Any:
    """A request to the API server, as its administrator."""
    request = urllib.request.Request(
        fake.address + path,
        method=method,
        data=json.dumps(body).encode() if body is not None else None,
        headers={
            "Authorization": "Bearer secret",
            "Content-Type": kind or "application/json",
            "User-Agent": "administrator",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@contextmanager
def agent_lab(
    fake: FakeServer, folder: Path, mode: str, driver: Path | None = None, state: Path | None = None
) -> Iterator[Lab]:
    """A node whose label is ``mode``, with a kubelet and an engine until the end of the block."""
    item = node("gpu-a", {"ack.node.gpu.schedule": mode}, cpu="4")
    item["status"]["nodeInfo"] = {"containerRuntimeVersion": "containerd://1.6.20"}
    asked(fake, "POST", NODES.path(), item)
    with fake_kubelet(folder / "plugins") as kubelet, fake_engine(folder / "engine") as engine:
        yield Lab(fake, kubelet, engine, folder, driver, state)


class Lab:
    """A node: its driver, its kubelet, its object, and its agent."""

    def __init__(
        self,
        fake: FakeServer,
        kubelet: FakeKubelet,
        engine: FakeEngine,
        folder: Path,
        driver: Path | None = None,
        state: Path | None = None,
    ) -> None:
        self.fake, self.kubelet, self.engine, self.folder = fake, kubelet, engine, folder
        self.driver = driver or make_machine(folder / "driver", V100)
        self.state = state or folder / "state"
        self.setting = folder / "etc" / "kubernetes.json"
        self.log = folder / "log"

    @contextmanager
    def agent(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        config = self.fake.kubeconfig(self.folder / "config")
        command: list[str | Path] = [sys.executable, "-m", "cgpu_k8s.agent", "--kubeconfig", config]
        command += ["--node", "gpu-a", "--plugins", self.kubelet.folder]
        command += ["--pod-resources", self.kubelet.folder / "kubelet.sock"]
        command += ["--engine", self.engine.socket]
        command += ["--setting", self.setting, "--state-dir", self.state]
        with running(self.log, [*command, "--driver-dir", self.driver, *words]) as process:
            yield process
        assert "Traceback" not in self.log.read_text()

    def probes(self) -> list[psutil.Process]:
        """The processes in which an agent asks the driver."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if {"gpus", str(self.driver)} <= set(process.info["cmdline"] or [])
        ]

    def lose_a_gpu(self) -> None:
        """From now on the driver lists three GPUs, and the agent sees it at its next look."""
        make_machine(self.driver, V100[:3])
        fault = machine.Fault("nvmlDeviceGetMemoryInfo", 1, _GPU_LOST)
        machine.inject(self.driver / "machine", fault)
        self.probes()[0].kill()

    def label(self, value: str | None) -> None:
        patch = {"metadata": {"labels": {"ack.node.gpu.schedule": value}}}
        asked(self.fake, "PATCH", NODES.path("gpu-a"), patch, "application/merge-patch+json")

    def node(self) -> Any:
        return next(each for each in self.fake.items("nodes"))

    def resources(self) -> dict[str, str]:
        found = self.node()["status"]
        assert found["capacity"] == found["allocatable"]
        return {name: value for name, value in found["capacity"].items() if "aliyun" in name}

    def facts(self) -> Any:
        text = self.node()["metadata"].get("annotations", {}).get("cgpu/gpus")
        return json.loads(text) if text else None

    def offers(self, mode: str) -> bool:
        facts = self.facts()
        return bool(facts) and facts["mode"] == mode

    def healthy(self) -> list[bool]:
        return [gpu["healthy"] for gpu in self.facts()["gpus"]]

    def events(self) -> list[tuple[str, str]]:
        return [(each["reason"], each["message"]) for each in self.fake.items("events")]

    def writes(self) -> list[str]:
        return [call for call in self.fake.calls if call.startswith(("PATCH", "POST", "PUT"))]
