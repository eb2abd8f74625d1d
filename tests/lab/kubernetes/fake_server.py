"""A small API server in a thread, which fails in the ways that a test asks for.

It holds the kinds of ``store.KINDS``. The contract tests run against it and against the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from aiohttp import web

from cgpu_k8s.apiserver.cluster import Cluster, Fixed, Trust, make_bearer
from lab.kubernetes.faults import NEVER, Fault
from lab.kubernetes.selectors import SelectorError, chosen
from lab.kubernetes.store import KINDS, Event, Json, Key, Kind, Refusal, Store

T = TypeVar("T")
TOKEN = "secret"
_CODE = {"merge-patch+json": False, "strategic-merge-patch+json": True}


class Watcher:
    """One open watch: from where it goes on, and what a test does to it."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.lines: list[bytes] = []  # sent before anything else
        self.cut = False
        self.mute = False
        self.news = asyncio.Event()


class FakeServer:
    """The API server of ``fake_server``. Any thread may call its methods.

    Attributes:
        calls: the requests so far, such as ``GET /api/v1/nodes?limit=500``.
        tokens: what it accepts; ``TOKEN`` at first.
        bookmarks: seconds between two bookmarks of a watch.
        amend: changes the body of a write before it is stored, as feature gates do.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.tokens = {TOKEN}
        self.bookmarks = 60.0
        self.amend: Callable[[Json], None] = lambda _body: None
        self._store = Store()
        self._faults: list[Fault] = []
        self._watchers: list[Watcher] = []
        self._pages: dict[str, tuple[list[Json], int]] = {}
        self._loop = asyncio.new_event_loop()
        self._port = 0

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def cluster(self, token: str = TOKEN) -> Cluster:
        """The cluster, as its only user."""
        return Cluster(self.address, "the fake", Trust(), Fixed(make_bearer(token)))

    def kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        """A kubeconfig of it, written to ``path``."""
        content = {
            "clusters": [{"name": "lab", "cluster": {"server": self.address}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
            "current-context": "lab",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def fail(self, fault: Fault) -> Fault:
        """Let the requests fail that ``fault`` describes."""
        return self._call(lambda: (self._faults.append(fault), fault)[1])

    def forget(self) -> None:
        """Make every version that was read so far too old to watch, or to go on listing, from."""

        def forget() -> None:
            self._store.forget()
            self._pages.clear()
            for each in self._watchers:
                each.cut = True

        self._call(forget)

    def send(self, *lines: Json | bytes) -> None:
        """Send lines to all open watches, as they are: bytes, or an event."""
        raw = [
            each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines
        ]
        self._call(lambda: [each.lines.extend(raw) for each in self._watchers])

    def cut(self) -> None:
        """Break all open watches, after what was sent to them."""
        self._call(lambda: [setattr(each, "cut", True) for each in self._watchers])

    def mute(self) -> None:
        """Send nothing more to the watches that are open now."""
        self._call(lambda: [setattr(each, "mute", True) for each in self._watchers])

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    def items(self, plural: str, group: str = "") -> list[Json]:
        """All objects of a kind."""
        kind = KINDS[group, plural]
        return self._call(
            lambda: [item for key, item in self._store.items.items() if key.kind == kind]
        )

    def change(self, act: Callable[[Store], T]) -> T:
        """Do something to the store that no request does."""
        return self._call(lambda: act(self._store))

    def serve(self, started: threading.Event) -> None:
        """The thread: serve until ``stop``."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    def stop(self) -> None:
        """End the thread's loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> None:
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    def _call(self, act: Callable[[], T]) -> T:
        """Do it in the server's thread, and let the watches see what came of it."""

        async def acted() -> T:
            try:
                return act()
            finally:
                self._wake()

        return asyncio.run_coroutine_threadsafe(acted(), self._loop).result(30)

    def _wake(self) -> None:
        for each in self._watchers:
            each.news.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.raw_path}")
        fault = next(
            (each for each in self._faults if each.fits(request.method, request.raw_path)), None
        )
        if fault is not None:
            fault.times -= 1
            await asyncio.sleep(fault.delay)
            if fault.status and not fault.after:
                return _status(
                    fault.status, fault.reason, "as the test wants it", fault.retry_after
                )
        try:
            self._check_token(request)
            answer = await self._answer(request, fault)
        except Refusal as refusal:
            answer = _status(refusal.status, refusal.reason, str(refusal))
        except SelectorError as error:
            answer = _status(400, "BadRequest", str(error))
        return await self._spoilt(request, answer, fault) if fault else answer

    @staticmethod
    async def _spoilt(
        request: web.Request, answer: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        """The answer to a request that was carried out, after what ``fault`` does to it."""
        if fault.mute:
            await asyncio.sleep(NEVER)
        if fault.after and fault.status:
            return _status(fault.status, fault.reason, "after it was done", fault.retry_after)
        if fault.half and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            part = web.StreamResponse(status=answer.status)
            part.content_length = len(answer.body)
            part.content_type = "application/json"
            await part.prepare(request)
            await part.write(answer.body[: len(answer.body) // 2])
        if (fault.half or fault.after) and request.transport is not None:
            request.transport.close()
        return answer

    def _check_token(self, request: web.Request) -> None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _answer(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        if request.path in {"/version", "/readyz"}:
            return web.json_response({"major": "1", "minor": "20", "gitVersion": "v1.20.2"})
        kind, namespace, name, part = parsed(request.path)
        if request.method == "GET" and not name:
            if request.query.get("watch") in {"true", "1"}:
                return await self._watch(request, kind, namespace, fault)
            return self._list(kind, namespace, request.query)
        body = await request.json() if request.can_read_body else {}
        self.amend(body)
        try:
            return self._write(request, Key(kind, namespace, name), part, body)
        finally:
            self._wake()

    def _write(self, request: web.Request, key: Key, part: str, body: Json) -> web.Response:
        store = self._store
        match request.method, bool(key.name), part:
            case "GET", True, "" | "status":
                return web.json_response(store.read(key))
            case "POST", False, "":
                return web.json_response(store.create(key.kind, key.namespace, body), status=201)
            case "POST", True, "binding":
                store.bind(key, body)
                return web.json_response(_success(), status=201)
            case "PUT", True, "" | "status":
                return web.json_response(store.replace(key, body, part))
            case "PATCH", True, "" | "status":
                strategic = _CODE.get(request.content_type.removeprefix("application/"))
                if strategic is None:
                    raise Refusal(415, "UnsupportedMediaType", "no patch of a known kind")
                return web.json_response(store.patch(key, body, part, strategic=strategic))
            case "DELETE", True, "":
                return web.json_response(store.delete(key, body))
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method")

    def _list(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> web.Response:
        token = query.get("continue", "")
        if token:
            if token not in self._pages:
                raise Refusal(410, "Expired", "the provided continue parameter is too old")
            items, version = self._pages[token]
        else:
            found = [(key, each) for key, each in self._store.items.items() if key.kind == kind]
            found.sort(key=lambda pair: pair[0][1:])
            items = [each for key, each in found
                     if namespace in {"", key.namespace} and chosen(each, query)]  # fmt: skip
            version = self._store.version
        limit = int(query.get("limit") or 0) or len(items)
        about = {"resourceVersion": str(version)}
        if items[limit:]:
            about["continue"] = uuid.uuid4().hex
            self._pages[about["continue"]] = (items[limit:], version)
        listed = {"kind": f"{kind.word}List", "apiVersion": kind.api, "metadata": about}
        return web.json_response({**listed, "items": items[:limit]})

    async def _watch(
        self, request: web.Request, kind: Kind, namespace: str, fault: Fault | None
    ) -> web.StreamResponse:
        query = request.query
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        watcher = Watcher(int(query.get("resourceVersion") or self._store.version))
        watcher.mute = fault is not None and fault.mute
        self._watchers.append(watcher)
        try:
            await response.prepare(request)
            length = float(query.get("timeoutSeconds") or NEVER)
            try:
                sending = self._send(response, watcher, kind, namespace, query)
                await asyncio.wait_for(sending, length)
            except asyncio.TimeoutError:
                await self._mark(response, watcher, kind, query)
            if watcher.cut and request.transport is not None:
                request.transport.close()
        finally:
            self._watchers.remove(watcher)
        return response

    async def _send(
        self,
        response: web.StreamResponse,
        watcher: Watcher,
        kind: Kind,
        namespace: str,
        query: Mapping[str, str],
    ) -> None:
        """Send what happens, until the watch is cut."""
        while not watcher.cut:
            watcher.news.clear()
            try:
                events = self._store.since(watcher.version)
            except Refusal as refusal:
                status = _body(refusal.status, refusal.reason, str(refusal))
                await response.write(_line("ERROR", status))
                return
            if not watcher.mute:
                for event in events:
                    watcher.version = event.version
                    here = event.key.kind == kind and namespace in {"", event.key.namespace}
                    if here and (seen := line_of(event, query)):
                        await response.write(seen)
                for line in watcher.lines:
                    await response.write(line)
                watcher.lines.clear()
            try:
                await asyncio.wait_for(watcher.news.wait(), self.bookmarks)
            except asyncio.TimeoutError:
                await self._mark(response, watcher, kind, query)

    async def _mark(
        self,
        response: web.StreamResponse,
        watcher: Watcher,
        kind: Kind,
        query: Mapping[str, str],
    ) -> None:
        """Send a bookmark, to who asked for them."""
        if query.get("allowWatchBookmarks") == "true" and not watcher.mute:
            await response.write(_bookmark(kind, self._store.version))


def parsed(path: str) -> tuple[Kind, str, str, str]:
    """Kind, namespace, name and subresource of a path; 404 where there is none."""
    words = [*path.strip("/").split("/"), ""]
    group, rest = (words[1], words[3:]) if words[0] == "apis" else ("", words[2:])
    namespace = ""
    if rest[0:1] == ["namespaces"] and "".join(rest[2:]):
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get((group, rest[0] if rest else ""))
    if kind is None:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    name, part, *_ = [*rest[1:], "", ""]
    return kind, namespace, name, part


def line_of(event: Event, query: Mapping[str, str]) -> bytes:
    """An event as a watch with selectors sees it: what they no longer choose is deleted."""
    now = event.type != "DELETED" and chosen(event.item, query)
    before = event.before is not None and chosen(event.before, query)
    if not now and not before:
        return b""
    kind = "DELETED" if not now else "MODIFIED" if before else "ADDED"
    return _line(kind, event.item)


def _line(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _bookmark(kind: Kind, version: int) -> bytes:
    about = {"resourceVersion": str(version), "creationTimestamp": None}
    return _line("BOOKMARK", {"kind": kind.word, "apiVersion": kind.api, "metadata": about})


def _success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def _body(status: int, reason: str, message: str) -> Json:
    about = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**about, "message": message, "reason": reason, "code": status}


def _status(status: int, reason: str, message: str, retry_after: int | None = None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return web.json_response(_body(status, reason, message), status=status, headers=headers)


@contextlib.contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A fake API server that runs until the end of the block."""
    server, started = FakeServer(), threading.Event()
    thread = threading.Thread(target=server.serve, args=(started,), daemon=True)
    thread.start()
    assert started.wait(30), "the fake API server did not start"
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
