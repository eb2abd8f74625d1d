"""Checks that our scheduler leads: nothing is written if another one may have replaced it.

Renewals are timed by our own clock, because the clocks of two machines may differ. The age of a
renewal includes the delay with which it is seen: an extender that was stopped for a while first
reads old events, and its scheduler may have lost the lease since. Our clock includes the time in
suspend, because others may take the lease then.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.objects.fields import ObjectError, get_member

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.fields import Json

    Item = dict[str, Any]

PATIENCE = 10.0  # seconds; less than the leaseDuration, after which others may take the lease
# Renewals whose delays are compared. If the holder's clock is set back, nothing is bound until so
# many more have come.
_COMPARED = 30


def read_clock() -> float:
    """Return the seconds since the machine started, including the time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderLease:
    """The state of a scheduler's lease.

    Args:
        host: the host name of our scheduler. The identity of a holder is its host name, ``_`` and a
            random UUID.

    Attributes:
        holder: the identity of the lease's holder; "" if there is none, or it is unknown.
    """

    def __init__(self, host: str) -> None:
        self.holder = ""
        self._host = host
        self._renewal: object = None
        self._seen: float | None = None
        self._lags: deque[float] = deque(maxlen=_COMPARED)

    def update_lease(self, lease: Json, now: float) -> bool:
        """Update from a lease's object; return whether our scheduler begins to lead.

        ``now`` is the time by ``read_clock``.

        Raises:
            ObjectError: the lease is malformed.
        """
        spec = get_member(lease, "spec", dict)
        led = self.is_leading
        renewal = (get_member(spec, "holderIdentity", str), spec.get("renewTime"))
        if self._renewal is not None and renewal != self._renewal:
            self._seen = self._time_renewal(renewal, now)  # not for the first, which may be old
        self._renewal, self.holder = renewal, renewal[0]
        return self.is_leading and not led

    def _time_renewal(self, renewal: tuple[str, object], now: float) -> float:
        """Return a renewal's time by our clock, as if the fastest recent one had come at once."""
        holder, when = renewal
        if holder != self.holder:
            self._lags.clear()  # each holder has a clock of its own
        try:
            lag = now - datetime.fromisoformat(str(when).replace("Z", "+00:00")).timestamp()
        except ValueError:
            raise ObjectError(f"renewTime={when}: expected a time") from None
        self._lags.append(lag)
        return now - (lag - min(self._lags))

    def clear_lease(self) -> None:
        """Record that there is no lease."""
        self.holder, self._renewal, self._seen = "", ("", None), None

    @property
    def is_leading(self) -> bool:
        """Return whether our scheduler held the lease when the lease was last read."""
        return self.holder.startswith(f"{self._host}_")

    @property
    def is_beginning(self) -> bool:
        """Return whether our scheduler leads but has not renewed its lease yet."""
        return self.is_leading and self._seen is None

    def find_problem(self, now: float) -> str:
        """Return why no pod may be bound now; "" if pods may."""
        if not self.is_leading:
            return f"the scheduler on {self._host} does not lead, {self.holder or 'nobody'} does"
        if self._seen is None:
            return f"no renewal of the lease of {self.holder} has been seen yet"
        if now - self._seen > PATIENCE:
            return f"{self.holder} has not renewed its lease for {now - self._seen:.0f} s"
        return ""


class NotLeadingError(CgpuError):
    """Nothing may be written now. The message is one sentence."""


class WritingClient(Protocol):
    """The requests that a LeaderClient makes; ``cgpu_k8s.apiserver.client.Client`` has them."""

    async def get(self, path: str) -> Item:
        """Return the object at ``path``. Raises ApiError."""
        ...

    async def post(self, path: str, body: Item, before: Callable[[], None]) -> Item:
        """Call ``before``, then POST ``body``. Raises ApiError, or what ``before`` raises."""
        ...

    async def patch(self, path: str, body: Item, kind: str, before: Callable[[], None]) -> Item:
        """Call ``before``, then PATCH ``body``. Raises as ``post`` does."""
        ...


class LeaderClient:
    """A client that checks just before each write whether writes are allowed.

    Args:
        api: a client of the API server.
        find_problem: returns why nothing may be written now; "" if writes are allowed.

    Attributes:
        find_problem: as above.
    """

    def __init__(self, api: WritingClient, find_problem: Callable[[], str]) -> None:
        self._api, self.find_problem = api, find_problem

    async def get(self, path: str) -> Item:
        """Return the object at ``path``. Raises ApiError."""
        return await self._api.get(path)

    async def post(self, path: str, body: Item) -> Item:
        """POST ``body``. Raises ApiError or NotLeadingError."""
        return await self._api.post(path, body, self._expect_leading)

    async def patch(self, path: str, body: Item) -> Item:
        """Merge ``body`` into the object at ``path``. Raises as ``post`` does."""
        return await self._api.patch(path, body, MERGE, self._expect_leading)

    def _expect_leading(self) -> None:
        """Raise NotLeadingError if the lease may have been lost since the write was decided."""
        if problem := self.find_problem():
            raise NotLeadingError(problem)
