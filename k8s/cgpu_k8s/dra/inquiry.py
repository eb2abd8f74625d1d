"""A question that may take long, which is asked once at a time: a driver that hangs, say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
P = ParamSpec("P")


class Inquiry(Generic[P, T]):
    """Asks in a thread. Who asks meanwhile has the same answer, so threads do not pile up.

    Args:
        ask: asks; it may raise CgpuErrors and OSErrors.
        patience: seconds after which who asks goes on without an answer. The thread does not.
        about: what was asked, for the sentence that refuses.
    """

    def __init__(self, ask: Callable[P, T], patience: float, about: str) -> None:
        self._ask, self._patience, self._about = ask, patience, about
        self._flight: asyncio.Future[T] | None = None

    async def ask(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the answer, to this question or to one that was on its way.

        Raises:
            CgpuError: there is none yet; or what asking raises.
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
    """Take the error of an answer that nobody waits for any more."""
    if not flight.cancelled():
        flight.exception()
