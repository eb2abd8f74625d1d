"""K8S-15: strangers at a port, who send nothing or half of it, keep nobody out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from cgpu_k8s.apiserver.port import Port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.unit

MOST = 4
HALF = b"POST /friend HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
BODY = HALF + b"\r\n{"


def serve(work: Callable[[int, list[bytes]], Awaitable[None]]) -> None:
    """Run ``work`` with a port, and with what its friends have sent: at first nothing."""

    async def main() -> None:
        async def friend(request: web.Request) -> web.Response:
            number = len(sent)
            sent.append(b"")
            sent[number] = await request.read()
            return web.Response(text="friend")

        async def anybody(_: web.Request) -> web.Response:
            return web.Response(text="anybody")

        sent: list[bytes] = []
        app = web.Application(client_max_size=len(HALF) + 9_000_000)
        app.router.add_post("/friend", friend)
        app.router.add_get("/", anybody)
        port = Port(app, lambda request: request.path == "/friend", most=MOST)
        address = await port.open("127.0.0.1", 0)
        try:
            await asyncio.to_thread(
                lambda: asyncio.run(work(int(address.rpartition(":")[2]), sent))
            )
        finally:
            await port.close()

    asyncio.run(main())


def connect(port: int, sends: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20, (host, 0))
    connection.sendall(sends)
    return connection


async def seen(sent: list[bytes], count: int) -> None:
    """Wait until so many requests of friends have begun."""
    while len(sent) < count:  # noqa: ASYNC110 (another thread serves)
        await asyncio.sleep(0.01)


def is_open(connection: socket.socket) -> bool:
    """Whether the other end has not hung up; what came before an answer of it is done."""
    connection.setblocking(False)  # noqa: FBT003 (it has no name)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def get(port: int, host: str = "127.0.0.1") -> bytes:
    """Whole answer to a whole request."""
    with connect(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", host) as asked:
        return b"".join(iter(lambda: asked.recv(4096), b""))


@pytest.mark.parametrize("sent", [b"", HALF, b"GET / HTTP"])
def test_the_oldest_stranger_makes_room(sent: bytes) -> None:
    async def work(port: int, _: list[bytes]) -> None:
        with ExitStack() as kept:
            held = [kept.enter_context(connect(port, sent)) for _ in range(MOST)]
            for _ in range(3 * MOST):
                assert get(port).endswith(b"anybody")
            assert [is_open(each) for each in held] == [False, True, True, True]

    serve(work)


def test_the_address_that_has_most_makes_room() -> None:
    """A scraper beside a thousand connections of a pod is none of them."""

    async def work(port: int, _: list[bytes]) -> None:
        with ExitStack() as kept:
            first = kept.enter_context(connect(port, HALF, "127.0.0.2"))
            many = [kept.enter_context(connect(port, HALF, "127.0.0.3")) for _ in range(50)]
            assert get(port, "127.0.0.2").endswith(b"anybody")
            assert is_open(first)
            assert sum(map(is_open, many)) <= MOST

    serve(work)


def test_strangers_at_the_address_of_a_friend_are_counted_apart() -> None:
    """An API server opens many connections at once, beside many addresses that hold theirs."""

    async def work(port: int, sent: list[bytes]) -> None:
        with ExitStack() as kept:
            first = kept.enter_context(connect(port, BODY, "127.0.0.2"))
            await seen(sent, 1)
            burst = [kept.enter_context(connect(port, HALF, "127.0.0.2")) for _ in range(MOST)]
            for number in range(3, 50):
                kept.enter_context(connect(port, HALF, f"127.0.0.{number}"))
            assert get(port, "127.0.0.60").endswith(b"anybody")
            assert all(is_open(each) for each in (first, *burst))

    serve(work)


def test_a_friend_stays_whoever_comes() -> None:
    """Also one that is still sending, from the address that has most."""

    async def work(port: int, sent: list[bytes]) -> None:
        with ExitStack() as kept:
            friends = []
            for _ in range(3 * MOST):
                friends.append(kept.enter_context(connect(port, BODY)))
                await seen(sent, len(friends))  # MOST may call at once
            for _ in range(20):
                kept.enter_context(connect(port, HALF))
            for each in friends:
                each.sendall(b" " * (9_000_000 - 1))
                assert each.recv(4096).startswith(b"HTTP/1.1 200 OK")
            assert [len(each) for each in sent] == [9_000_000] * len(friends)

    serve(work)
