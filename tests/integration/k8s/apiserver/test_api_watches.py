"""What a watch makes of an API server that fails, forgets, or says what means nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from cgpu_k8s.apiserver.client import Client
from cgpu_k8s.apiserver.errors import ApiError, ConfigurationError, GoneError, NoAnswerError
from cgpu_k8s.apiserver.watch import Changed, Listed, Pace, Watch
from lab.cluster.api import PODS, create, done, tried
from lab.containers.enclosure import wait_until
from lab.kubernetes.fake_server import FakeServer
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import pod, pod_path

pytestmark = pytest.mark.integration

Json = dict[str, Any]


@dataclass
class Seen:
    """A watch of all pods, with what it reported and how long it wanted to wait."""

    client: Client
    pace: Pace = field(default_factory=Pace)
    reported: list[ApiError | ConfigurationError] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Watch(
            self.client, PODS, name, pace=self.pace, report=self.reported.append, sleep=self.sleep
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def events(self) -> aclosing[AsyncGenerator[Listed[str] | Changed[str], None]]:
        return aclosing(aiter(self.watch))

    @property
    def kinds(self) -> list[type]:
        return [type(each) for each in self.reported]


def name(item: Json) -> str:
    return str(item["metadata"]["name"])


def change(kind: str, item: Json, version: int) -> Json:
    about = {**item["metadata"], "resourceVersion": str(version)}
    return {"type": kind, "object": {**item, "metadata": about}}


async def open_watch(fake: FakeServer) -> None:
    await asyncio.to_thread(wait_until, lambda: fake.watches, "a watch is open")


def test_a_watch_lists_again_when_a_page_is_gone(fake: FakeServer) -> None:
    async def act(client: Client) -> list[type]:
        await create(client)
        fake.fail(Fault("GET", status=410, reason="Expired"))
        seen = Seen(client)
        async with seen.events() as events:
            assert await anext(events) == Listed(["a"])
        return seen.kinds

    assert tried(fake, act) == [GoneError]


def test_a_watch_goes_on_after_half_a_line(fake: FakeServer) -> None:
    async def act(client: Client) -> Seen:
        seen = Seen(client)
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await done(lambda: (fake.send(b'{"type":"ADDED","obj'), fake.cut()))
            await create(client)
            assert await following == Changed("ADDED", "a")
        return seen

    seen = tried(fake, act)
    assert seen.kinds == [NoAnswerError]
    assert seen.watch.lists == 1


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[]\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"999"}}}\n',
        b'{"type":"OTHER","object":{"metadata":{"resourceVersion":"999","uid":"u"}}}\n',
        b'{"type":"ERROR","object":{"code":500,"message":"trouble"}}\n',
        b'{"type":"ERROR","object":null}\n',
    ],
)
def test_a_watch_goes_on_after_a_line_that_means_nothing(fake: FakeServer, line: bytes) -> None:
    async def act(client: Client) -> Seen:
        seen = Seen(client)
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await done(lambda: fake.send(line))
            await create(client)
            assert await following == Changed("ADDED", "a")
        return seen

    seen = tried(fake, act)
    assert len(seen.reported) == 1
    assert seen.watch.lists == 1


def test_a_watch_that_falls_silent_is_opened_again(fake: FakeServer) -> None:
    fake.fail(Fault("GET", path=".*watch.*", mute=True))

    async def act(client: Client) -> Seen:
        seen = Seen(client, Pace(length=0.1, silence=-0.8))
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await create(client)
            assert await following == Changed("ADDED", "a")
        return seen

    seen = tried(fake, act)
    assert seen.kinds == [NoAnswerError]
    assert seen.watch.lists == 1


def test_a_version_that_is_too_old_makes_it_list_again(fake: FakeServer) -> None:
    async def act(client: Client) -> Seen:
        await create(client)
        seen = Seen(client)
        async with seen.events() as events:
            assert await anext(events) == Listed(["a"])
            await client.delete(pod_path("a"))
            await client.post(PODS, pod("b"))
            await done(fake.forget)
            assert await anext(events) == Listed(["b"])
        return seen

    seen = tried(fake, act)
    assert seen.kinds == [GoneError]
    assert seen.watch.lists == 2


def test_events_that_come_twice_or_late_are_dropped(fake: FakeServer) -> None:
    async def act(client: Client) -> list[Changed[str] | Listed[str]]:
        item = await create(client)
        other = {**item, "metadata": {**item["metadata"], "name": "b", "uid": "other"}}
        first = int(item["metadata"]["resourceVersion"])
        sent = [
            change("MODIFIED", item, first + 12),
            change("MODIFIED", item, first + 12),
            change("MODIFIED", item, first + 11),
            change("ADDED", other, first + 10),
            change("DELETED", item, first + 13),
            change("DELETED", item, first + 13),
            change("MODIFIED", item, first + 12),
            change("MODIFIED", other, first + 14),
        ]
        seen = Seen(client)
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await done(lambda: fake.send(*sent))
            found = [await following]
            while len(found) < 4:
                found.append(await anext(events))
        assert seen.reported == []
        return found

    assert tried(fake, act) == [
        Changed("MODIFIED", "a"),
        Changed("ADDED", "b"),
        Changed("DELETED", "a"),
        Changed("MODIFIED", "b"),
    ]


def test_pauses_grow_while_the_api_server_fails_and_end_with_it(fake: FakeServer) -> None:
    fake.fail(Fault("GET", status=500, times=6))

    async def act(client: Client) -> Seen:
        seen = Seen(client, Pace(first=1.0, longest=8.0))
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await create(client)
            await following
            await done(fake.cut)
            await client.post(PODS, pod("b"))
            await anext(events)
        return seen

    seen = tried(fake, act)
    assert len(seen.pauses) == 7
    for pause, longest in zip(seen.pauses, (1, 2, 4, 8, 8, 8, 1), strict=True):
        assert longest / 2 <= pause <= longest


def test_the_api_server_says_how_long_to_wait(fake: FakeServer) -> None:
    fake.fail(Fault("GET", status=429, retry_after=33))

    async def act(client: Client) -> list[float]:
        seen = Seen(client)
        async with seen.events() as events:
            await anext(events)
        return seen.pauses

    assert tried(fake, act) == [33.0]


def test_a_watch_that_ends_at_once_is_not_opened_again_at_once(fake: FakeServer) -> None:
    fake.fail(Fault("GET", path=".*watch.*", times=5, status=200))

    async def act(client: Client) -> Seen:
        seen = Seen(client, Pace(first=1.0, longest=8.0))
        async with seen.events() as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await open_watch(fake)
            await create(client)
            await following
        return seen

    seen = tried(fake, act)
    assert len(seen.pauses) >= 4
    assert seen.pauses[-1] >= 4
