"""Neither what is refused nor what users put there keeps templates from other pods. DRA-6."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import CLAIM_TEMPLATES, NAMESPACES, PODS
from cgpu_k8s.dra.template_keeper import BATCH, KEPT, QUIET
from cgpu_k8s.dra.templates import MOST_NAMES, ClaimShape, make_template
from lab.cluster.template_lab import SHARE, SOON, keep
from lab.cluster.template_lab import TemplateWorld as World
from lab.kubernetes.store import Kind, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

Json = dict[str, Any]
MANY = [ClaimShape(1024 * gib).name for gib in range(3, 103)]


def refuse(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int = 403, reason: str = "Forbidden"
) -> Callable[[], None]:
    """Refuse templates in one namespace, each time in other words, until what this returns."""
    create, is_over, numbers = world.api.store.create, asyncio.Event(), itertools.count()

    def act(kind: Kind, namespace: str, body: Json) -> Json:
        if kind.word == "ResourceClaimTemplate" and namespace == "ml" and not is_over.is_set():
            raise Refusal(status, reason, f"no more than 0 of them, for the {next(numbers)}th time")
        return create(kind, namespace, body)

    monkeypatch.setattr(world.api.store, "create", act)
    return is_over.set


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (409, "Conflict")])
def test_what_is_refused_is_tried_again_and_said_once(
    monkeypatch: pytest.MonkeyPatch, status: int, reason: str
) -> None:
    """Also for a quota that others change meanwhile, which is a conflict."""

    async def work(world: World) -> None:
        end = refuse(world, monkeypatch, status, reason)
        world.names("one", SHARE)
        await asyncio.sleep(3 * QUIET)
        assert 6 <= len(world.writes()) <= 60
        [line] = world.log
        assert f"ml/{SHARE}" in line
        assert "no more than 0" in line
        world.names("two", SHARE, namespace="web")
        await asyncio.sleep(SOON)
        assert world.templates() == [f"web/{SHARE}"]
        end()
        await asyncio.sleep(20)
        assert world.templates() == [f"ml/{SHARE}", f"web/{SHARE}"]

    keep(work, monkeypatch)


def test_what_is_refused_waits_whatever_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        refuse(world, monkeypatch)
        world.names("one", SHARE)
        await asyncio.sleep(60)
        before = world.writes().count("POST ml/resourceclaimtemplates")
        for number, name in enumerate(MANY[:20]):
            world.names(f"p{number}", name, namespace="web")
            await asyncio.sleep(SOON / 20)
        assert len(world.templates()) == 20
        assert world.writes().count("POST ml/resourceclaimtemplates") <= before + 1

    keep(work, monkeypatch)


def test_a_failure_is_over_once_no_pod_needs_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        end = refuse(world, monkeypatch)
        world.names("one", SHARE)
        await asyncio.sleep(60)
        world.delete(PODS, "one")
        await asyncio.sleep(QUIET)
        before = len(world.writes())
        world.names("two", SHARE)
        await asyncio.sleep(SOON)
        assert len(world.log) == 2
        assert len(world.writes()) > before + 1  # with short pauses, as at first
        end()

    keep(work, monkeypatch)


def test_many_failures_in_a_namespace_are_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        refuse(world, monkeypatch)
        world.names("one", *MANY)
        await asyncio.sleep(SOON)
        assert len(world.log) == 1
        await asyncio.sleep(1.5 * QUIET)
        assert len(world.log) == 2 == len({line.partition("error")[0] for line in world.log})

    keep(work, monkeypatch)


def test_a_pod_has_no_more_templates_made_than_a_pod_may_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        world.names("one", "theirs", *MANY, *MANY)
        await asyncio.sleep(SOON)
        assert world.templates() == sorted(f"ml/{name}" for name in MANY[:MOST_NAMES])
        assert len(world.writes()) == MOST_NAMES

    keep(work, monkeypatch)


def test_no_namespace_holds_up_the_pods_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what nobody needs any more when its turn comes is not made."""

    async def work(world: World) -> None:
        post, number = world.api.post, itertools.count()

        async def act(path: str, body: Json) -> Json:
            if next(number) == BATCH // 2:
                world.names("other", SHARE, namespace="web")
            if f"web/{SHARE}" in world.templates() and "web" not in path:
                for name in ("one", "two"):
                    with contextlib.suppress(Refusal):
                        world.delete(PODS, name)
            await asyncio.sleep(0.01)  # in which watches go on
            return await post(path, body)

        monkeypatch.setattr(world.api, "post", act)
        world.names("one", *MANY[:50])
        world.names("two", *MANY[50:])
        await asyncio.sleep(5 * SOON)
        posts = [each for each in world.writes() if each.startswith("POST")]
        assert "web" in posts[BATCH]
        assert len(posts) == 2 * BATCH

    keep(work, monkeypatch)


def test_each_of_many_namespaces_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        spaces = [f"s{number:02}" for number in range(BATCH + 4)]
        for each in spaces:
            world.create(NAMESPACES, {"metadata": {"name": each}})
            world.names("one", *MANY[:3], namespace=each)
        await asyncio.sleep(SOON)
        first = [each.split()[1].split("/")[0] for each in world.writes()[: len(spaces)]]
        assert sorted(first) == spaces
        assert len(world.templates()) == 3 * len(spaces)

    keep(work, monkeypatch)


FORGED = make_template(ClaimShape(81920))["spec"]
SELECTED = copy.deepcopy(make_template(ClaimShape(2048))["spec"])
SELECTED["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.cgpu"}}]


@pytest.mark.parametrize("spec", [FORGED, SELECTED, {}, None])
def test_a_template_in_the_place_of_ours_is_named_and_stays(
    monkeypatch: pytest.MonkeyPatch, spec: Json | None
) -> None:
    async def work(world: World) -> None:
        world.create(CLAIM_TEMPLATES, {**make_template(ClaimShape(2048)), "spec": spec}, "ml")
        await asyncio.sleep(2 * KEPT)  # its label is ours
        world.names("one", SHARE)
        await asyncio.sleep(2 * KEPT)
        [line] = world.log
        assert f"ResourceClaimTemplate ml/{SHARE} has other content" in line
        assert "delete it" in line
        world.delete(PODS, "one")
        await asyncio.sleep(2 * KEPT)
        assert world.templates() == [f"ml/{SHARE}"]
        assert world.writes() == []
        world.names("two", SHARE)
        world.delete(CLAIM_TEMPLATES, SHARE)
        await asyncio.sleep(SOON)
        [made] = world.api.items("resourceclaimtemplates")
        assert made["spec"] == make_template(ClaimShape(2048))["spec"]

    keep(work, monkeypatch)


def test_claims_metadata_that_the_api_server_adds_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        ours = make_template(ClaimShape(2048))
        ours["spec"] = {"metadata": {}, **ours["spec"]}
        world.create(CLAIM_TEMPLATES, ours, "ml")
        world.names("one", SHARE)
        await asyncio.sleep(SOON)
        assert world.log == []
        world.delete(PODS, "one")
        await asyncio.sleep(KEPT + SOON)
        assert world.templates() == []

    keep(work, monkeypatch)
