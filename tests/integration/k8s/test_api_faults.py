"""What the client makes of an API server that fails, and of watches that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cgpu_k8s.api.client import Client, connected
from cgpu_k8s.api.cluster import Cluster, Fixed, TokenFile, bearer
from cgpu_k8s.api.configuration import load
from cgpu_k8s.api.errors import (
    ApiError,
    ConfigurationError,
    ForbiddenError,
    GoneError,
    LostError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from cgpu_k8s.api.resources import NODES
from cgpu_k8s.api.watch import Changed, Listed, Pace, Watch
from lab.containers.enclosure import wait_until
from lab.kubernetes.fake_server import FakeServer
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import binding, node, pod, pod_path, pods_path
from lab.kubernetes.store import KINDS, Store

pytestmark = pytest.mark.integration

T = TypeVar("T")
Json = dict[str, Any]
PODS = pods_path()
PATIENCE = 30.0


def tried(fake: FakeServer, act: Callable[[Client], Awaitable[T]], timeout: float = 10.0) -> T:
    async def run() -> T:
        async with connected(fake.cluster(), timeout=timeout) as client:
            return await asyncio.wait_for(act(client), PATIENCE)

    return asyncio.run(run())


def refused(
    fake: FakeServer, act: Callable[[Client], Awaitable[object]], timeout: float = 10.0
) -> ApiError:
    with pytest.raises(ApiError) as error:
        tried(fake, act, timeout)
    assert "\n" not in str(error.value)
    return error.value


def create(client: Client) -> Awaitable[Json]:
    return client.post(PODS, pod("a"))


def names(fake: FakeServer) -> list[str]:
    return [each["metadata"]["name"] for each in fake.items("pods")]


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


async def done(act: Callable[[], object]) -> None:
    """Do something to the fake, which answers from another thread."""
    await asyncio.to_thread(act)


@pytest.mark.parametrize(
    ("status", "kind", "sure"),
    [
        (403, ForbiddenError, True),
        (410, GoneError, True),
        (429, TooManyRequestsError, True),
        (500, ServerError, False),
        (503, ServerError, False),
        (504, ServerError, False),
        (418, ApiError, True),
    ],
)
def test_a_refusal_has_a_type_and_says_whether_the_write_may_have_happened(
    fake: FakeServer, status: int, kind: type, *, sure: bool
) -> None:
    fake.fail(Fault("POST", status=status, reason="Why", retry_after=7))
    error = refused(fake, create)
    assert type(error) is kind
    assert error.sure is sure
    assert (error.status, error.reason, error.retry_after) == (status, "Why", 7.0)
    assert f"POST {PODS} with {status}: as the test wants it" in str(error)


def test_a_write_whose_reply_is_dropped_may_have_happened(fake: FakeServer) -> None:
    fake.fail(Fault("POST", after=True))
    error = refused(fake, create)
    assert type(error) is LostError
    assert not error.sure
    assert names(fake) == ["a"]


def test_a_write_that_fails_after_it_was_done_may_have_happened(fake: FakeServer) -> None:
    tried(fake, create)
    fake.fail(Fault("POST", path=".*/binding", after=True, status=500))
    path = pod_path("a", "binding")
    error = refused(fake, lambda client: client.post(path, binding("a", "gpu-a")))
    assert type(error) is ServerError
    assert not error.sure
    assert fake.items("pods")[0]["spec"]["nodeName"] == "gpu-a"


def test_half_an_answer_is_none(fake: FakeServer) -> None:
    fake.fail(Fault("POST", half=True))
    assert type(refused(fake, create)) is LostError
    assert names(fake) == ["a"]


def test_an_answer_that_does_not_come_is_lost(fake: FakeServer) -> None:
    fake.fail(Fault("POST", mute=True))
    error = refused(fake, create, timeout=0.2)
    assert type(error) is LostError
    assert not error.sure
    assert names(fake) == ["a"]


def test_a_server_that_is_not_there_has_got_nothing(fake: FakeServer) -> None:
    cluster = fake.cluster()
    gone = Cluster("http://127.0.0.1:1", "the test", cluster.trust, cluster.credentials)

    async def act() -> None:
        async with connected(gone) as client:
            await create(client)

    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 \(the test\) cannot be reached"):
        asyncio.run(act())
    assert UnreachableError.sure


def test_what_is_no_json_is_no_answer(fake: FakeServer) -> None:
    fake.change(lambda store: setattr(store, "read", lambda _key: ["no object"]))
    error = refused(fake, lambda client: client.get(pod_path("a")))
    assert "is not a JSON object" in str(error)


@pytest.mark.parametrize("token", ["one\ntwo", "one\0two"])
def test_a_token_that_is_no_line_is_not_sent(fake: FakeServer, token: str) -> None:
    cluster = fake.cluster()
    wrong = Cluster(fake.address, "the test", cluster.trust, Fixed(bearer(token)))

    async def act() -> None:
        async with connected(wrong) as client:
            await create(client)

    with pytest.raises(ConfigurationError, match="token of the test has a control character"):
        asyncio.run(act())
    assert fake.calls == []


def test_a_host_that_has_no_name_for_dns_has_got_nothing(fake: FakeServer) -> None:
    cluster = fake.cluster()
    wrong = Cluster(f"http://{'a' * 300}", "the test", cluster.trust, cluster.credentials)

    async def act() -> None:
        async with connected(wrong) as client:
            await create(client)

    with pytest.raises(UnreachableError, match=r"\(the test\) cannot be reached: "):
        asyncio.run(act())


def test_a_token_that_was_replaced_is_read_again(fake: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    credentials = TokenFile(file)
    fake.tokens = {"old"}

    async def act() -> None:
        cluster = Cluster(fake.address, "the test", fake.cluster().trust, credentials)
        async with connected(cluster) as client:
            await client.list(PODS)
            fake.tokens = {"new"}
            with pytest.raises(UnauthorizedError):
                await client.list(PODS)
            file.write_text("new")
            await client.list(PODS)

    asyncio.run(act())
    assert len(fake.calls) == 3  # nothing is repeated with the same token


def test_a_plugin_is_asked_again_when_its_token_is_refused(
    fake: FakeServer, tmp_path: Path
) -> None:
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":'
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\necho '{answer}'{{'\"token\":\"'$(cat token)'\"'}}}}\n")
    program.chmod(0o755)
    (tmp_path / "token").write_text("one")
    plugin = f"{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {program}}}}}"
    kubeconfig = fake.kubeconfig(tmp_path / "config", "other")
    kubeconfig.write_text(kubeconfig.read_text().replace("\n    token: other", f" {plugin}"))
    fake.tokens = {"one"}

    async def act() -> None:
        async with connected(load(str(kubeconfig), environment={})) as client:
            await client.list(PODS)
            (tmp_path / "token").write_text("two")
            fake.tokens = {"two"}
            await client.list(PODS)

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        asyncio.run(act())
    assert len(fake.calls) == 3


def test_a_list_of_which_a_page_is_gone_says_so(fake: FakeServer) -> None:
    async def act(client: Client) -> None:
        for each in "abc":
            await client.post(PODS, pod(each))
        async for _page in client.pages(PODS, size=2):
            await done(fake.forget)

    assert type(refused(fake, act)) is GoneError


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
    assert seen.kinds == [LostError]
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
    assert seen.kinds == [LostError]
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


def test_a_large_list_is_read_page_by_page(fake: FakeServer) -> None:
    def fill(store: Store) -> None:
        for number in range(1201):
            store.create(KINDS["", "nodes"], "", node(f"n{number:04}"))

    fake.change(fill)

    async def act(client: Client) -> int:
        return len((await client.list(NODES.path())).items)

    assert tried(fake, act) == 1201
    assert len(fake.calls) == 3
