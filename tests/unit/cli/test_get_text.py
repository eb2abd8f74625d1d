"""What cgpu get prints of a container, whichever release's server answers (CLI-3)."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_cli.commands import get

pytestmark = pytest.mark.unit

NEW: dict[str, Any] = {"index": 0, "free_bytes": 3, "cap_bytes": 7, "limit_percent": 50.0}
OLD: dict[str, Any] = {"index": 0, "free_bytes": 3, "memsize": 7, "limit_ppm": 500_000}


def line(gpu: dict[str, Any]) -> str:
    container = {"id": "a", "weight": 1, "high_priority": True, "gpus": [gpu]}
    (found,) = get._lines({"gpus": [], "containers": [container]})  # noqa: SLF001 (its text)
    return found


@pytest.mark.parametrize(
    ("new", "old", "shown"),
    [
        ((25.04, None), (250_400, None, True), "25.0%"),
        ((None, 31.2), (0, 312_000, False), "~31%"),
        ((None, None), (0, None, False), "-"),
    ],
)
def test_a_server_of_release_0_1_is_understood(
    new: tuple[float | None, float | None], old: tuple[int, int | None, bool], shown: str
) -> None:
    expected = f"a  weight=1 highprio=1  GPU 0 limit=50.0% measured={shown} memsize=7 free=3"
    names = ("measured_percent", "estimated_percent")
    assert line({**NEW, **dict(zip(names, new, strict=True))}) == expected
    names = ("measured_ppm", "estimated_ppm", "metered")
    assert line({**OLD, **dict(zip(names, old, strict=True))}) == expected
