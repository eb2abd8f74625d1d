"""Between extenders and their API server: holds a binding on its way there, or its reply."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Container, Iterator
from typing import NamedTuple

import aiohttp
from aiohttp import web

from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane

_PATIENCE = 90.0
CREATED = 201
_DROPPED = {"transfer-encoding", "content-length", "connection"}


class Held:
    """The next binding, which stops before the API server has it, or before its reply is passed on.

    Attributes:
        reached: set once it has stopped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, carried_out: bool) -> None:
        self.reached = threading.Event()
        self.carried_out = carried_out
        self.deliver = False
        self.gone_on = asyncio.Event()
        self._loop = loop

    def go_on(self, *, deliver: bool) -> None:
        """Deliver what was held, or drop it."""
        self.deliver = deliver
        self._loop.call_soon_threadsafe(self.gone_on.set)

    async def stop(self) -> None:
        """Wait until it may go on."""
        self.reached.set()
        await self.gone_on.wait()


class Bound(NamedTuple):
    """A binding that the API server has answered.

    Attributes:
        host: whose extender sent it.
        asked: when it came, by ``time.monotonic()``.
        when: when it was answered.
        status: the answer.
    """

    host: str
    asked: float
    when: float
    status: int


class Proxy:
    """See ``proxy``; any thread may call its methods.

    Attributes:
        bindings: all that the API server has answered.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.bindings: list[Bound] = []
        self._server, self._trust = plane.address, plane.cluster().trust.make_context(None)
        self._loop = asyncio.new_event_loop()
        self._held: list[Held] = []
        self._address = ""

    def address(self, host: str) -> str:
        """Where it answers the extender on ``host``."""
        return f"{self._address}/{host}"

    @property
    def binds(self) -> str:
        """The host of the extender that has bound the last pod."""
        return next(each.host for each in reversed(self.bindings) if each.status == CREATED)

    def hold(self, *, carried_out: bool) -> Held:
        """Hold the next binding: its reply if it is to be carried out, else the request."""
        held = Held(self._loop, carried_out=carried_out)
        self._held.append(held)
        return held

    def await_binding(self, hosts: Container[str], since: float = 0.0) -> float:
        """When a pod was bound by what one of some hosts has sent after ``since``, once one was."""

        def found() -> list[float]:
            return [each.when for each in self.bindings
                    if each.host in hosts and each.asked > since and each.status == CREATED
                    ]  # fmt: skip

        wait_until(found, "a pod is bound", _PATIENCE)
        return found()[0]

    def serve(self, started: threading.Event) -> None:
        """The thread: serve until ``stop``."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    def stop(self) -> None:
        """End the thread's loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._trust)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{host}/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._address = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.endswith("/binding"):
            body = await request.read()
            # Who sent it may be dead by now: what is on its way arrives all the same.
            return await asyncio.shield(asyncio.ensure_future(self._bind(request, body)))
        async with self._ask(request, await request.read()) as answer:
            response = web.StreamResponse(status=answer.status, headers=_headers(answer))
            with contextlib.suppress(ConnectionResetError):  # who asked is gone
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    async def _bind(self, request: web.Request, body: bytes) -> web.Response:
        asked, host = time.monotonic(), request.match_info["host"]
        held = self._held.pop() if self._held else None
        if held and not held.carried_out:
            await held.stop()
            if not held.deliver:
                return web.Response(status=503)
        async with self._ask(request, body) as answer:
            content = await answer.read()
        self.bindings.append(Bound(host, asked, time.monotonic(), answer.status))
        if held and held.carried_out:
            await held.stop()
        return web.Response(status=answer.status, headers=_headers(answer), body=content)

    def _ask(self, request: web.Request, body: bytes) -> aiohttp.client._RequestContextManager:
        headers = {name: value for name, value in request.headers.items()
                   if name.lower() not in {"host", *_DROPPED}}  # fmt: skip
        forever = aiohttp.ClientTimeout(total=None)
        url = self._server + request.raw_path.removeprefix(f"/{request.match_info['host']}")
        return self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=forever
        )


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in _DROPPED}


@contextlib.contextmanager
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    """A way to a control plane's API server that holds bindings, until the end of the block."""
    made, started = Proxy(plane), threading.Event()
    thread = threading.Thread(target=made.serve, args=(started,), daemon=True)
    thread.start()
    assert started.wait(30), "the proxy did not start"
    try:
        yield made
    finally:
        made.stop()
        thread.join(30)
