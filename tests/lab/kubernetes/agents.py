"""A node's agent as a process, with what it stands between: driver, API server and kubelet."""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cgpu_k8s.api.resources import NODES
from lab.driver.nvml_base import Gpu, make_machine
from lab.kubernetes.programs import running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.device_plugins import FakeKubelet
    from lab.kubernetes.fake_server import FakeServer

V100 = [Gpu("Tesla V100-SXM2-16GB", 16160, number) for number in range(4)]
COUNT = "aliyun.com/gpu-count"


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


class Lab:
    """A node: its driver, its kubelet, its object, and its agent."""

    def __init__(
        self,
        fake: FakeServer,
        kubelet: FakeKubelet,
        folder: Path,
        driver: Path | None = None,
        state: Path | None = None,
    ) -> None:
        self.fake, self.kubelet, self.folder = fake, kubelet, folder
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
        command += ["--setting", self.setting, "--state-dir", self.state]
        with running(self.log, [*command, "--driver-dir", self.driver, *words]) as process:
            yield process
        assert "Traceback" not in self.log.read_text()

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
