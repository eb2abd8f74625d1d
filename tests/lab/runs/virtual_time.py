"""Time that passes at once: an event loop goes on to its next timer when nobody has work to do."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest

T = TypeVar("T")
_BEGIN = 10_000.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own.

    Work in threads takes no time by this clock, so nothing here may wait for a thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = _BEGIN
        selector: Any = self._selector  # type: ignore[attr-defined]  # asyncio's own
        select = selector.select

        def skip(timeout: float | None) -> Any:
            if timeout is None:  # no timer at all
                return select(None)
            found = select(0)
            self._now += 0 if found else timeout
            return found

        selector.select = skip

    def time(self) -> float:
        """Seconds since some moment."""
        return self._now


def run(work: Coroutine[Any, Any, T], patch: pytest.MonkeyPatch) -> T:
    """What some work brings, for which every clock of the machine is that of its loop."""
    loop = VirtualLoop()
    with patch.context() as patched:
        patched.setattr(time, "monotonic", loop.time)
        patched.setattr(time, "clock_gettime", lambda _: loop.time())
        try:
            return loop.run_until_complete(work)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
