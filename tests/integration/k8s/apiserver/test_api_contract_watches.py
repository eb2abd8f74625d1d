"""What cgpu relies on in lists and watches of an API server: of the fake one, and of the real one.

Each test runs against both, so that the fake does not drift.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cgpu_k8s.apiserver.watch import Listed
from lab.kubernetes.objects import binding, pod
from lab.worlds.contract import Json, Server, World, names, news, refused, tried

pytestmark = pytest.mark.integration


def test_a_list_in_pages_is_one_moment(server: Server) -> None:
    async def act(world: World) -> None:
        for name in ("a", "b", "c", "d", "e"):
            await world.client.post(world.pods, pod(name))
        found, versions = [], set()
        async for page in world.client.list_pages(world.pods, size=2):
            if not found:
                await world.client.delete(world.pod("e"))
                await world.client.post(world.pods, pod("f"))
            found.append([each["metadata"]["name"] for each in page.items])
            versions.add(page.version)
        assert found == [["a", "b"], ["c", "d"], ["e"]]
        assert len(versions) == 1
        assert await names(world, world.pods) == ["a", "b", "c", "d", "f"]

    tried(server, act)


def test_selectors_choose(server: Server) -> None:
    async def act(world: World) -> None:
        for name, labels in {"a": {"app": "x"}, "b": {"app": "y", "t": "1"}, "c": {}}.items():
            body = pod(name)
            body["metadata"]["labels"] = labels
            await world.client.post(world.pods, body)
        await world.client.post(world.pod("b", "binding"), binding("b", "gpu-a"))
        path = world.pods
        assert await names(world, path, fieldSelector="spec.nodeName=gpu-a") == ["b"]
        assert await names(world, path, fieldSelector="spec.nodeName=") == ["a", "c"]
        assert await names(world, path, fieldSelector="metadata.name!=a") == ["b", "c"]
        both = "status.phase!=Failed,status.phase!=Succeeded,spec.nodeName!=gpu-a"
        assert await names(world, path, fieldSelector=both) == ["a", "c"]
        assert await names(world, path, labelSelector="app=x") == ["a"]
        assert await names(world, path, labelSelector="app!=x") == ["b", "c"]
        assert await names(world, path, labelSelector="app in (x,y),t") == ["b"]
        assert await names(world, path, labelSelector="app notin (x, y)") == ["c"]
        assert await names(world, path, labelSelector="!app") == ["c"]
        error = await refused(world.client.list(path, {"fieldSelector": "spec.other=1"}))
        assert error.status == 400

    tried(server, act)


def test_a_watch_brings_every_change_in_order(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        await client.post(world.pods, pod("a"))
        async with aclosing(aiter(world.watch())) as events:
            first = await anext(events)
            assert isinstance(first, Listed)
            assert [each["metadata"]["name"] for each in first.items] == ["a"]
            await client.post(world.pods, pod("b"))
            change: Json = {"metadata": {"labels": {"x": "1"}}}
            for _ in range(2):  # the second changes nothing
                await client.patch(world.pod("a"), change)
            await client.delete(world.pod("b"))
            expected = [("ADDED", "b"), ("MODIFIED", "a"), ("MODIFIED", "b"), ("DELETED", "b")]
            assert await news(events, 4) == expected

    tried(server, act)


def test_a_watch_with_a_selector_sees_objects_come_and_go(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        await client.post(world.pods, pod("a"))
        watch = world.watch(fieldSelector="spec.nodeName=gpu-a", labelSelector="!gone")
        async with aclosing(aiter(watch)) as events:
            first = await anext(events)
            assert isinstance(first, Listed)
            assert first.items == []
            await client.post(world.pod("a", "binding"), binding("a", "gpu-a"))
            assert await news(events, 1) == [("ADDED", "a")]
            await client.patch(world.pod("a"), {"metadata": {"labels": {"gone": "1"}}})
            assert await news(events, 1) == [("DELETED", "a")]
            await client.patch(world.pod("a"), {"metadata": {"labels": {"gone": None}}})
            assert await news(events, 1) == [("ADDED", "a")]

    tried(server, act)


def test_a_watch_ends_in_time_and_before_that_comes_a_bookmark(server: Server) -> None:
    """Not in an idle cluster: where nothing of the kind has changed since, none comes."""

    async def act(world: World) -> None:
        made = await world.client.post(world.pods, pod("a"))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": made["metadata"]["resourceVersion"],
            "timeoutSeconds": "4",
        }
        found = []
        async with aclosing(world.client.stream_lines(world.pods, query, 10)) as lines:
            changing = asyncio.create_task(change(world))
            found = [each async for each in lines]
            await changing
        assert [each["type"] for each in found[:2]] == ["ADDED", "BOOKMARK"]
        assert {each["type"] for each in found[2:]} <= {"BOOKMARK"}  # some send two
        versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in found]
        assert versions == sorted(versions)

    async def change(world: World) -> None:
        await asyncio.sleep(0.5)  # the watch has begun
        await world.client.post(world.pods, pod("b"))

    tried(server, act)


def test_all_is_listed_again_when_the_version_is_forgotten(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        await client.post(world.pods, pod("a"))
        watch = world.watch()
        async with aclosing(aiter(watch)) as events:
            await anext(events)
            await client.delete(world.pod("a"))
            await client.post(world.pods, pod("b"))
            # The watch has read nothing of it yet, and does not while the server forgets.
            server.forget()
            found = []
            async for each in events:
                found.append(each)
                if isinstance(each, Listed):
                    break
            [listed] = [each for each in found if isinstance(each, Listed)]
            assert [each["metadata"]["name"] for each in listed.items] == ["b"]
        assert watch.lists == 2

    tried(server, act)
