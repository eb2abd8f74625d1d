"""The extender's answers over HTTP, beside an API server that loses replies and refuses.

K8S-3, K8S-12.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, generate_latest

from cgpu_k8s.api.errors import (
    ApiError,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    LostError,
    NotFoundError,
    ServerError,
)
from cgpu_k8s.books.books import Books
from cgpu_k8s.extender import binding, server, wire
from cgpu_k8s.extender.fence import PATIENCE, Fence
from cgpu_k8s.extender.server import Extender
from cgpu_k8s.objects.fields import ObjectError
from cgpu_k8s.objects.gpus import Fact, write_facts
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Json = dict[str, Any]

pytestmark = pytest.mark.unit

PREFIX = "/gpushare-scheduler"


def node(name: str, mode: str = "cgpu", gpus: int = 2) -> Json:
    facts = [Fact(f"GPU-{name}-{n}", n, 16160) for n in range(gpus)]
    return {
        "metadata": {
            "name": name,
            "labels": {"ack.node.gpu.schedule": mode},
            "annotations": {"cgpu/gpus": write_facts(mode, facts)},
        }
    }


def pod(name: str, mem: object = 8, *, uid: str = "") -> Json:
    limits = {"aliyun.com/gpu-mem": str(mem)} if mem else {"cpu": "1"}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


class Server:
    """Pods as the API server has them; ``faults``: what happens to the next bindings."""

    def __init__(self, *pods: Json) -> None:
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.faults: list[tuple[str, ApiError | ConfigurationError]] = []
        self.calls: list[str] = []
        self.bindings: list[Json] = []
        self.stop: Callable[[], None] = lambda: None  # what happens while a binding is on its way

    async def get(self, path: str) -> Json:
        self.calls.append(f"GET {path}")
        found = self.pods.get(path.rpartition("/")[2])
        if found is None:
            raise NotFoundError("no such pod", status=404)
        if isinstance(found, ApiError):
            raise found
        return found

    async def post(self, path: str, body: Json, before: Callable[[], None]) -> Json:
        await asyncio.sleep(0)
        self.stop()
        before()
        self.calls.append(f"POST {path}")
        self.bindings.append(body)
        when, error = self.faults.pop(0) if self.faults else ("after", None)
        if error and when == "before":
            raise error
        found = self.pods.get(body["metadata"]["name"])
        if found is None or found["metadata"]["uid"] != body["metadata"]["uid"]:
            raise NotFoundError("no such pod", status=404)
        if found["spec"].get("nodeName"):
            raise ConflictError("is already assigned to a node", status=409)
        self.land(body)
        if error:
            raise error
        return {"kind": "Status", "status": "Success"}

    def land(self, body: Json) -> None:
        found = self.pods[body["metadata"]["name"]]
        found["spec"]["nodeName"] = body["target"]["name"]
        found["metadata"]["annotations"] = dict(body["metadata"]["annotations"])


class World:
    """Books, an API server, and an extender that answers over HTTP."""

    def __init__(self, *pods: Json, nodes: tuple[str, ...] = ("a", "b")) -> None:
        self.books = Books()
        self.books.nodes_listed(read_node(node(name)) for name in nodes)
        self.server = Server(*pods)
        self.missing = ""
        self.fence: Fence | None = None
        self.log: list[tuple[str, dict[str, object]]] = []
        self.http: TestClient[Any, Any]
        self.extender: Extender

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def serve() -> None:
            self.extender = Extender(
                self.books,
                self.server,
                self.fence,
                lambda: self.missing,
                lambda: {"pods": 1.0, "nodes": None},
                lambda event, fields: self.log.append((event, fields)),
            )
            async with TestClient(TestServer(self.extender.application())) as self.http:
                await work()

        asyncio.run(serve())

    async def post(self, verb: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"{PREFIX}/{verb}", data=data) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if reply.status == 200 else text

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(path) as reply:
            return reply.status, await reply.text()

    async def filter(self, given: Json, names: tuple[str, ...] = ("a", "b")) -> Any:
        status, answer = await self.post("filter", {"Pod": given, "NodeNames": list(names)})
        assert status == 200, answer
        return answer

    async def bind(self, given: Json, to: str = "a") -> str:
        meta = given["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": meta["namespace"]}
        status, answer = await self.post("bind", {**asked, "PodUID": meta["uid"], "Node": to})
        assert status == 200, answer
        assert set(answer) == {"Error"}
        return str(answer["Error"])

    async def metric(self, line: str) -> bool:
        return f"\n{line}\n" in (await self.get("/metrics"))[1]

    def taken(self) -> dict[str, set[str]]:
        return {name: set(each.taken) for name, each in self.books.nodes.items() if each.taken}


def test_a_pod_is_filtered_scored_and_bound_with_its_decision_in_one_write() -> None:
    given = pod("p")
    world = World(given)

    async def work() -> None:
        assert await world.filter(given, ("b", "a", "new")) == {
            "Nodes": None,
            "NodeNames": ["b", "a"],
            "FailedNodes": {"new": "the node is not known yet"},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }
        asked = {"Pod": given, "Nodes": None, "NodeNames": ["b", "a"]}
        assert await world.post("prioritize", asked) == (
            200,
            [{"Host": "b", "Score": 0}, {"Host": "a", "Score": 10}],
        )
        assert world.taken() == {"a": {"uid-p"}}
        assert await world.bind(given) == ""
        assert world.server.calls == ["POST /api/v1/namespaces/ns/pods/p/binding"]
        assert await world.metric('cgpu_extender_bindings_total{outcome="done"} 1.0')

    world.run(work)
    [sent] = world.server.bindings
    notes = sent["metadata"].pop("annotations")
    containers = json.loads(notes["cgpu/allocation"])["containers"]
    assert containers == {"main": {"GPU-a-0": {"mem": 8618}}}
    assert notes["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert sent == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "a"},
    }


def test_a_scheduler_that_sends_whole_nodes_gets_them_back() -> None:
    given, nodes = pod("p", 16), [node("a"), node("b")]
    world = World(given)
    world.books.node_seen(read_node(node("b", gpus=0)))

    async def work() -> None:
        for mem, fitting in ((8, ["a"]), (16, [])):
            asked = {"Pod": pod("p", mem), "Nodes": {"items": nodes}, "NodeNames": None}
            status, answer = await world.post("filter", asked)
            assert status == 200
            assert answer["NodeNames"] == fitting
            assert answer["Nodes"] == {"items": [each for each in nodes[:1] if fitting]}

    world.run(work)


def test_a_node_that_no_pods_end_could_help_is_unresolvable() -> None:
    world = World(nodes=("a", "b", "c"))
    world.books.node_seen(read_node(node("b", "core_mem")))
    world.books.node_seen(read_node(node("c", "coremem")))

    async def work() -> None:
        for n in range(2):
            await world.filter(pod(f"p{n}", 15), ("a",))
        answer = await world.filter(pod("p"), ("a", "b", "c"))
        assert set(answer["FailedNodes"]) == {"a", "b", "c"}
        assert "no GPU has 8 GiB of aliyun.com/gpu-mem free" in answer["FailedNodes"]["a"]
        assert set(answer["FailedAndUnresolvableNodes"]) == {"b", "c"}
        assert await world.metric('cgpu_extender_refused_nodes_total{reason="full"} 1.0')
        assert await world.metric('cgpu_extender_refused_nodes_total{reason="wrong-mode"} 1.0')

    world.run(work)


def test_what_no_gpu_could_give_is_answered_with_its_sentence_for_every_node() -> None:
    world = World()

    async def work() -> None:
        answer = await world.filter(pod("p", "1.5"))
        assert answer["NodeNames"] == []
        assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b"}
        assert "aliyun.com/gpu-mem=1.5" in answer["FailedAndUnresolvableNodes"]["a"]
        asked = {"Pod": pod("p", "1.5"), "NodeNames": ["a"]}
        assert await world.post("prioritize", asked) == (200, [{"Host": "a", "Score": 0}])
        world.books.pod_seen(read_pod(pod("p", "1.5")))
        assert "aliyun.com/gpu-mem=1.5" in await world.bind(pod("p", "1.5"))
        assert world.server.bindings == []

    world.run(work)


def test_pods_that_ask_for_no_gpu_go_anywhere_and_get_no_annotation() -> None:
    given = pod("p", None)
    world = World(given)

    async def work() -> None:
        assert (await world.filter(given, ("a", "x")))["NodeNames"] == ["a", "x"]
        asked = {"Pod": given, "NodeNames": ["a"]}
        assert await world.post("prioritize", asked) == (200, [{"Host": "a", "Score": 0}])
        assert await world.bind(given, "x") == ""
        assert world.server.bindings[0]["metadata"]["annotations"] == {}
        assert await world.bind(given, "x") == ""
        assert "is bound already" in await world.bind(given, "a")

    world.run(work)


def test_what_the_scheduler_chose_among_fewer_nodes_is_reserved_there() -> None:
    given = pod("p")
    world = World(given)

    async def work() -> None:
        await world.filter(given)
        asked = {"Pod": given, "NodeNames": ["b"]}
        assert await world.post("prioritize", asked) == (200, [{"Host": "b", "Score": 10}])
        assert world.taken() == {"b": {"uid-p"}}
        assert await world.bind(given, "a") == ""
        assert world.taken() == {"a": {"uid-p"}}

    world.run(work)


LOST, BROKEN = LostError("no answer"), ServerError("failed", status=500)


@pytest.mark.parametrize("error", [LOST, BROKEN])
def test_a_binding_without_an_answer_that_was_carried_out_succeeds(error: ApiError) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("after", error)]

    async def work() -> None:
        await world.filter(given)
        assert await world.bind(given) == ""
        assert world.server.calls[-1] == "GET /api/v1/namespaces/ns/pods/p"
        assert world.taken() == {"a": {"uid-p"}}
        world.books.pods_listed([])  # older than the pod
        assert world.taken() == {"a": {"uid-p"}}
        assert await world.metric('cgpu_extender_bindings_total{outcome="repeated"} 1.0')

    world.run(work)


@pytest.mark.parametrize("error", [LOST, BROKEN])
def test_a_binding_without_an_answer_keeps_its_part_and_is_repeated_as_it_was(
    error: ApiError,
) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", error), ("before", ForbiddenError("no", status=403))]

    async def work() -> None:
        await world.filter(given)
        assert "stays reserved" in await world.bind(given)
        assert await world.metric('cgpu_extender_bindings_total{outcome="unknown"} 1.0')
        answer = await world.filter(given)
        assert (answer["NodeNames"], list(answer["FailedNodes"])) == (["a"], ["b"])
        assert await world.bind(given) == "no"
        assert world.taken() == {"a": {"uid-p"}}
        world.server.land(world.server.bindings[0])  # late
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 3
        assert world.taken() == {"a": {"uid-p"}}

    world.run(work)
    texts = {each["metadata"]["annotations"]["cgpu/allocation"] for each in world.server.bindings}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "error", [ForbiddenError("no", status=403), ConfigurationError("no token")]
)
def test_a_binding_that_is_surely_refused_makes_room_at_once(error: Any) -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", error)]

    async def work() -> None:
        await world.filter(given)
        assert await world.bind(given) == str(error)
        assert world.taken() == {}
        assert world.log[-1] == (
            "not_bound",
            {"pod": "ns/p", "node": "a", "error": str(error)},
        )

    world.run(work)


def test_repeating_a_binding_is_success_and_sends_nothing_once_it_is_seen() -> None:
    given = pod("p")
    world = World(given)

    async def work() -> None:
        assert await world.bind(given) == ""  # without a filter before it: the pod is read
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 2
        world.books.pod_seen(read_pod(world.server.pods["p"]))
        assert world.books.reservations == {}
        assert await world.bind(given) == ""
        assert len(world.server.bindings) == 2
        assert "bound to a already" in await world.bind(given, "b")

    world.run(work)


def test_a_pod_that_somebody_else_bound_or_replaced_gets_nothing() -> None:
    given, taken = pod("p"), pod("q")
    taken["spec"]["nodeName"] = "b"
    world = World(given, taken)

    async def work() -> None:
        await world.filter(pod("q"))
        assert "bound already to b, not by this decision" in await world.bind(pod("q"))
        await world.filter(pod("p", uid="before"))
        assert "no such pod" in await world.bind(pod("p", uid="before"))
        assert "the pod of this name is uid-p" in await world.bind(pod("p", uid="other"))
        assert "no such pod" in await world.bind(pod("gone"))
        assert world.taken() == {}

    world.run(work)


def test_a_node_that_is_full_by_now_is_refused_with_the_reason() -> None:
    world = World(pod("p", 15), pod("q", 15), pod("r", 15))

    async def work() -> None:
        for name in ("p", "q"):
            assert await world.bind(pod(name, 15)) == ""
        assert "no GPU has 15 GiB" in await world.bind(pod("r", 15))
        assert await world.bind(pod("r", 15), "elsewhere") == "the node is not known yet"
        assert await world.metric('cgpu_extender_bindings_total{outcome="refused"} 2.0')

    world.run(work)


def test_what_was_sent_and_is_never_seen_is_read_until_its_outcome_is_certain() -> None:
    lost, late, gone = pod("lost", 4), pod("late", 4), pod("gone", 4)
    world = World(lost, late, gone)
    world.server.faults = [("before", LOST), ("before", LOST), ("before", LOST)]
    now = 100.0

    async def work() -> None:
        binder = binding.Binder(world.books, world.server, str, lambda: now)
        for each in (lost, late, gone):
            meta = each["metadata"]
            with pytest.raises(binding.BindError):
                await binder.bind(wire.Bound("ns", meta["name"], meta["uid"], "a"))
        world.server.land(world.server.bindings[1])
        world.server.pods["gone"] = pod("gone", uid="another")
        nonlocal_now(130.0)
        await binder.resolve(15.0)
        assert set(world.books.reservations) == {"uid-lost", "uid-late"}
        world.books.pod_seen(read_pod(world.server.pods["late"]))
        assert set(world.books.reservations) == {"uid-lost"}
        assert set(world.books.bound) == {"uid-late"}
        world.server.pods["lost"], kept = LOST, world.server.pods["lost"]  # type: ignore[assignment]
        nonlocal_now(200.0)
        await binder.resolve(15.0)
        assert set(world.books.reservations) == {"uid-lost"}
        world.server.pods["lost"] = kept
        await binder.resolve(15.0)
        assert world.books.reservations == {}

    def nonlocal_now(value: float) -> None:
        nonlocal now
        now = value

    world.run(work)


def test_what_was_read_as_bound_is_kept_until_the_watch_shows_it() -> None:
    world = World(pod("late"))
    world.server.faults = [("before", LOST)]
    now = 0.0

    async def work() -> None:
        nonlocal now
        binder = binding.Binder(world.books, world.server, str, lambda: now)
        with pytest.raises(binding.BindError):
            await binder.bind(wire.Bound("ns", "late", "uid-late", "a"))
        world.server.land(world.server.bindings[0])
        for _ in range(9):
            now += 16
            await binder.resolve(15.0)
            assert world.taken() == {"a": {"uid-late"}}
        world.books.pods_listed([])
        del world.server.pods["late"]
        now += 16
        await binder.resolve(15.0)
        assert world.taken() == {}

    world.run(work)


def test_a_binding_to_a_node_that_is_gone_since_it_was_sent_is_refused() -> None:
    given = pod("p")
    world = World(given)
    world.server.faults = [("before", LOST)]

    async def work() -> None:
        assert "stays reserved" in await world.bind(given)
        world.books.node_seen(read_node(node("a", gpus=0)))
        assert await world.bind(given) == "node a has no GPU GPU-a-0 any more"
        world.books.node_gone("a")
        assert await world.bind(given) == "the node is not known yet"
        assert world.books.reservations["uid-p"].sent == 1  # 60 s count from what was sent

    world.run(work)


def test_nodes_where_victims_make_no_room_on_one_gpu_are_no_candidates() -> None:
    world = World(*(pod(f"p{n}") for n in range(4)))

    async def work() -> None:
        for n in range(4):
            assert await world.bind(pod(f"p{n}", 8), "ab"[n % 2]) == ""
        for name in "ab":
            assert len(world.taken()[name]) == 2
        victims = {
            "a": {"Pods": [{"UID": "uid-p0"}], "NumPDBViolations": 1},
            "b": {"Pods": [], "NumPDBViolations": 0},
            "c": {"Pods": [], "NumPDBViolations": 0},
        }
        asked = {"Pod": pod("big", 15), "NodeNameToMetaVictims": victims}
        expected = {"NodeNameToMetaVictims": {"a": victims["a"]}}
        assert await world.post("preempt", asked) == (200, expected)
        whole = {"a": {"Pods": [pod("p0")], "NumPDBViolations": 1}, "b": {"Pods": [pod("x")]}}
        asked = {"Pod": pod("big", 15), "NodeNameToVictims": whole}
        assert await world.post("preempt", asked) == (200, expected)
        other = {"Pod": pod("other", None), "NodeNameToMetaVictims": victims}
        _, answer = await world.post("preempt", other)
        assert set(answer["NodeNameToMetaVictims"]) == {"a", "b", "c"}
        nothing = {"Pod": pod("big", "x"), "NodeNameToMetaVictims": victims}
        assert await world.post("preempt", nothing) == (200, {"NodeNameToMetaVictims": {}})

    world.run(work)


@pytest.mark.parametrize(
    ("verb", "body", "sentence"),
    [
        ("filter", b"", "expected a JSON object"),
        ("filter", b"[" * 5000, "expected a JSON object"),
        ("filter", b"\xff\xfe", "expected a JSON object"),
        ("filter", [], "expected a JSON object, got list"),
        ("filter", {}, "Pod is missing"),
        ("filter", {"pod": {}, "nodenames": []}, "pod: expected only Pod, Nodes, NodeNames; per"),
        ("filter", {"Pod": pod("p")}, "expected at least one node"),
        ("filter", {"Pod": pod("p"), "NodeNames": []}, "expected at least one node"),
        ("filter", {"Pod": pod("p"), "Nodes": {"items": None}}, "expected at least one node"),
        ("filter", {"Pod": pod("p"), "NodeNames": [1]}, "NodeNames: expected strings, got int"),
        ("filter", {"Pod": pod("p"), "NodeNames": "a"}, "NodeNames: expected a list"),
        ("filter", {"Pod": pod("p"), "Nodes": {"items": [3]}}, "items: expected objects"),
        ("filter", {"Pod": {"metadata": []}, "NodeNames": ["a"]}, "metadata: expected an object"),
        ("filter", {"Pod": {"spec": {}}, "NodeNames": ["a"]}, "Pod.metadata.uid is missing"),
        ("filter", b" " * (5 << 20), "longer than 4 MiB: set nodeCacheCapable"),
        ("prioritize", {"Pod": 3, "NodeNames": ["a"]}, "Pod: expected an object, got int"),
        ("preempt", {"Pod": pod("p")}, "NodeNameToMetaVictims: expected at least one node"),
        ("preempt", {"Pod": pod("p"), "NodeNameToVictims": {"a": 1}}, "victims on a: expected"),
        ("bind", {"PodName": "p", "PodNamespace": "ns", "PodUID": "u"}, "Node is missing"),
        ("bind", {"PodName": 1, "PodNamespace": "n", "PodUID": "u", "Node": "a"}, "PodName: exp"),
        ("bind", {"PodName": "p", "Pod": {}}, "Pod: expected only PodName, PodNamespace"),
        (
            "bind",
            {"PodName": "\ud800", "PodNamespace": "ns", "PodUID": "u", "Node": "a"},
            "PodName=\\ud800: expected a name of Kubernetes",
        ),
    ],
)  # fmt: skip
def test_a_call_that_no_scheduler_makes_gets_400_and_one_sentence(
    verb: str, body: object, sentence: str
) -> None:
    world = World()

    async def work() -> None:
        status, text = await world.post(verb, body)
        assert status == 400
        assert sentence in text
        assert text.count("\n") == 1
        assert "Traceback" not in text

    world.run(work)


def test_other_methods_and_paths_get_a_sentence() -> None:
    world = World()

    async def work() -> None:
        for verb in ("filter", "prioritize", "bind", "preempt"):
            status, text = await world.get(f"{PREFIX}/{verb}")
            assert (status, text) == (400, f"GET {PREFIX}/{verb}: expected POST\n")
        assert await world.get("/else") == (404, "/else: Not Found\n")

    world.run(work)


def test_an_internal_error_is_one_sentence_and_a_line_of_the_log() -> None:
    world = World()
    world.books = None  # type: ignore[assignment]

    async def work() -> None:
        status, text = await world.post("filter", {"Pod": pod("p"), "NodeNames": ["a"]})
        assert status == 500
        assert text.startswith("internal error: AttributeError")
        assert text.count("\n") == 1
        assert world.log[0][0] == "call_failed"

    world.run(work)


def test_nothing_is_answered_before_nodes_and_pods_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "BEGINNING", 0.0)
    world = World()
    world.missing = "the API server has not listed pods yet"

    async def work() -> None:
        for verb, more in (
            ("filter", {"NodeNames": ["a"]}),
            ("prioritize", {"NodeNames": ["a"]}),
            ("preempt", {"NodeNameToMetaVictims": {"a": {}}}),
        ):
            status, text = await world.post(verb, {"Pod": pod("p"), **more})
            assert (status, text) == (503, f"{world.missing}\n")
        assert await world.bind(pod("p")) == world.missing
        assert await world.get("/readyz") == (503, f"{world.missing}\n")
        assert await world.get("/healthz") == (200, "alive\n")
        world.missing = ""
        assert await world.get("/readyz") == (200, "ready\n")

    world.run(work)


def test_published_tools_read_nodes_gpus_and_pods() -> None:
    world = World(pod("p"))

    async def work() -> None:
        await world.filter(pod("waits", 2), ("b",))
        await world.bind(pod("p"), "b")
        shown = {
            "name": "b",
            "totalGPU": 30,
            "usedGPU": 10,
            "devs": [
                {
                    "id": 0,
                    "totalGPU": 15,
                    "usedGPU": 10,
                    "pods": [
                        {"name": "p", "namespace": "ns", "usedGPU": 8},
                        {"name": "waits", "namespace": "ns", "usedGPU": 2},
                    ],
                },
                {"id": 1, "totalGPU": 15, "usedGPU": 0, "pods": []},
            ],
        }
        status, text = await world.get(f"{PREFIX}/inspect/b")
        assert (status, json.loads(text)) == (200, {"nodes": [shown]})
        status, text = await world.get(f"{PREFIX}/inspect")
        assert [each["name"] for each in json.loads(text)["nodes"]] == ["a", "b"]
        status, text = await world.get(f"{PREFIX}/inspect/x")
        assert (status, list(json.loads(text))) == (404, ["error"])
        assert "version" in (await world.get("/version"))[1]

    world.run(work)


def test_metrics_show_gpus_what_fits_and_what_is_reserved() -> None:
    world = World(pod("p"))

    async def work() -> None:
        await world.filter(pod("q", 15), ("a",))
        await world.bind(pod("p"), "a")
        page = (await world.get("/metrics"))[1]
        for line in (
            'cgpu_cluster_gpu_units{gpu="0",node="a",uuid="GPU-a-0"} 15.0',
            'cgpu_cluster_gpu_allocated_units{gpu="0",node="a",uuid="GPU-a-0"} 15.0',
            'cgpu_cluster_largest_fit_units{mode="cgpu"} 15.0',
            'cgpu_extender_reservations{state="chosen"} 1.0',
            'cgpu_extender_reservations{state="sent"} 1.0',
            'cgpu_extender_call_seconds_count{verb="filter"} 1.0',
        ):
            assert line in page
        assert 'cgpu_extender_watch_silence_seconds{kind="pods"}' in page
        assert 'kind="nodes"' not in page

    world.run(work)


def test_the_page_of_metrics_is_written_beside_the_schedulers_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is long in a large cluster; what it shows was read at once, where the books change."""
    world, threads = World(pod("p")), set[bool]()

    def page(registry: CollectorRegistry) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        world.books.nodes_listed([])  # a change that it must not see
        return generate_latest(registry)

    monkeypatch.setattr(server, "generate_latest", page)

    async def work() -> None:
        assert 'uuid="GPU-a-0"' in (await world.get("/metrics"))[1]

    world.run(work)
    assert threads == {False}


def lease(holder: str, renewal: str) -> Json:
    """A lease that was renewed at this second."""
    when = f"2026-11-23T21:54:{int(renewal):02}.000000Z"
    return {"spec": {"holderIdentity": holder, "renewTime": when}}


def test_nothing_is_bound_unless_our_scheduler_renews_its_lease() -> None:
    fence = Fence("host-1")
    assert "nobody does" in fence.problem(0)
    assert fence.lease(lease("host-1_x", "1"), 0)
    assert "no renewal of the lease of host-1_x has been seen yet" in fence.problem(0)
    assert not fence.lease(lease("host-1_x", "1"), 1)  # the same again is no renewal
    assert fence.problem(1)
    assert not fence.lease(lease("host-1_x", "2"), 2)
    assert fence.problem(2 + PATIENCE) == ""
    assert "has not renewed its lease for 11 s" in fence.problem(3 + PATIENCE)
    fence.lease(lease("host-1_x", "20"), 20)
    assert fence.problem(20) == ""
    assert not fence.lease(lease("host-10_x", "21"), 21)
    assert "host-1 does not lead, host-10_x does" in fence.problem(21)
    assert fence.lease(lease("host-1_y", "22"), 22)
    fence.gone()
    assert "nobody does" in fence.problem(22)
    assert fence.lease(lease("host-1_y", "23"), 23)


def test_a_renewal_that_is_seen_late_is_as_old_as_it_is() -> None:
    """As one that an extender reads first when it goes on after it was stopped."""
    fence = Fence("host-1")
    for second in range(4):
        fence.lease(lease("host-1_x", str(second)), 100 + second)
    fence.lease(lease("host-1_x", "4"), 100 + 4 + PATIENCE + 1)
    assert "has not renewed its lease for 11 s" in fence.problem(100 + 4 + PATIENCE + 1)
    fence.lease(lease("host-1_x", "16"), 100 + 16)
    assert fence.problem(100 + 16) == ""
    with pytest.raises(ObjectError, match="renewTime=soon: expected a time"):
        fence.lease({"spec": {"holderIdentity": "host-1_x", "renewTime": "soon"}}, 117)
    assert fence.problem(117 + PATIENCE)


def test_a_fenced_extender_answers_filter_and_refuses_to_bind() -> None:
    given = pod("p")
    world = World(given)
    world.fence = Fence("host-1")

    async def work() -> None:
        assert (await world.filter(given))["NodeNames"] == ["a", "b"]
        assert "host-1 does not lead" in await world.bind(given)
        assert world.server.calls == []

    world.run(work)


def test_an_extender_that_was_stopped_within_a_call_sends_nothing_when_it_goes_on() -> None:
    world = World(pod("p"))
    fence = world.fence = Fence("host-1")
    fence.lease(lease("host-1_x", "1"), time.monotonic())
    fence.lease(lease("host-1_x", "2"), time.monotonic())
    world.server.stop = fence.gone

    async def work() -> None:
        assert "host-1 does not lead" in await world.bind(pod("p"))
        assert world.server.bindings == []
        assert world.taken() == {}

    world.run(work)


def test_calls_wait_for_what_a_new_leader_lacks_instead_of_failing() -> None:
    """A pod whose call fails may be tried again only a minute later."""
    given = pod("p")
    world = World(given)
    world.fence = Fence("host-1")
    world.fence.lease(lease("host-1_x", "1"), 0)
    world.missing = "the API server has not listed pods yet"

    async def work() -> None:
        filtered = asyncio.ensure_future(world.filter(given))
        await asyncio.sleep(3 * server.LOOK)
        assert not filtered.done()
        world.missing = ""
        assert (await filtered)["NodeNames"] == ["a", "b"]
        bound = asyncio.ensure_future(world.bind(given))
        await asyncio.sleep(3 * server.LOOK)
        assert not bound.done()
        assert world.fence is not None
        world.fence.lease(lease("host-1_x", "2"), time.monotonic())
        assert await bound == ""

    world.run(work)
