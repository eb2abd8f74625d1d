"""Templates are there for pods that wait for them, and go when none names them. DRA-6."""

from __future__ import annotations

import asyncio

import pytest

from cgpu_k8s.apiserver.resources import CLAIM_TEMPLATES, PODS
from cgpu_k8s.dra.template_keeper import KEPT, TemplateKeeper
from cgpu_k8s.dra.templates import ClaimShape, make_template
from lab.cluster.in_memory import REFUSED
from lab.cluster.template_lab import SHARE, SOON, WIDE, keep
from lab.cluster.template_lab import TemplateWorld as World
from lab.kubernetes.objects import pod
from lab.kubernetes.store import KINDS, Key

pytestmark = pytest.mark.unit


class Counting(TemplateKeeper):
    """Counts how often it looks for what is due."""

    looks = 0

    async def _reconcile(self) -> float | None:
        Counting.looks += 1
        return await super()._reconcile()


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
    """Also by a name that one of ours would have, or with its label."""

    async def work(world: World) -> None:
        theirs, labelled = make_template(ClaimShape(2048)), make_template(ClaimShape(2048))
        del theirs["metadata"]["labels"]
        labelled["metadata"]["name"] = "theirs"
        for item in (theirs, labelled):
            world.create(CLAIM_TEMPLATES, item, "ml")
        await asyncio.sleep(SOON)
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        world.delete(PODS, "one")
        await asyncio.sleep(2 * KEPT)
        assert world.templates() == [f"ml/{SHARE}", "ml/theirs"]
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
