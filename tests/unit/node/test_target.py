"""What a word means that somebody typed as the target of a change (CLI-10)."""

from __future__ import annotations

import pytest

from cgpu_env import CgpuError
from cgpu_node.shares.target import Target, resolve_target

pytestmark = pytest.mark.unit

GPUS = {"GPU-aaaa": 0, "GPU-abbb": 1}
LONG = "1234567890123"
NAMES = {"0": "zero", "01ab": "db", LONG: "GPU-box", "77": "web", "pod": "ns/pod/c", "x": "0/db"}


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("all", Target(("GPU-aaaa", "GPU-abbb"))),
        ("0", Target(("GPU-aaaa",))),
        ("gpu-ab", Target(("GPU-abbb",))),
        ("0/0", Target(("GPU-aaaa",), "0")),
        ("1/01", Target(("GPU-abbb",), "01ab")),
        ("01", None),
        ("01a", Target((), "01ab")),
        ("12", None),
        (LONG[:12], Target((), LONG)),
        ("77", Target((), "77")),
        ("GPU-box", Target((), LONG)),
        ("GPU-a", None),
        ("ns/pod/c", Target((), "pod")),
        ("0/db", None),
        ("7/db", None),
        ("", None),
        ("nobody", None),
    ],
)
def test_a_gpu_goes_before_a_container_and_nothing_is_guessed(
    word: str, target: Target | None
) -> None:
    if target is not None:
        assert resolve_target(word, GPUS, NAMES) == target
    else:
        with pytest.raises(CgpuError):
            resolve_target(word, GPUS, NAMES)
