"""Works that run at the same time in a program that follows the API server."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run_coroutine(work: Coroutine[None, None, T]) -> T:
    """Run a coroutine in a new event loop and return its result.

    ``asyncio.run`` also formats the result, for an error message that it drops: 0.1 s for 10,000
    pods.
    """
    found: list[T] = []

    async def keep_result() -> None:
        found.append(await work)

    asyncio.run(keep_result())
    return found[0]


async def run_together(*works: Coroutine[None, None, None]) -> None:
    """Run all works until one fails or we are cancelled; then end all."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_tasks(*tasks)


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_until_stopped(work: Coroutine[None, None, None]) -> None:
    """Do some work until SIGTERM or SIGINT; its error ends us."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
    finally:
        await cancel_tasks(task, waiting)
