"""What of ``make gpu-check`` only a GPU runs is run here once, with nothing in the place of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpu.facts import timing as facts_timing
from gpu.shares import alone as shares_alone
from gpu.shares import resnet_pair as shares_resnet
from gpu.world import Program, World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit
PATH = [str(Path(__file__).resolve().parents[n]) for n in (2, 3)]
START = (
    f"import sys; sys.path[:0] = {PATH}; from lab.driver import stub_torch; stub_torch.install();"
)


class Stub:
    """In the place of a ``World``: programs run without a cap, and PyTorch computes nothing."""

    cap, python, brief = 6 << 30, sys.executable, False

    def start(self, command: list[str], **_: Any) -> subprocess.Popen[str]:
        kind = command[-1]
        code = START
        code += f" from gpu.shares import resnet; resnet.serve({kind!r})"
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, command: list[str], *, capped: bool, **_: Any) -> Program:
        code = START
        words = [sys.executable, "-c", code + command[-1]]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        self.capped = capped
        return Program(0, done.stdout, "")


@pytest.fixture
def world() -> World:
    return cast("World", Stub())


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the C program says that times the driver."""
    output: dict[str, Any] = {}
    path = tmp_path / "timing"

    def compiled(_: str) -> str:
        line = json.dumps({"cgpu": output})
        path.write_text(f"#!/bin/sh\necho noise\necho '{line}'\n")
        path.chmod(0o755)
        return str(path)

    monkeypatch.setattr(facts_timing, "compiled", compiled)
    return output


@pytest.mark.parametrize(("early", "holds"), [(10_000, True), (49_000, False)])
def test_handing_over_early_has_to_save_5_us(
    says: dict[str, Any], early: int, *, holds: bool
) -> None:
    says |= {"idle_ns": 50_000, "idle_early_ns": early}
    found = facts_timing.letting_the_next_process_in_early_saves_idle_time()
    assert (found.holds, found.measured["saved_ns"]) == (holds, 50_000 - early)


@pytest.mark.parametrize(("turn", "holds"), [(1_000_000, True), (9_000_000, False)])
def test_turns_without_cgpu_have_to_be_of_milliseconds(
    says: dict[str, Any], turn: int, *, holds: bool
) -> None:
    switch = 50_000
    period = 2 * (turn + switch)
    starts = [period * i for i in range(5)]
    one = [(at + turn, at + period) for at in starts]
    two = [(at - switch, at + turn + switch) for at in starts]
    says["gaps"] = [one, two]
    found = facts_timing.two_processes_take_turns_of_milliseconds()
    assert (found.holds, found.measured["turn_us"]) == (holds, turn / 1000)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_resnet50_is_told_batches_and_windows(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What does not fit is left out."""
    monkeypatch.setattr(shares_resnet, "SECONDS", 0.2)
    monkeypatch.setattr(shares_resnet, "LEAD_NS", 100_000_000)
    found = shares_resnet.ratios(world, kind, (16, 64))
    assert found.measured["do not fit"] == [64]
    (one, two) = found.measured["batches"]["16"]["rates"]
    assert min(one, two) > 0


def test_a_program_alone_is_compared_with_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_alone, "ROUNDS", 1)
    found = shares_alone.slowdown(world, shares_alone.DECODE)
    assert found.measured["plain_ms"][0] > 0
    assert found.measured["capped_ms"][0] > 0
