"""K8S-15, K8S-16: the guard's HTTP server: its routes, pods that it reads, calls of nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from cgpu_k8s.admission import server
from cgpu_k8s.admission.server import LONGEST, Guard
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.apiserver.errors import ApiError, NoAnswerError, NotFoundError
from lab.kubernetes.manifests import pod

pytestmark = pytest.mark.unit

WORD = "0123456789abcdef" * 2
SCHEDULER = "system:serviceaccount:cgpu-system:cgpu-scheduler"
AGENT = "system:serviceaccount:cgpu-system:cgpu-agent"


class Api:
    """An API server with one pod, or one error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


def ask(path: str, data: bytes, api: Api | None = None, method: str = "POST") -> tuple[int, str]:
    """The status and text of an answer."""

    async def work() -> tuple[int, str]:
        settings = Settings((SCHEDULER,), AGENT)
        guard = Guard(settings, api or Api({}), lambda *_: None, lambda: ("", WORD))
        async with TestClient(TestServer(guard.make_application())) as client:
            response = await client.request(method, path, data=data)
            return response.status, await response.text()

    return asyncio.run(work())


def body(item: Any, part: str = "", user: str = "alice") -> bytes:
    request = {
        "uid": "u-1",
        "resource": {"resource": "pods"},
        "subResource": part,
        "namespace": "ml",
        "name": "p",
        "operation": "CREATE",
        "userInfo": {"username": user},
        "object": item,
    }
    kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps({**kind, "request": request}).encode()


BINDING = {"metadata": {"name": "p"}, "target": {"name": "gpu-a"}}


def allowed(answer: tuple[int, str]) -> bool:
    assert answer[0] == 200
    return bool(json.loads(answer[1])["response"]["allowed"])


def test_the_pod_of_a_binding_is_looked_up_unless_the_scheduler_binds_it() -> None:
    api = Api(pod("p", 2))
    assert not allowed(ask(f"/{WORD}/validate", body(BINDING, "binding"), api))
    assert api.asked == ["/api/v1/namespaces/ml/pods/p"]
    assert allowed(ask(f"/{WORD}/validate", body(BINDING, "binding", SCHEDULER), api))
    assert allowed(ask(f"/{WORD}/validate", body(pod("p", 2)), api))
    assert len(api.asked) == 1


def test_a_binding_whose_pod_cannot_be_read_is_not_let_in() -> None:
    status, text = ask(
        f"/{WORD}/validate", body(BINDING, "binding"), Api(NoAnswerError("no answer"))
    )
    assert (status, text) == (500, "pod ml/p cannot be read: no answer\n")
    assert allowed(ask(f"/{WORD}/validate", body(BINDING, "binding"), Api(NotFoundError("gone"))))
    api = Api({"items": []})  # a list of pods, which is at the path of no name
    nameless = body({}, "binding").replace(b'"name": "p"', b'"name": ""')
    assert ask(f"/{WORD}/validate", nameless, api)[0] == 400
    assert not api.asked


def change(name: str = "", uid: str = "", user: str = AGENT) -> bytes:
    """An agent's change of node gpu-a, by a token that is bound to a pod."""
    about = {f"authentication.kubernetes.io/pod-{key}": [value]
             for key, value in {"name": name, "uid": uid}.items() if value}  # fmt: skip
    node = {"metadata": {"name": "gpu-a"}, "spec": {}, "status": {}}
    asked = json.loads(body({**node, "metadata": {"name": "gpu-a", "generation": 2}}, user=user))
    asked["request"] |= {"resource": {"resource": "nodes"}, "operation": "UPDATE",
                         "namespace": "", "name": "gpu-a", "oldObject": node,
                         "userInfo": {"username": user, "extra": about}}  # fmt: skip
    return json.dumps(asked).encode()


def agent_on(node: str) -> Api:
    return Api({"metadata": {"name": "agent-1", "uid": "u-7"}, "spec": {"nodeName": node}})


def test_k8s_16_the_node_of_an_agents_token_is_that_of_its_pod() -> None:
    api = agent_on("gpu-a")
    assert allowed(ask(f"/{WORD}/mutate", change("agent-1", "u-7"), api))
    assert api.asked == ["/api/v1/namespaces/cgpu-system/pods/agent-1"]
    for data, other in (
        (change("agent-1", "u-7"), agent_on("gpu-b")),
        (change("agent-1", "u-7"), agent_on("")),
        (change("agent-1", "u-8"), agent_on("gpu-a")),  # another pod of the same name
        (change("agent-1"), agent_on("gpu-a")),
        (change(), agent_on("gpu-a")),  # a token that is bound to nothing
        (change("agent-1", "u-7"), Api(NotFoundError("gone"))),
    ):
        assert not allowed(ask(f"/{WORD}/mutate", data, other))
    status, text = ask(f"/{WORD}/mutate", change("agent-1", "u-7"), Api(NoAnswerError("no answer")))
    assert (status, text) == (500, "pod cgpu-system/agent-1 cannot be read: no answer\n")


def test_k8s_16_nothing_is_looked_up_for_a_kubelets_change() -> None:
    api = agent_on("gpu-b")
    assert allowed(ask(f"/{WORD}/mutate", change("agent-1", "u-7", "system:node:gpu-a"), api))
    assert not api.asked


def test_k8s_15_a_review_of_the_largest_objects_is_read() -> None:
    """An API server writes "<" as six bytes; before 1.28 it lets in what no guard answers."""
    data = json.loads(change("agent-1", "u-7"))
    for key in ("object", "oldObject"):
        data["request"][key]["status"] = {"images": [{"names": ["<" * (3 << 19)]}]}
    largest = json.dumps(data).replace("<", "\\u003c").encode()
    assert allowed(ask(f"/{WORD}/mutate", largest, agent_on("gpu-a")))
    assert not allowed(ask(f"/{WORD}/mutate", largest, agent_on("gpu-b")))


def test_k8s_15_a_review_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one who has found the path."""

    async def work() -> bytes:
        guard = Guard(Settings((SCHEDULER,), AGENT), Api({}), lambda *_: None, lambda: ("", WORD))
        async with TestServer(guard.make_application()) as served:
            reader, writer = await asyncio.open_connection(served.host, served.port)
            head = f"POST /{WORD}/validate HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{{"
            writer.write(head.encode())
            answer = await reader.readuntil(b"AdmissionReview\n")
            writer.close()
            return answer

    monkeypatch.setattr(server, "PATIENCE", 0.01)
    assert asyncio.run(asyncio.wait_for(work(), 60)).startswith(b"HTTP/1.1 400 ")


def test_new_pods_are_changed() -> None:
    item = pod("p", 2)
    del item["spec"]["schedulerName"]
    status, text = ask(f"/{WORD}/mutate", body(item))
    assert status == 200
    assert json.loads(text)["response"]["patchType"] == "JSONPatch"


def test_other_calls_get_one_sentence() -> None:
    for path in (f"/{WORD}/validate", f"/{WORD}/mutate"):
        for data in (b"", b"{", b"[]", body("x"), b" " * (LONGEST + 1)):
            status, text = ask(path, data)
            assert status == 400
            assert text.count("\n") == 1
        assert ask(path, b"", method="GET")[0] == 405
    assert ask("/other", b"")[0] == 404
    assert ask("/healthz", b"", method="GET") == (200, "ok\n")


@pytest.mark.parametrize("path", ["/validate", "/x/mutate", f"/{WORD[:-1]}/mutate"])
def test_who_does_not_know_the_path_is_told_nothing(path: str) -> None:
    """K8S-15: nothing is parsed, and no pod is looked up."""
    api = Api(pod("p", 2))
    for data in (body(BINDING, "binding"), b"{"):
        assert ask(path, data, api)[0] == 404
    assert not api.asked


def test_a_guard_without_a_word_answers_nobody() -> None:
    async def work() -> int:
        guard = Guard(Settings((SCHEDULER,), AGENT), Api({}), lambda *_: None, lambda: ("", ""))
        async with TestClient(TestServer(guard.make_application())) as client:
            return (await client.post("/x/validate", data=body(BINDING, "binding"))).status

    assert asyncio.run(work()) == 404
