"""A port that limits the number of connections from unknown callers.

Anyone who reaches a pod can open connections to it and send nothing, or half a request. Each new
connection is a stranger until it sends a request that only a friend can send. If there are too many
strangers, the port closes the oldest one of the address that has the most. Strangers from addresses
of friends are counted separately, so that others cannot displace them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from aiohttp import web

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from aiohttp.typedefs import Handler

STRANGERS = 256  # more connections than an API server or a scheduler opens at once
_MOST_FRIENDS = 64  # addresses of friends to remember
_HANDSHAKE = 10.0  # seconds that a TLS handshake may take
_PAUSE = 0.1  # seconds to wait if no file descriptor is left
_QUEUE = 1024  # backlog of connections to accept: the kernel must not refuse a burst


class _Stranger(NamedTuple):
    connection: socket.socket
    address: str


class Port:
    """Serves an application.

    Args:
        app: the application, which must not be served yet.
        is_friend: returns whether only a friend can have sent a request. The body is not read yet.
        tls: the TLS context; None for plain HTTP.
        most: how many strangers there may be at a time.
    """

    def __init__(
        self,
        app: web.Application,
        is_friend: Callable[[web.Request], bool] = lambda _: False,
        tls: ssl.SSLContext | None = None,
        most: int = STRANGERS,
    ) -> None:
        @web.middleware
        async def track_friends(request: web.Request, handler: Handler) -> web.StreamResponse:
            if is_friend(request):
                self._strangers.pop(request.protocol, None)
                self._friends[str(request.remote)] = None
                if len(self._friends) > _MOST_FRIENDS:
                    del self._friends[next(iter(self._friends))]
            return await handler(request)

        app.middlewares.insert(0, track_friends)
        self._runner = web.AppRunner(app, access_log=None, lingering_time=0.0)
        self._tls, self._most = tls, most
        self._strangers: dict[web.RequestHandler, _Stranger] = {}  # oldest first
        self._friends: dict[str, None] = {}  # addresses
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str | None, port: int) -> str:
        """Serve at ``host``, or at every address if None; return an address as ADDRESS:PORT.

        Raises:
            OSError: the address is in use, or is not one of this machine.
        """
        await self._runner.setup()
        self._listeners = _open_listeners(host, port)
        for listener in self._listeners:
            self._start_task(self._accept_connections(listener))
        return "{}:{}".format(*self._listeners[0].getsockname()[:2])

    async def close(self) -> None:
        """Stop serving, and close all connections."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        await self._runner.cleanup()

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_connections(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_PAUSE)
                continue
            self._make_room(address[0])
            protocol = cast("web.Server", self._runner.server)()  # not None after ``setup``
            self._strangers[protocol] = _Stranger(connection, address[0])
            self._start_task(self._serve_connection(protocol, connection))
            await asyncio.sleep(0)  # let connections accepted earlier make progress

    async def _serve_connection(
        self, protocol: web.RequestHandler, connection: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        limit = _HANDSHAKE if self._tls else None
        with contextlib.suppress(OSError):  # the caller speaks no TLS or is gone
            await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=limit
            )

    def _make_room(self, address: str) -> None:
        """Drop a stranger if there are too many of those that count together with ``address``."""
        gone = [each for each, it in self._strangers.items() if it.connection.fileno() < 0]
        for protocol in gone:
            del self._strangers[protocol]
        is_friends = address in self._friends
        alike = {
            protocol: it.address
            for protocol, it in self._strangers.items()
            if (it.address in self._friends) == is_friends
        }
        if len(alike) >= self._most:
            count = Counter(alike.values())
            most = max(count.values())
            self._drop_stranger(next(each for each, its in alike.items() if count[its] == most))

    def _drop_stranger(self, protocol: web.RequestHandler) -> None:
        stranger = self._strangers.pop(protocol)
        if protocol.transport is not None:
            protocol.transport.abort()
        else:  # still in the handshake
            with contextlib.suppress(OSError):
                stranger.connection.shutdown(socket.SHUT_RDWR)


def _open_listeners(host: str | None, port: int) -> list[socket.socket]:
    """Return sockets that listen at every address of ``host``, or of the machine if it is None."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    with contextlib.ExitStack() as undone:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                listener = undone.enter_context(socket.socket(family, socket.SOCK_STREAM))
            except OSError:  # the kernel lacks this address family
                continue
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)  # noqa: FBT003 (it has no name)
            listener.bind(address)
            listener.listen(_QUEUE)
            made.append(listener)
        if not made:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        undone.pop_all()
    return made
