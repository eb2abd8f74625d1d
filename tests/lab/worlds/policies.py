"""A cache of policies, the controller that writes what follows, and what both are asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.apiserver.errors import ApiError, InvalidError, NotFoundError
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderArgs
from cgpu_k8s.scheduler.policies.policy_controller import PolicyController
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.scheduling import Scheduling
from lab.worlds.extender import pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.pods import Pod

Json = dict[str, Any]
COST = "controller.kubernetes.io/pod-deletion-cost"
PODS = "/api/v1/namespaces/ns/pods"
RULE = "/apis/scheduling.alibabacloud.com/v1alpha1/namespaces/ns/resourcepolicies"


def unit(pool: str, **more: Any) -> Json:
    """A unit of the nodes of a pool."""
    return {"nodeSelector": {"pool": pool}, **more}


class World:
    """A cache, a controller, and an API server that takes every write down and makes it seen."""

    def __init__(self, *policies: Json) -> None:
        self.cache = SchedulerCache()
        self.policies = self.cache.policies
        for name in "abc":
            self.policies.update_node(name, {"pool": name})
        self.items = {f"{RULE}/{each['metadata']['name']}": each for each in policies}
        self.policies.replace_policies(map(read_known_policy, policies))
        self.cache.replace_pods([])
        self.writes: list[tuple[str, Json]] = []
        self.reads = 0
        self.fault: ApiError | None = None
        self.unpatchable: set[str] = set()  # names of pods and policies
        self.meanwhile: Callable[[], None] = lambda: None
        self.problem, self.now = "", 0.0
        self.log: list[str] = []
        self.controller = PolicyController(
            self,
            self.policies,
            lambda: self.problem,
            lambda event, _: self.log.append(event),
            lambda: self.now,
        )
        self.scheduling = Scheduling(self.cache, clock=lambda: self.now)

    def add(self, name: str, node: str = "", *, created: int = 0, **meta: Any) -> None:
        """Create a pod, and let it be seen."""
        given = pod(name, None, app="x")
        given["metadata"]["creationTimestamp"] = f"2026-02-01T00:00:{created:02}Z"
        given["metadata"].update(meta)
        given["spec"]["nodeName"] = node
        self.items[f"{PODS}/{name}"] = given
        self.cache.update_pod(read_pod(given))

    def pod(self, name: str) -> Pod:
        """The pod as the scheduler has it."""
        return read_pod(self.items[f"{PODS}/{name}"])

    def ask(self, name: str, *nodes: str) -> list[str]:
        """Which of these nodes the pod may have."""
        answer = self.scheduling.filter(ExtenderArgs(self.pod(name), [*nodes], None))
        found: list[str] = answer["NodeNames"]
        return found

    async def get(self, path: str) -> Json:
        """An object of the API server."""
        self.reads += 1
        if path not in self.items:
            raise NotFoundError("none", status=404)
        return self.items[path]

    async def post(self, path: str, body: Json, before: Callable[[], None]) -> Json:
        """Create an event."""
        before()
        self.writes.append((path, body))
        return body

    async def patch(self, path: str, body: Json, kind: str, before: Callable[[], None]) -> Json:
        """Change a pod, or the status of a policy."""
        assert kind == MERGE
        before()
        self.meanwhile()
        if self.fault:
            raise self.fault
        if path.removesuffix("/status").rpartition("/")[2] in self.unpatchable:
            raise InvalidError("Too long", status=422)
        item = await self.get(path.removesuffix("/status"))
        assert body["metadata"]["uid"] == item["metadata"]["uid"]
        self.writes.append((path, body))
        if path.endswith("/status"):
            item["status"] = body["status"]
            self.policies.update_policy(read_known_policy(item))
        else:
            have = item["metadata"].setdefault("annotations", {})
            have.update(body["metadata"].get("annotations", {}))
            item["spec"].update(body.get("spec", {}))
            self.cache.update_pod(read_pod(item))
        return item

    def work(self, times: int = 1) -> list[tuple[str, Json]]:
        """What the controller writes, the last time."""
        for _ in range(times):
            self.writes = []
            asyncio.run(self.controller.write_changes())
        return self.writes

    def costs(self) -> dict[str, str]:
        """What pods cost to delete."""
        found = {name.rpartition("/")[2]: each for name, each in self.items.items()}
        notes = {name: each["metadata"].get("annotations", {}) for name, each in found.items()}
        return {name: each[COST] for name, each in notes.items() if COST in each}


__all__ = ["COST", "PODS", "RULE", "World", "unit"]
