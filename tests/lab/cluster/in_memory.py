"""An API server without connections, for programs whose time is virtual: it can be away."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cgpu_k8s.apiserver.client import DEAD, STRATEGIC, Page
from cgpu_k8s.apiserver.errors import NoAnswerError, UnreachableError, make_api_error
from lab.kubernetes.fake_server import line_of, parsed
from lab.kubernetes.selectors import chosen
from lab.kubernetes.store import Key, Kind, Refusal, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

Json = dict[str, Any]
T = TypeVar("T")
REFUSED, SILENT = "it refuses connections", "it does not answer"
_PATIENCE = 10.0  # seconds; the client's
_RESOLUTION = 1e-6  # seconds: an event loop lets a shorter time pass at once, and virtual time not


class Call(NamedTuple):
    """A request, when it came, and the body with which it was carried out."""

    when: float
    method: str
    path: str
    body: Json | None = None


class InMemory:
    """What programs use of ``cgpu_k8s.apiserver.client.Client``, and the objects behind it.

    Attributes:
        store: the objects.
        calls: all requests so far.
        done: the writes that were carried out.
        away: REFUSED, SILENT, or "": it answers.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.calls: list[Call] = []
        self.done: list[Call] = []
        self.away = ""
        self._news = asyncio.Event()

    def change(self, act: Callable[[Store], T]) -> T:
        """Do something that others do, who reach the API server."""
        try:
            return act(self.store)
        finally:
            self.wake()

    def leave(self, how: str) -> None:
        """Be away from now on: REFUSED or SILENT; "": be back."""
        self.away = how
        self.wake()

    def wake(self) -> None:
        """Let watches see what has changed."""
        self._news.set()
        self._news = asyncio.Event()

    def items(self, plural: str) -> list[Json]:
        """All objects of a kind."""
        return [item for key, item in self.store.items.items() if key.kind.plural == plural]

    async def get(self, path: str) -> Json:
        """The object."""
        return await self._ask("GET", path, None, lambda key, _: self.store.read(key))

    async def patch(
        self,
        path: str,
        body: Json,
        kind: str = STRATEGIC,
        before: Callable[[], None] | None = None,
    ) -> Json:
        """Change it."""
        part, strategic = parsed(path)[3], kind == STRATEGIC

        def act(key: Key, sent: Json) -> Json:
            if before:
                before()
            return self.store.patch(key, sent, part, strategic=strategic)

        return await self._ask("PATCH", path, body, act)

    async def post(self, path: str, body: Json, before: Callable[[], None] | None = None) -> Json:
        """Create it, or bind a pod."""

        def act(key: Key, sent: Json) -> Json:
            if before:
                before()
            if parsed(path)[3] == "binding":
                self.store.bind(key, sent)
                return {}
            return self.store.create(key.kind, key.namespace, sent)

        return await self._ask("POST", path, body, act)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        """Delete it."""
        return await self._ask("DELETE", path, body or {}, self.store.delete)

    async def list_pages(
        self, path: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[Page]:
        """All that are chosen."""
        await self._reach("GET", path)
        kind = _kind_of(path)
        found = [each for each in self.items(kind.plural) if chosen(each, query or {})]
        yield Page(found, str(self.store.version))

    async def stream_lines(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[Json]:
        """The events of a watch, until its time is over or its connection is dead."""
        await self._reach("GET", path)
        kind, version = _kind_of(path), int(query["resourceVersion"])
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query["timeoutSeconds"])
        while (left := end - loop.time()) > _RESOLUTION:
            news = self._news
            for event in self.store.since(version):
                version = event.version
                line = line_of(event, query) if event.key.kind == kind else b""
                if line:
                    yield json.loads(line)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), left)
            if self.away == SILENT:
                await asyncio.sleep(min(silence, DEAD))
            if self.away:
                raise NoAnswerError(f"the answer to GET {path} does not come: {self.away}")

    async def _ask(
        self, method: str, path: str, body: Json | None, act: Callable[[Key, Json], Json]
    ) -> Json:
        await self._reach(method, path)
        kind, namespace, name, _ = parsed(path)
        try:
            answer = act(Key(kind, namespace, name), body or {})
        except Refusal as error:
            status = {"reason": error.reason, "message": str(error)}
            raise make_api_error(f"{method} {path}", error.status, status) from None
        if body is not None:
            self.done.append(Call(asyncio.get_running_loop().time(), method, path, body))
            self.wake()
        return answer

    async def _reach(self, method: str, path: str) -> None:
        self.calls.append(Call(asyncio.get_running_loop().time(), method, path))
        if self.away == SILENT:
            await asyncio.sleep(_PATIENCE)
            raise NoAnswerError(f"the answer to {method} {path} does not come: it takes too long")
        if self.away:
            raise UnreachableError(f"the API server cannot be reached: {self.away}")
        await asyncio.sleep(0)


def _kind_of(path: str) -> Kind:
    try:
        return parsed(path)[0]
    except Refusal as error:
        raise make_api_error(f"GET {path}", error.status, str(error)) from None
