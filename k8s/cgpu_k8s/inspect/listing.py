"""Reads all objects of a kind from the API server, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from cgpu_k8s.apiserver.errors import GoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.apiserver.client import Client

T = TypeVar("T")


async def list_objects(
    client: Client, path: str, query: dict[str, str], read: Callable[[dict[str, Any]], T]
) -> list[T]:
    """Return what ``read`` makes of each object at ``path`` that ``query`` chooses.

    Raises:
        CgpuError: the API server cannot be asked, or refuses.
    """

    async def list_once() -> list[T]:
        return [read(each) async for page in client.list_pages(path, query) for each in page.items]

    try:
        return await list_once()
    except GoneError:  # the API server no longer has the version of the first page
        return await list_once()
