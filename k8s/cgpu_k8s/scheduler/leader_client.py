"""A client of the API server that writes only while our scheduler leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]


class NotLeadingError(CgpuError):
    """Nothing may be written now. The message is one sentence."""


class WritingClient(Protocol):
    """The requests that a LeaderClient makes; ``cgpu_k8s.apiserver.client.Client`` has them."""

    async def get(self, path: str) -> Json:
        """Return the object at ``path``. Raises ApiError."""
        ...

    async def post(self, path: str, body: Json, before: Callable[[], None]) -> Json:
        """Call ``before``, then POST ``body``. Raises ApiError, or what ``before`` raises."""
        ...

    async def patch(self, path: str, body: Json, kind: str, before: Callable[[], None]) -> Json:
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

    async def get(self, path: str) -> Json:
        """Return the object at ``path``. Raises ApiError."""
        return await self._api.get(path)

    async def post(self, path: str, body: Json) -> Json:
        """POST ``body``. Raises ApiError or NotLeadingError."""
        return await self._api.post(path, body, self._expect_leading)

    async def patch(self, path: str, body: Json) -> Json:
        """Merge ``body`` into the object at ``path``. Raises as ``post`` does."""
        return await self._api.patch(path, body, MERGE, self._expect_leading)

    def _expect_leading(self) -> None:
        """Raise NotLeadingError if the lease may have been lost since the write was decided."""
        if problem := self.find_problem():
            raise NotLeadingError(problem)
