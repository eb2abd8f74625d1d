"""An extender that answers over HTTP, beside an API server that loses replies and refuses."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from aiohttp.test_utils import TestClient, TestServer

from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.apiserver.errors import ApiError, ConfigurationError, ConflictError, NotFoundError
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.leader_lease import LeaderLease
from cgpu_k8s.scheduler.server import Extender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Json = dict[str, Any]
PREFIX = "/gpushare-scheduler"


def node(name: str, mode: str = "cgpu", gpus: int = 2, **labels: str) -> Json:
    facts = [OfferedGpu(f"GPU-{name}-{n}", n, 16160) for n in range(gpus)]
    return {
        "metadata": {
            "name": name,
            "labels": {"ack.node.gpu.schedule": mode, **labels},
            "annotations": {"cgpu/gpus": write_facts(mode, facts)},
        }
    }


def pod(name: str, mem: object = 8, *, uid: str = "", **labels: str) -> Json:
    limits = {"aliyun.com/gpu-mem": str(mem)} if mem else {"cpu": "1"}
    about = {"labels": labels, "creationTimestamp": "2026-02-01T00:00:00Z"} if labels else {}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", **about},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }


def policy(*units: Json, name: str = "rule", **spec: Any) -> Json:
    """A ResourcePolicy; ``created``: when."""
    created = spec.pop("created", "2026-01-01T00:00:00Z")
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    return {"metadata": meta, "spec": {"units": list(units), **spec}}


class Server:
    """Pods as the API server has them; ``faults``: what happens to the next bindings."""

    def __init__(self, *pods: Json) -> None:
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.faults: list[tuple[str, ApiError | ConfigurationError]] = []
        self.patch_faults: list[ApiError] = []
        self.unpatchable: dict[str, ApiError] = {}  # by name of the pod
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

    async def patch(
        self, path: str, body: Json, kind: str, before: Callable[[], None] | None = None
    ) -> Json:
        await asyncio.sleep(0)
        assert kind == MERGE
        if before:
            before()
        self.calls.append(f"PATCH {path}")
        if self.patch_faults:
            raise self.patch_faults.pop(0)
        name = path.rpartition("/")[2]
        if name in self.unpatchable:
            raise self.unpatchable[name]
        found = self.pods[name]
        for part in ("labels", "annotations"):
            merged = {**found["metadata"].get(part, {}), **body["metadata"].get(part, {})}
            found["metadata"][part] = {key: value for key, value in merged.items() if value}
        return found

    def land(self, body: Json) -> None:
        found = self.pods[body["metadata"]["name"]]
        found["spec"]["nodeName"] = body["target"]["name"]
        notes = found["metadata"].setdefault("annotations", {})
        notes.update(body["metadata"]["annotations"])


class World:
    """Books, an API server, and an extender that answers over HTTP."""

    def __init__(self, *pods: Json, nodes: tuple[str, ...] = ("a", "b")) -> None:
        self.cache = SchedulerCache()
        self.cache.replace_nodes(read_node(node(name)) for name in nodes)
        self.server = Server(*pods)
        self.missing = ""
        self.leader_lease: LeaderLease | None = None
        self.log: list[tuple[str, dict[str, object]]] = []
        self.http: TestClient[Any, Any]
        self.extender: Extender

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def serve() -> None:
            self.extender = Extender(
                self.cache,
                self.server,
                self.leader_lease,
                lambda: self.missing,
                lambda: {"pods": 1.0, "nodes": None},
                lambda event, fields: self.log.append((event, fields)),
            )
            async with TestClient(TestServer(self.extender.make_application())) as self.http:
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
        return {name: set(each.taken) for name, each in self.cache.nodes.items() if each.taken}
