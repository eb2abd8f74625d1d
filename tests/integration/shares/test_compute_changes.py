"""What is changed while real processes compute is in force within 100 ms (SCH-9).

By the simulated GPU's own account, from 100 ms to 2 s after ``cgpu set`` has returned. Parts are
within 3 points, as shares that nobody changes have to be. Under a ceiling the GPU idles, and how
much depends on how late a busy machine wakes threads: nobody has more than the ceiling, nor less
than half of it, and parts of what both have are within 5 points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from lab.worlds.compute import Players, Shares

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.alone(6), pytest.mark.timeout(120)]

POINTS = 3.0
CEILING_POINTS = 5.0  # of parts of less


class Change(NamedTuple):
    """What is set of which target, and what each is to have from then on.

    Attributes:
        target: a program's tag, or the GPU's index.
        value: NAME=VALUE.
        expected: percent of what both have; where there are ceilings, of the GPU's time.
        ceilings: whether there are; then what is expected is the most that each may have.
    """

    target: str
    value: str
    expected: dict[str, float]
    ceilings: bool = False


# No share is after a change what it was before.
CHANGES = [
    Change("two", "weight=3", {"one": 25, "two": 75}),
    Change("one", "highprio=1", {"one": 80, "two": 20}, ceilings=True),
    Change("0", "prio_ratio=60", {"one": 60, "two": 40}, ceilings=True),
    Change("one", "highprio=0", {"one": 25, "two": 75}),
    Change("0", "policy=1", {"one": 50, "two": 50}),
    Change("0", "policy=3", {"one": 5, "two": 15}, ceilings=True),
    Change("0", "max_inst=10", {"one": 10, "two": 30}, ceilings=True),
    Change("0", "policy=5", {"one": 50, "two": 50}),
    # what was launched without gates is nobody's debt
    Change("0", "policy=3", {"one": 10, "two": 30}, ceilings=True),
]


@pytest.fixture
def players() -> Iterator[Players]:
    made = Players()
    yield made
    made.stop()


def test_one_change_after_the_other_is_in_force_within_100_ms(players: Players) -> None:
    for tag in ("one", "two"):
        players.spin(tag, "--weight 1", "us=50")
    players.measure(warm_up=1, seconds=1)
    had = [players.change(change.target, change.value) for change in CHANGES]
    wrong = [
        f"{change.value}: {shares}"
        for change, shares in zip(CHANGES, had, strict=True)
        if not is_in_force(change, shares)
    ]
    assert not wrong


def is_in_force(change: Change, had: Shares) -> bool:
    """Whether the two have what CHANGE gives them."""
    points = CEILING_POINTS if change.ceilings else POINTS
    whole = sum(change.expected.values())
    parts = had.parts()
    if any(abs(parts[tag] - 100 * x / whole) > points for tag, x in change.expected.items()):
        return False
    return not change.ceilings or all(
        x / 2 <= had.points[tag] <= x + POINTS for tag, x in change.expected.items()
    )
