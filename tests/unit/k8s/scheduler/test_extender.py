"""The extender's answers to a scheduler over HTTP.

K8S-3.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import server
from lab.worlds.extender import PREFIX, World, node, pod

pytestmark = pytest.mark.unit


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
    world.cache.update_node(read_node(node("b", gpus=0)))

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
    world.cache.update_node(read_node(node("b", "core_mem")))
    world.cache.update_node(read_node(node("c", "coremem")))

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
        world.cache.update_pod(read_pod(pod("p", "1.5")))
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
    world.cache = None  # type: ignore[assignment]

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


@pytest.mark.parametrize("known", [True, False])
def test_a_refusal_waits_for_the_event_that_the_scheduler_has_heard_before_us(
    monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """K8S-3: asked again, or about a pod that no event has shown, it is behind the scheduler."""
    monkeypatch.setattr(server, "BEHIND", 60.0)
    given = pod("p")
    world = World(given, nodes=())
    world.cache.update_node(read_node(node("a", gpus=0)))

    async def work() -> None:
        if known:
            world.cache.update_pod(read_pod(given))
            assert (await world.filter(given, ("a",)))["NodeNames"] == []
        room = read_node(node("a"))
        asyncio.get_running_loop().call_later(0.02, world.cache.update_node, room)
        assert (await world.filter(given, ("a",)))["NodeNames"] == ["a"]

    world.run(work)


def test_a_first_refusal_and_all_but_one_a_second_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing frees room here: a call that waited would not return."""
    given = pod("p")
    world = World(given, nodes=())
    world.cache.update_node(read_node(node("a", gpus=0)))
    world.cache.update_pod(read_pod(given))

    async def work() -> None:
        monkeypatch.setattr(server, "BEHIND", 1e9)
        await world.filter(given, ("a",))
        monkeypatch.setattr(server, "BEHIND", 0.0)
        monkeypatch.setattr(server, "BETWEEN", 1e9)
        await world.filter(given, ("a",))
        monkeypatch.setattr(server, "BEHIND", 1e9)
        await world.filter(given, ("a",))

    world.run(work)


def test_a_pod_that_is_refused_after_its_wait_is_refused_at_what_is_known_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the next call would count as the first at this state, and be behind once more."""
    monkeypatch.setattr(server, "BEHIND", 60.0)
    given = pod("p", 16)
    world = World(given, nodes=())
    world.cache.update_node(read_node(node("a", gpus=0)))
    world.cache.update_pod(read_pod(given))

    async def work() -> None:
        await world.filter(given, ("a",))
        asyncio.get_running_loop().call_later(0.02, world.cache.update_node, read_node(node("a")))
        assert (await world.filter(given, ("a",)))["NodeNames"] == []
        assert world.cache.refused == {"uid-p": world.cache.freed}
        of = 'cgpu_extender_refused_nodes_total{reason="too-large"}'
        assert await world.metric(f"{of} 1.0")  # of the answer, not of what was known before
        assert await world.metric(of.replace("too-large", "too-few") + " 1.0")

    world.run(work)
