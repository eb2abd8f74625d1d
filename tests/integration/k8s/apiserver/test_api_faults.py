"""What the client makes of an API server that fails."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from cgpu_k8s.admission.certificates import Keys, renew_keys
from cgpu_k8s.apiserver.client import Client, open_client
from cgpu_k8s.apiserver.cluster import Cluster, Fixed, TokenFile, Trust, make_bearer
from cgpu_k8s.apiserver.configuration import load_cluster
from cgpu_k8s.apiserver.errors import (
    ApiError,
    ConfigurationError,
    ForbiddenError,
    GoneError,
    NoAnswerError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from cgpu_k8s.apiserver.resources import NODES
from lab.cluster.api import PODS, create, done, tried
from lab.kubernetes.fake_server import FakeServer
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import binding, node, pod, pod_path
from lab.kubernetes.store import KINDS, Store

pytestmark = pytest.mark.integration


def refused(
    fake: FakeServer, act: Callable[[Client], Awaitable[object]], timeout: float = 10.0
) -> ApiError:
    with pytest.raises(ApiError) as error:
        tried(fake, act, timeout)
    assert "\n" not in str(error.value)
    return error.value


def names(fake: FakeServer) -> list[str]:
    return [each["metadata"]["name"] for each in fake.items("pods")]


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
    assert type(error) is NoAnswerError
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
    assert type(refused(fake, create)) is NoAnswerError
    assert names(fake) == ["a"]


def test_an_answer_that_does_not_come_is_lost(fake: FakeServer) -> None:
    fake.fail(Fault("POST", mute=True))
    error = refused(fake, create, timeout=0.2)
    assert type(error) is NoAnswerError
    assert not error.sure
    assert names(fake) == ["a"]


def test_a_server_that_is_not_there_has_got_nothing(fake: FakeServer) -> None:
    cluster = fake.cluster()
    gone = Cluster("http://127.0.0.1:1", "the test", cluster.trust, cluster.credentials)

    async def act() -> None:
        async with open_client(gone) as client:
            await create(client)

    with pytest.raises(UnreachableError) as error:
        asyncio.run(act())
    server = "the API server http://127.0.0.1:1 (the test)"
    assert str(error.value) == f"{server} cannot be reached: Connection refused"
    assert error.value.hint == "check that it runs, and that its address in the test is right"
    assert UnreachableError.sure


def test_a_server_that_hangs_up_is_named_without_the_kernels_number(fake: FakeServer) -> None:
    """As a load balancer does that has no server behind it."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def act() -> None:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            right = fake.cluster()
            where = Cluster(f"http://127.0.0.1:{port}", "the test", right.trust, right.credentials)
            async with open_client(where) as client:
                await create(client)

    with pytest.raises(NoAnswerError) as error:
        asyncio.run(act())
    assert str(error.value).endswith(" does not come: Connection reset by peer")


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_server_that_is_not_the_one_of_the_kubeconfig_is_named_in_words(
    fake: FakeServer, tmp_path: Path, *, speaks_tls: bool
) -> None:
    """Its certificate is another's, or it speaks no TLS."""
    keys = renew_keys(Keys(), "127.0.0.1", datetime.now(timezone.utc))
    (tmp_path / "pem").write_bytes(keys.chain + keys.key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "pem")

    async def act() -> None:
        async with await asyncio.start_server(
            lambda _, writer: writer.write(b"no TLS\n" * 9),
            *("127.0.0.1", 0),
            ssl=server if speaks_tls else None,
        ) as listener:
            address = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            other = Cluster(address, "the test", Trust(), fake.cluster().credentials)
            async with open_client(other) as client:
                await create(client)

    with pytest.raises(UnreachableError) as error:
        asyncio.run(act())
    assert " cannot be reached: TLS: " in str(error.value)
    assert "SSL" not in str(error.value)
    assert "_ssl" not in str(error.value)
    wrong = "certificate-authority" if speaks_tls else "address"
    assert error.value.hint == f"check that it runs, and that its {wrong} in the test is right"


def test_what_is_no_json_is_no_answer(fake: FakeServer) -> None:
    fake.change(lambda store: setattr(store, "read", lambda _key: ["no object"]))
    error = refused(fake, lambda client: client.get(pod_path("a")))
    assert "is not a JSON object" in str(error)


def test_what_users_nest_deeply_is_read_all_the_same(fake: FakeServer) -> None:
    """Parameters of a claim, say: else one user's would stop all that list claims."""
    nested = "[" * 5000 + "]" * 5000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = f'{{"kind": "ResourceClaim", "parameters": {nested}}}'
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async def act() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        cluster = Cluster(f"http://{host}:{port}", "the test", Trust(), fake.cluster().credentials)
        async with server, open_client(cluster) as client:
            assert (await client.get(NODES.path()))["kind"] == "ResourceClaim"

    asyncio.run(act())


@pytest.mark.parametrize("token", ["one\ntwo", "one\0two"])
def test_a_token_that_is_no_line_is_not_sent(fake: FakeServer, token: str) -> None:
    cluster = fake.cluster()
    wrong = Cluster(fake.address, "the test", cluster.trust, Fixed(make_bearer(token)))

    async def act() -> None:
        async with open_client(wrong) as client:
            await create(client)

    with pytest.raises(ConfigurationError, match="token of the test has a control character"):
        asyncio.run(act())
    assert fake.calls == []


def test_a_host_that_has_no_name_for_dns_has_got_nothing(fake: FakeServer) -> None:
    cluster = fake.cluster()
    wrong = Cluster(f"http://{'a' * 300}", "the test", cluster.trust, cluster.credentials)

    async def act() -> None:
        async with open_client(wrong) as client:
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
        async with open_client(cluster) as client:
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
        async with open_client(load_cluster(str(kubeconfig), environment={})) as client:
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
        async for _page in client.list_pages(PODS, size=2):
            await done(fake.forget)

    assert type(refused(fake, act)) is GoneError


def test_a_large_list_is_read_page_by_page(fake: FakeServer) -> None:
    def fill(store: Store) -> None:
        for number in range(1201):
            store.create(KINDS["", "nodes"], "", node(f"n{number:04}"))

    fake.change(fill)

    async def act(client: Client) -> int:
        return len((await client.list(NODES.path())).items)

    assert tried(fake, act) == 1201
    assert len(fake.calls) == 3


def test_the_kernel_looks_whether_a_watchs_server_is_still_there(fake: FakeServer) -> None:
    """A machine that is gone says nothing, and a watch waits for minutes."""

    async def act(client: Client) -> None:
        lines = client.stream_lines(NODES.path(), {"watch": "true"}, 600.0)
        first = asyncio.ensure_future(anext(lines))
        while not fake.watches:  # noqa: ASYNC110 (another thread's)
            await asyncio.sleep(0.01)
        await client.post(NODES.path(), node("a"))
        assert (await first)["type"] == "ADDED"
        assert probed_within(fake) <= 30.0
        await lines.aclose()

    tried(fake, act)


def probed_within(fake: FakeServer) -> float:
    """Seconds until the kernel probes the other end of a connection to the server."""
    port, timers = f":{int(fake.address.rpartition(':')[2]):04X}", []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, timer, *_ = line.split()
        kind, _, ticks = timer.partition(":")
        if remote.endswith(port) and state == "01" and kind == "02":  # established; keep alive
            timers.append(int(ticks, 16) / os.sysconf("SC_CLK_TCK"))
    return min(timers)
