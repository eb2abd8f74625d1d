"""The guard's keeper of templates beside an API server in memory, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cgpu_k8s.apiserver.resources import NAMESPACES, PODS
from cgpu_k8s.dra.template_keeper import TemplateKeeper
from lab.cluster.in_memory import InMemory
from lab.kubernetes.objects import pod
from lab.kubernetes.store import KINDS, Key
from lab.runs import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

Json = dict[str, Any]
SOON = 1.0  # seconds, in which all that is due is done
SHARE, WIDE = "cgpu-mem-2048", "cgpu-mem-4096-core-30-count-2"


class TemplateWorld:
    """An API server with two namespaces, and replicas of the guard that keep templates."""

    def __init__(self) -> None:
        self.api, self.log = InMemory(), list[str]()
        for name in ("ml", "web"):
            self.create(NAMESPACES, {"metadata": {"name": name}})

    def create(self, resource: Any, item: Json, namespace: str = "") -> Json:
        kind = KINDS[resource.group, resource.plural]
        return self.api.change(lambda store: store.create(kind, namespace, item))

    def delete(self, resource: Any, name: str, namespace: str = "ml") -> None:
        key = Key(KINDS[resource.group, resource.plural], namespace, name)
        self.api.change(lambda store: store.delete(key, {}))

    def names(self, name: str, *templates: str, namespace: str = "ml") -> None:
        """Create a pod that names templates."""
        sources = [{"name": f"c{n}", "resourceClaimTemplateName": each}
                   for n, each in enumerate(templates)]  # fmt: skip
        self.create(PODS, pod(name, resourceClaims=sources), namespace)

    def templates(self) -> list[str]:
        found = self.api.items("resourceclaimtemplates")
        return sorted(
            f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found
        )

    def writes(self) -> list[str]:
        """What was asked for, whether it was carried out or not."""
        return [
            f"{each.method} {each.path.partition('/namespaces/')[2]}"
            for each in self.api.calls
            if each.method != "GET"
        ]


def keep(
    work: Callable[[TemplateWorld], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    replicas: int = 1,
    kind: type[TemplateKeeper] = TemplateKeeper,
) -> None:
    """Do some work while replicas keep the templates of a cluster."""

    async def run() -> None:
        world = TemplateWorld()
        client: Any = world.api
        tasks = [
            asyncio.ensure_future(
                kind(client, lambda event, fields: world.log.append(f"{event} {fields}")).run()
            )
            for _ in range(replicas)
        ]
        try:
            await work(world)
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    virtual_time.run(run(), monkeypatch)
