"""The extender as a process, beside an API server that loses replies, and killed at bad moments.

K8S-12.
"""

from __future__ import annotations

import datetime as dt
import json
import resource
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import LEASES, NODES
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from lab.containers.enclosure import wait_until
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import node, pod, pods_path
from lab.kubernetes.programs import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

UNITS = 15
BINDING = ".*/binding"


def asked(fake: FakeServer, method: str, path: str, body: object = None) -> Any:
    """A request to the API server, as a user."""
    request = urllib.request.Request(
        fake.address + path,
        method=method,
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": "Bearer secret", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def add_nodes(fake: FakeServer, *names: str) -> None:
    for name in names:
        facts = [OfferedGpu(f"GPU-{name}-{n}", n, UNITS << 10) for n in range(2)]
        item = node(name, {"ack.node.gpu.schedule": "cgpu"})
        item["metadata"]["annotations"] = {"cgpu/gpus": write_facts("cgpu", facts)}
        asked(fake, "POST", NODES.path(), item)


def add_pod(fake: FakeServer, name: str, mem: int) -> Any:
    return asked(fake, "POST", pods_path(), pod(name, {"aliyun.com/gpu-mem": str(mem)}))


class Extender:
    """A running extender, called as a scheduler does."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port, self.process = port, process

    def call(self, verb: str, body: object = None) -> Any:
        """The answer; a sentence where it is no JSON; None: there was none."""
        data = json.dumps(body).encode() if body is not None else None
        path = verb if verb.startswith("/") else f"/gpushare-scheduler/{verb}"
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, data, timeout=30) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return None
        return json.loads(text) if text.startswith(("{", "[")) else text

    def ready(self) -> bool:
        return bool(self.call("/readyz") == "ready\n")

    def place(self, given: Any, names: tuple[str, ...]) -> str:
        """Filter, prioritize and bind, as one cycle of a scheduler; "": bound, else why not."""
        found = self.call("filter", {"Pod": given, "NodeNames": list(names)})
        if not isinstance(found, dict) or not found["NodeNames"]:
            return f"filtered: {found}"
        scores = self.call("prioritize", {"Pod": given, "NodeNames": found["NodeNames"]})
        if not isinstance(scores, list):
            return f"scored: {scores}"
        best = max(scores, key=lambda each: int(each["Score"]))["Host"]
        return self.bind(given, best)

    def bind(self, given: Any, to: str) -> str:
        about = given["metadata"]
        body = {"PodName": about["name"], "PodNamespace": about["namespace"]}
        answer = self.call("bind", {**body, "PodUID": about["uid"], "Node": to})
        return str(answer["Error"]) if isinstance(answer, dict) else f"no answer: {answer}"


@contextmanager
def extender(fake: FakeServer, folder: Path, *words: str) -> Iterator[Extender]:
    port = free_port()
    config = fake.kubeconfig(folder / "config")
    command: list[str | Path] = [sys.executable, "-m", "cgpu_k8s.extender", "--kubeconfig", config]
    listen = ["--listen", f"127.0.0.1:{port}"]
    with running(folder / "log", [*command, *listen, *words]) as process:
        found = Extender(port, process)
        wait_until(lambda: found.call("/healthz") is not None, "the extender answers")
        yield found


def used(fake: FakeServer) -> dict[str, int]:
    """GiB that bound pods have of each GPU, as their annotations say."""
    found: dict[str, int] = {}
    for item in fake.items("pods"):
        if item["spec"].get("nodeName"):
            text = json.loads(item["metadata"]["annotations"]["cgpu/allocation"])
            assert text["pod"] == item["metadata"]["uid"]
            assert text["node"] == item["spec"]["nodeName"]
            for uuid, part in text["containers"]["main"].items():
                found[uuid] = found.get(uuid, 0) + part["mem"] // 1024
    return found


def test_pods_fill_gpus_and_are_found_again_after_a_restart(
    fake: FakeServer, tmp_path: Path
) -> None:
    add_nodes(fake, "a", "b")
    pods = [add_pod(fake, f"p{n}", 5) for n in range(8)]
    with extender(fake, tmp_path) as first:
        wait_until(first.ready, "it is ready")
        assert [first.place(each, ("a", "b")) for each in pods[:4]] == [""] * 4
        first.process.terminate()
        assert first.process.wait(20) == 0
    assert used(fake) == {"GPU-a-0": 15, "GPU-a-1": 5}
    with extender(fake, tmp_path) as second:
        wait_until(second.ready, "it is ready")
        assert [second.place(each, ("a", "b")) for each in pods[4:]] == [""] * 4
        assert used(fake) == {"GPU-a-0": 15, "GPU-a-1": 15, "GPU-b-0": 10}
        asked(fake, "DELETE", pods_path() + "/p0", {"gracePeriodSeconds": 0})
        big = add_pod(fake, "big", 15)
        assert second.place(big, ("a",)) != ""
        shown = second.call("inspect")
        assert [each["name"] for each in shown["nodes"]] == ["a", "b"]


def test_lost_replies_and_broken_watches_give_no_unit_away_twice(
    fake: FakeServer, tmp_path: Path
) -> None:
    names = ("a", "b")
    add_nodes(fake, *names)
    with extender(fake, tmp_path) as running_one:
        wait_until(running_one.ready, "it is ready")
        for n, fault in enumerate(
            (
                Fault("POST", BINDING, status=500),
                Fault("POST", BINDING, status=500, after=True),
                Fault("POST", BINDING, after=True),
                Fault("POST", BINDING, half=True),
                Fault("POST", BINDING, status=403, reason="Forbidden"),
                Fault("POST", BINDING, status=429, reason="TooManyRequests"),
            )
        ):
            given = add_pod(fake, f"p{n}", 7)
            fake.fail(fault)
            fake.cut()
            for _ in range(3):
                if running_one.place(given, names) == "":
                    break
            else:
                pytest.fail(f"{fault}: not bound")
        assert sum(used(fake).values()) == 6 * 7
        assert max(used(fake).values()) <= UNITS
        metrics = running_one.call("/metrics")
        assert 'cgpu_extender_bindings_total{outcome="unknown"} 1.0' in metrics
        assert 'cgpu_extender_bindings_total{outcome="failed"} 2.0' in metrics


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_kill_between_a_binding_and_its_reply_doubles_and_loses_nothing(
    fake: FakeServer, tmp_path: Path, *, carried_out: bool
) -> None:
    names = ("a", "b")
    add_nodes(fake, *names)
    pods = [add_pod(fake, f"p{n}", 5) for n in range(12)]
    for n in range(3):
        fake.calls.clear()
        fault = fake.fail(
            Fault("POST", BINDING, mute=True) if carried_out else Fault("POST", BINDING, delay=3600)
        )
        with extender(fake, tmp_path) as doomed:
            wait_until(doomed.ready, "it is ready")
            beside = threading.Thread(target=doomed.place, args=(pods[n], names), daemon=True)
            beside.start()
            wait_until(lambda: any(each.endswith("/binding") for each in fake.calls), "it binds")
            doomed.process.kill()
            doomed.process.wait(20)
            beside.join(30)
        assert fault.times == 0
    with extender(fake, tmp_path) as last:
        wait_until(last.ready, "it is ready")
        for each in pods:
            last.place(each, names)
    assert all(item["spec"].get("nodeName") for item in fake.items("pods"))
    assert used(fake) == {"GPU-a-0": 15, "GPU-a-1": 15, "GPU-b-0": 15, "GPU-b-1": 15}


def test_only_the_extender_of_the_scheduler_that_leads_binds(
    fake: FakeServer, tmp_path: Path
) -> None:
    add_nodes(fake, "a")
    pods = [add_pod(fake, f"p{n}", 15) for n in range(3)]
    path = LEASES.path(namespace="default")

    def renew(holder: str) -> None:
        when = dt.datetime.now(dt.timezone.utc).isoformat(timespec="microseconds")
        spec = {"holderIdentity": holder, "renewTime": when.replace("+00:00", "Z")}
        item = {"metadata": {"name": "s", "namespace": "default"}, "spec": spec}
        if fake.items("leases", "coordination.k8s.io"):
            asked(fake, "PUT", f"{path}/s", item)
        else:
            asked(fake, "POST", path, item)

    def leads(given: Extender, holder: str, item: Any) -> bool:
        renew(holder)
        return given.place(item, ("a",)) == ""

    words = ("--lease", "default/s", "--host")
    renew("one_x")
    for each in ("1", "2"):
        (tmp_path / each).mkdir()
    with (
        extender(fake, tmp_path / "1", *words, "one") as one,
        extender(fake, tmp_path / "2", *words, "two") as two,
    ):
        wait_until(lambda: one.ready() and two.ready(), "both are ready")
        assert "two does not lead, one_x does" in two.place(pods[0], ("a",))
        wait_until(lambda: leads(one, "one_x", pods[0]), "the first binds")
        wait_until(lambda: leads(two, "two_y", pods[1]), "the second binds")
        assert "one does not lead, two_y does" in one.bind(pods[2], "a")
        assert used(fake) == {"GPU-a-0": 15, "GPU-a-1": 15}
        renew("two_y")
        assert "no GPU has 15 GiB" in two.place(pods[2], ("a",))


def test_where_metrics_are_answered_nothing_else_is(fake: FakeServer, tmp_path: Path) -> None:
    add_nodes(fake, "a")
    given, port = add_pod(fake, "p", 5), free_port()
    with extender(fake, tmp_path, "--metrics", f"127.0.0.1:{port}") as one:
        wait_until(one.ready, "it is ready")
        public = Extender(port, one.process)
        assert public.ready()
        assert "cgpu_cluster_gpu_units" in public.call("/metrics")
        assert public.bind(given, "a") == "no answer: /gpushare-scheduler/bind: Not Found\n"
        for path in ("inspect", "version", "filter", "/healthz"):
            assert public.call(path).endswith(": Not Found\n")
        assert used(fake) == {}


def test_half_sent_requests_keep_no_scheduler_and_no_scraper_out(
    fake: FakeServer, tmp_path: Path
) -> None:
    """K8S-15: more of them than a process may have descriptors, at both ports."""
    add_nodes(fake, "a")
    given, metrics = add_pod(fake, "p", 5), free_port()
    with extender(fake, tmp_path, "--metrics", f"127.0.0.1:{metrics}") as one, ExitStack() as kept:
        wait_until(one.ready, "it is ready")
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (400, 400))
        for port in (metrics, one.port):
            for _ in range(500):
                made = kept.enter_context(socket.create_connection(("127.0.0.1", port), 60))
                made.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        assert Extender(metrics, one.process).ready()
        assert one.place(given, ("a",)) == ""
        assert used(fake) == {"GPU-a-0": 5}


def test_what_cannot_start_says_so_in_one_sentence(tmp_path: Path) -> None:
    for words, sentence in (
        (["--listen", "32766"], "32766: expected ADDRESS:PORT"),
        (["--metrics", "32767"], "32767: expected ADDRESS:PORT"),
        (["--lease", "s"], "s: expected NAMESPACE/NAME"),
        (["--kubeconfig", str(tmp_path / "none")], "there is no kubeconfig"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "cgpu_k8s.extender", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == 2
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
