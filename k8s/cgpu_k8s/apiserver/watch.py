"""All objects of a resource, and every later change to them, whatever happens to connections.

A watch lists the objects, then watches from the list's version. If the connection ends, breaks or
is silent too long, the watch continues from the last version. If the API server no longer has the
changes since then, the watch lists all objects again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from cgpu_k8s.apiserver.client import Client, Json
from cgpu_k8s.apiserver.errors import (
    ApiError,
    ConfigurationError,
    GoneError,
    NoAnswerError,
    make_api_error,
)
from cgpu_k8s.apiserver.resource_version import VersionTracker, get_metadata, version_of

T = TypeVar("T")
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
CHANGES = (ADDED, MODIFIED, DELETED)


@dataclass(frozen=True)
class Listed(Generic[T]):
    """All objects as they are now. All others are gone."""

    items: list[T]


@dataclass(frozen=True)
class Changed(Generic[T]):
    """One object was ADDED, MODIFIED or DELETED; ``item`` is its new or, if deleted, last state."""

    kind: str
    item: T


class Pace(NamedTuple):
    """The times of a watch, in seconds.

    Attributes:
        first: the pause after the first failure; each further failure doubles the pause.
        longest: the longest pause.
        length: a request lasts this long, or up to twice as long at random. In an idle cluster
            nothing may come all that time: API servers send a bookmark only after a change.
        silence: if nothing comes until this long after the end of ``length``, the connection
            counts as dead.
    """

    first: float = 0.1
    longest: float = 10.0
    length: float = 60.0
    silence: float = 15.0

    def compute_pause(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after ``failures`` in a row.

        ``chance``, from 0 to 1, varies up to half of the pause, so that a thousand nodes do not
        come back at the same moment.
        """
        longest = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return longest * (0.5 + chance / 2)


@dataclass
class Watch(Generic[T]):
    """The changes to the objects at ``path``; iterate over it once.

    Attributes:
        client: a client of the cluster.
        path: the path of all objects, or of those in one namespace.
        read: converts an object into what the caller keeps. It is called page by page, so that a
            list of 10,000 pods is never in memory as a whole. It must not raise.
        selectors: ``fieldSelector`` and ``labelSelector``.
        pace: the times of the watch.
        report: is called with each error, before the pause that follows the error.
        sleep: waits for a number of seconds.
        heard: the ``time.monotonic()`` at which the API server last sent anything, or None.
        lists: how many times all objects were listed.
    """

    client: Client
    path: str
    read: Callable[[Json], T]
    selectors: Mapping[str, str] = field(default_factory=dict)
    pace: Pace = Pace()  # noqa: RUF009 (a tuple)
    report: Callable[[ApiError | ConfigurationError], None] = lambda _error: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    heard: float | None = None
    lists: int = 0
    _tracker: VersionTracker = field(default_factory=VersionTracker)
    _failures: int = 0

    async def __aiter__(self) -> AsyncGenerator[Listed[T] | Changed[T], None]:
        """Yield ``Listed`` first, then each ``Changed``; another ``Listed`` replaces everything."""
        while True:
            wait = 0.0
            try:
                if not self._tracker.version:
                    yield await self._list_objects()
                async with aclosing(self._watch_changes()) as changes:
                    async for change in changes:
                        yield change
                # A normal end. The next request waits only if requests keep ending at once.
                self._failures += 1
                wait = self.pace.compute_pause(self._failures, random.random())  # noqa: S311
                wait *= self._failures > 1
            except (ApiError, ConfigurationError) as error:
                if isinstance(error, GoneError):
                    self._tracker = VersionTracker()
                self.report(error)
                self._failures += 1
                wait = self.pace.compute_pause(self._failures, random.random())  # noqa: S311
                wait = max(wait, getattr(error, "retry_after", None) or 0.0)
            if wait:
                await self.sleep(wait)

    async def _list_objects(self) -> Listed[T]:
        tracker, items = VersionTracker(), list[T]()
        async for page in self.client.list_pages(self.path, self.selectors):
            for each in page.items:
                tracker.add_listed(each)
                items.append(self.read(each))
            tracker.version = page.version
            self.heard = time.monotonic()
        if not tracker.version:
            raise NoAnswerError(
                f"the API server answers GET {self.path} with a list without a version"
            )
        self._tracker = tracker
        self.lists += 1
        return Listed(items)

    async def _watch_changes(self) -> AsyncGenerator[Changed[T], None]:
        """Yield the changes of one watch request until it ends."""
        length = max(1, int(self.pace.length * (1 + random.random())))  # noqa: S311
        asked = {
            **self.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._tracker.version,
            "timeoutSeconds": str(length),
        }
        began = time.monotonic()
        try:
            silence = length + self.pace.silence
            async with aclosing(self.client.stream_lines(self.path, asked, silence)) as lines:
                async for line in lines:
                    self.heard = time.monotonic()
                    change = self._parse_change(line)
                    if change is not None:
                        yield change
        finally:
            if time.monotonic() - began > self.pace.longest:
                self._failures = 0

    def _parse_change(self, line: Json) -> Changed[T] | None:
        """Return the change in a line, or None if there is none or it is not new.

        Raises the ApiError that the line contains, or NoAnswerError if the line is invalid.
        """
        kind, item = line.get("type"), line.get("object")
        if kind == "ERROR":
            status = item if isinstance(item, dict) else {}
            code = status.get("code")
            raise make_api_error(f"GET {self.path}", code if isinstance(code, int) else 500, status)
        if not isinstance(item, dict) or not version_of(item):
            raise NoAnswerError(
                f"the watch of {self.path} brought a line that is no change of an object"
            )
        if kind == "BOOKMARK":
            self._tracker.advance_to(version_of(item))
            return None
        if kind not in CHANGES or not get_metadata(item).get("uid"):
            raise NoAnswerError(f"the watch of {self.path} brought a change that is not known")
        if not self._tracker.accept_event(str(kind), item):
            return None
        self._failures = 0
        return Changed(str(kind), self.read(item))
