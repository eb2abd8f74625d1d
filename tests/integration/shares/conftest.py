"""Two programs that compute beside each other, of which faults are done to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.worlds.compute import PAUSELESS, Players

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[Players]:
    """``steady`` and ``victim``, which is started anew whenever it is killed."""
    made = Players()
    made.spin("steady", "--weight 1", PAUSELESS)
    made.spin_again_and_again("victim", "--weight 1", PAUSELESS)
    made.wait()
    yield made
    made.stop()
