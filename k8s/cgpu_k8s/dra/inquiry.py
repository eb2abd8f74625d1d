"""A question that may take long, such as to a driver that hangs. It is asked once at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")


class Inquiry(Generic[P, T]):
    """Asks in a thread. Further callers share its answer meanwhile, so threads do not pile up.

    Args:
        ask: asks; it may raise CgpuErrors and OSErrors.
        patience: seconds after which a caller gives up. The thread goes on.
        about: what is asked, for the error's sentence.
    """

    def __init__(self, ask: Callable[P, T], patience: float, about: str) -> None:
        self._ask, self._patience, self._about = ask, patience, about
        self._flight: asyncio.Future[T] | None = None

    async def ask(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer to this question, or to one that is being asked already.

        Raises:
            CgpuError: there was no answer in time; or asking raised it.
        """
        flight = self._flight
        if flight is None or flight.done():
            flight = asyncio.ensure_future(asyncio.to_thread(self._ask, *args, **kwargs))
            flight.add_done_callback(_take_exception)
            self._flight = flight
        await asyncio.wait({flight}, timeout=self._patience)
        if not flight.done():
            raise CgpuError(
                f"{self._about}: no answer within {self._patience:g} s",
                hint="the driver may still start, or a GPU hangs: see nvidia-smi on the node",
            )
        return flight.result()


def _take_exception(flight: asyncio.Future[T]) -> None:
    """Take the error of a question that nobody waits for, so that asyncio does not log it."""
    if not flight.cancelled():
        flight.exception()
