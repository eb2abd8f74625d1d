"""Templates are there for pods that wait for them, and go when none names them. DRA-6."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import CLAIM_TEMPLATES, NAMESPACES, PODS
from cgpu_k8s.dra.template_keeper import KEPT, TemplateKeeper
from cgpu_k8s.dra.templates import ClaimShape, make_template
from lab.cluster.in_memory import REFUSED, InMemory
from lab.kubernetes.objects import pod
from lab.kubernetes.store import KINDS, Key, Kind, Refusal
from lab.runs import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.unit

Json = dict[str, Any]
SOON = 1.0  # seconds, in which all that is due is done
SHARE, WIDE = "cgpu-mem-2048", "cgpu-mem-4096-core-30-count-2"


class World:
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


class Counting(TemplateKeeper):
    """Counts how often it looks for what is due."""

    looks = 0

    async def _reconcile(self) -> bool:
        Counting.looks += 1
        return await super()._reconcile()


def keep(
    work: Callable[[World], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    replicas: int = 1,
    kind: type[TemplateKeeper] = TemplateKeeper,
) -> None:
    """Do some work while replicas keep the templates of a cluster."""

    async def run() -> None:
        world = World()
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


def test_a_template_is_made_in_the_namespace_of_a_pod_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        world.names("before", SHARE)
        await asyncio.sleep(SOON)
        assert world.templates() == [f"ml/{SHARE}"]
        world.names("wide", WIDE, "theirs", namespace="web")
        world.names("again", SHARE)
        await asyncio.sleep(SOON)
        assert world.templates() == [f"ml/{SHARE}", f"web/{WIDE}"]
        assert len(world.writes()) == 2
        [wide] = [
            each
            for each in world.api.items("resourceclaimtemplates")
            if each["metadata"]["name"] == WIDE
        ]
        assert wide["spec"] == make_template(ClaimShape(4096, 30, 2))["spec"]

    keep(work, monkeypatch)


def test_a_template_goes_some_minutes_after_the_last_pod_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        for name in ("one", "two"):
            world.names(name, SHARE)
        await asyncio.sleep(SOON)
        world.delete(PODS, "one")
        await asyncio.sleep(2 * KEPT)
        assert world.templates() == [f"ml/{SHARE}"]
        finish(world, "two")
        await asyncio.sleep(KEPT - SOON)
        assert world.templates() == [f"ml/{SHARE}"]
        await asyncio.sleep(2 * SOON)
        assert world.templates() == []
        assert world.writes() == [
            "POST ml/resourceclaimtemplates",
            f"DELETE ml/resourceclaimtemplates/{SHARE}",
        ]

    keep(work, monkeypatch)


def test_a_pod_that_comes_in_these_minutes_finds_its_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        world.delete(PODS, "one")
        await asyncio.sleep(KEPT / 2)
        world.names("two", SHARE)
        await asyncio.sleep(SOON)
        world.delete(PODS, "two")
        await asyncio.sleep(KEPT - SOON)
        assert world.templates() == [f"ml/{SHARE}"]
        await asyncio.sleep(2 * SOON)
        assert world.templates() == []

    keep(work, monkeypatch)


def test_a_template_that_is_taken_from_a_pod_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        world.delete(CLAIM_TEMPLATES, SHARE)
        await asyncio.sleep(SOON)
        assert world.templates() == [f"ml/{SHARE}"]

    keep(work, monkeypatch)


def test_templates_of_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a name that one of ours would have."""

    async def work(world: World) -> None:
        theirs = make_template(ClaimShape(2048))
        del theirs["metadata"]["labels"]
        world.create(CLAIM_TEMPLATES, theirs, "ml")
        await asyncio.sleep(SOON)
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        world.delete(PODS, "one")
        await asyncio.sleep(2 * KEPT)
        assert world.templates() == [f"ml/{SHARE}"]
        assert world.writes() == []

    keep(work, monkeypatch)


def test_replicas_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for number in range(5):
            world.names(f"p{number}", SHARE, WIDE)
        await asyncio.sleep(SOON)
        assert world.templates() == [f"ml/{SHARE}", f"ml/{WIDE}"]
        for number in range(5):
            world.delete(PODS, f"p{number}")
        await asyncio.sleep(KEPT + SOON)
        assert world.templates() == []
        assert len(world.writes()) <= 3 * 4  # at most one each
        assert not any(each.startswith("failed") for each in world.log)

    keep(work, monkeypatch, replicas=3)


def test_what_is_refused_is_tried_again_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        refused = True
        create = world.api.store.create

        def refuse(kind: Kind, namespace: str, body: Json) -> Json:
            if refused and kind.word == "ResourceClaimTemplate" and namespace == "ml":
                raise Refusal(403, "Forbidden", "no more than 0 of them")
            return create(kind, namespace, body)

        monkeypatch.setattr(world.api.store, "create", refuse)
        world.names("one", SHARE)
        await asyncio.sleep(60)
        tries = len(world.writes())
        assert 6 <= tries <= 40
        assert [each for each in world.log if "no more than 0" in each] == world.log
        assert len(world.log) == 1
        world.names("two", SHARE, namespace="web")
        await asyncio.sleep(SOON)
        assert world.templates() == [f"web/{SHARE}"]
        refused = False
        await asyncio.sleep(20)
        assert world.templates() == [f"ml/{SHARE}", f"web/{SHARE}"]

    keep(work, monkeypatch)


def test_pods_that_came_while_the_api_server_was_away_get_their_templates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        world.api.leave(REFUSED)
        world.names("two", WIDE)
        world.delete(PODS, "one")
        await asyncio.sleep(2 * KEPT)
        world.api.leave("")
        await asyncio.sleep(20)
        assert world.templates() == [f"ml/{SHARE}", f"ml/{WIDE}"]
        await asyncio.sleep(KEPT)
        assert world.templates() == [f"ml/{WIDE}"]

    keep(work, monkeypatch)


def test_nothing_is_asked_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        world.names("one", SHARE)
        world.create(PODS, pod("plain"), "ml")
        await asyncio.sleep(SOON)
        before = world.writes()
        world.create(PODS, pod("other"), "ml")
        await asyncio.sleep(10 * KEPT)
        assert world.writes() == before

    keep(work, monkeypatch)


def test_pods_that_change_in_other_ways_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        for number in range(10):
            world.names(f"p{number}", SHARE)
        world.create(PODS, pod("plain"), "ml")
        await asyncio.sleep(SOON)
        before = Counting.looks
        for name in ("p0", "p1", "plain"):
            key = Key(KINDS["", "pods"], "ml", name)
            status = {"status": {"phase": "Running"}}
            world.api.change(lambda store, at=key, sent=status: store.patch(at, sent, "status"))
            await asyncio.sleep(SOON)
        assert Counting.looks == before

    keep(work, monkeypatch, kind=Counting)


def finish(world: World, name: str) -> None:
    """Let a pod end."""
    key = Key(KINDS["", "pods"], "ml", name)
    status = {"status": {"phase": "Succeeded"}}
    world.api.change(lambda store: store.patch(key, status, "status"))
