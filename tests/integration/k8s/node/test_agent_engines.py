"""A node whose pods may not pass through cgpu's runtime offers nothing, and says what to do. K8S-3.

The engine is asked for the configuration that it has read.
"""

from __future__ import annotations

import socketserver
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.objects.nodes import read_node
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import NVIDIA, OURS, Lab, agent_lab, asked
from lab.kubernetes.objects import pod, pods_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

CONFIG = """
[crio.runtime]
default_runtime = "nvidia"
hooks_dir = ["/usr/share/containers/oci/hooks.d"]
[crio.runtime.runtimes.nvidia]
runtime_path = "{program}"
[crio.runtime.runtimes.cgpu]
runtime_path = "/usr/bin/cgpu-runtime"
"""


@pytest.fixture(name="lab")
def _lab(fake: FakeServer, tmp_path: Path) -> Iterator[Lab]:
    with agent_lab(fake, tmp_path, "core_mem") as found:
        yield found


def why(lab: Lab) -> str:
    """What the event says; "": there is none."""
    return dict(lab.events()).get("GpusNotOffered", "")


def restart(lab: Lab, **programs: str) -> None:
    lab.engine.stop()
    lab.engine.programs = programs
    lab.engine.start()


def says(lab: Lab, version: str) -> None:
    """What the node's kubelet says of its engine."""
    patch = {"status": {"nodeInfo": {"containerRuntimeVersion": version}}}
    path = NODES.path("gpu-a", part="status")
    asked(lab.fake, "PATCH", path, patch, "application/merge-patch+json")


def test_nvidias_runtime_without_ours_behind_it_withholds_the_node(lab: Lab) -> None:
    lab.engine.programs = {"nvidia": NVIDIA, "cgpu": OURS}
    with lab.agent():
        wait_until(lambda: why(lab), "an event says why")
        assert "the runtime nvidia of containerd is NVIDIA's, without cgpu's behind" in why(lab)
        assert "run cgpu install nvidia on the node" in why(lab)
        assert (lab.resources(), lab.facts()) == ({}, None)
        restart(lab, cgpu=OURS, runc="")
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        restart(lab, runc="")
        wait_until(lambda: lab.facts() is None, "nothing is offered")
        advice = "run cgpu install containerd --default on the node"
        wait_until(lambda: advice in lab.events()[-1][1], "an event says why")


def test_nvidias_runtime_with_ours_behind_it_is_as_good_as_ours(lab: Lab) -> None:
    program = lab.folder / "toolkit" / "nvidia-container-runtime"
    config = program.parent / ".config" / "nvidia-container-runtime" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[nvidia-container-runtime]\nruntimes = ["/usr/bin/cgpu-runtime"]\n')
    lab.engine.programs = {"nvidia": str(program)}
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
    config.write_text('[nvidia-container-runtime]\nruntimes = ["runc"]\n')
    with lab.agent():
        wait_until(lambda: lab.facts() is None, "nothing is offered")
        assert f"toolkit.env of NVIDIA's GPU Operator, by which it writes {config}" in why(lab)


def test_what_was_offered_stays_under_pods(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        limits = {"aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"}
        asked(lab.fake, "POST", pods_path(), pod("train", limits, nodeName="gpu-a"))
        restart(lab, runc="")
        wait_until(lambda: why(lab), "an event says why")
        assert "what the node offered stays until pod default/train has ended" in why(lab)
        assert lab.offers("core_mem")
        assert lab.setting.exists()
        held = "containerd has no runtime of cgpu's: run cgpu install containerd --default"
        wait_until(lambda: held in read_node(lab.node()).withheld, "no more pods are placed")
        assert len(read_node(lab.node()).gpus) == 4
        restart(lab, cgpu=OURS)
        wait_until(lambda: not read_node(lab.node()).withheld, "more pods are placed")


def test_an_engine_is_asked_once_for_as_long_as_it_runs(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")
        time.sleep(11)  # it looks twice
        assert lab.engine.questions == 1
        lab.engine.stop()
        time.sleep(6)  # it looks once, and finds no engine
        assert lab.offers("core_mem")
        lab.engine.start()
        wait_until(lambda: lab.engine.questions == 2, "the next one is asked, too")


@pytest.mark.parametrize("version", ["docker://20.10.24", ""])
def test_an_engine_that_tells_nothing_of_pods_withholds_the_node(lab: Lab, version: str) -> None:
    says(lab, version)
    with lab.agent():
        wait_until(lambda: why(lab), "an event says why")
        assert f"containerRuntimeVersion={version}: expected containerd or cri-o" in why(lab)
        assert lab.facts() is None


def test_no_engine_withholds_the_node(lab: Lab) -> None:
    lab.engine.stop()
    with lab.agent():
        wait_until(lambda: why(lab), "an event says why")
        assert "No such file or directory" in why(lab)
        lab.engine.start()
        wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")


@contextmanager
def crio(lab: Lab, answer: Callable[[], bytes]) -> Iterator[None]:
    """CRI-O in the engine's place: an HTTP answer, or what is left of one, to each question."""

    class Status(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            assert self.rfile.readline().startswith(b"GET /config ")
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer())

    says(lab, "cri-o://1.28.4")
    lab.engine.stop()
    with socketserver.ThreadingUnixStreamServer(str(lab.engine.socket), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()
    lab.engine.socket.unlink()
    lab.engine.start()


def test_crio_is_asked_as_its_own_client_asks_it(lab: Lab) -> None:
    program = "/usr/bin/nvidia-container-runtime"
    with crio(lab, lambda: b"HTTP/1.0 200 OK\r\n\r\n" + CONFIG.format(program=program).encode()):
        with lab.agent():
            wait_until(lambda: why(lab), "an event says why")
            assert "the runtime nvidia of cri-o is NVIDIA's" in why(lab)
        program = "/usr/bin/crun"
        with lab.agent():
            wait_until(lambda: lab.offers("core_mem"), "the node offers its GPUs")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
        (b"", "Server disconnected"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 900\r\n\r\n[crio]", "payload"),
    ],
)
def test_an_answer_of_crio_that_is_none_withholds_the_node(
    lab: Lab, answer: bytes, words: str
) -> None:
    with crio(lab, lambda: answer), lab.agent() as agent:
        wait_until(lambda: why(lab) or agent.poll() is not None, "an event says why")
        assert "which runtimes the container engine has is not known" in why(lab)
        assert words in why(lab)
        assert agent.poll() is None
        assert lab.facts() is None
