"""Two programs that compute beside each other, of which faults are done to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.worlds.compute import PAUSELESS, Players

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Players]:
    """``steady`` and ``victim``, which is started anew whenever it is killed.

    With the flags that the test gives both, or equal weights.
    """
    steady, victim = getattr(request, "param", ("--weight 1", "--weight 1"))
    made = Players()
    made.spin("steady", steady, PAUSELESS)
    made.spin_again_and_again("victim", victim, PAUSELESS)
    made.wait()
    yield made
    made.stop()
