"""Requests to the API server that write nothing unless our scheduler leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]


class NotLeadingError(CgpuError):
    """Nothing may be written now; one sentence."""


class WritingClient(Protocol):
    """The requests that are made; ``cgpu_k8s.apiserver.client.Client`` has them."""

    async def get(self, path: str) -> Json:
        """Return the object at ``path``. Raises ApiError."""
        ...

    async def post(self, path: str, body: Json, before: Callable[[], None]) -> Json:
        """POST ``body``, after ``before``. Raises ApiError, or what ``before`` raises."""
        ...

    async def patch(self, path: str, body: Json, kind: str, before: Callable[[], None]) -> Json:
        """PATCH ``body``, after ``before``. Raises as ``post`` does."""
        ...


class LeaderClient:
    """Requests, of which each that writes is checked just before it is sent.

    Args:
        api: of the API server.
        find_problem: returns why nothing may be written now; "": it may.

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
        """Merge ``body`` into an object. Raises as ``post`` does."""
        return await self._api.patch(path, body, MERGE, self._expect_leading)

    def _expect_leading(self) -> None:
        """Refuse if we may have been stopped since the write was decided."""
        if problem := self.find_problem():
            raise NotLeadingError(problem)
