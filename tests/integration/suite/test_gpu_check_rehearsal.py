"""``make gpu-check`` on the simulated driver: what needs no GPU of it works, and it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cgpu_sim import Fault, inject, make_driver_dir

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


def rehearse(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output of a rehearsal in ``folder``."""
    words = ["--driver-dir", str(folder / "driver"), "--rehearse", "--out", str(folder / "out")]
    command = [sys.executable, "tests/gpu", *words, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def written(folder: Path) -> dict[str, Any]:
    """The result, which has a table beside it."""
    (path,) = (folder / "out").glob("*.json")
    assert path.with_suffix(".md").read_text().startswith("# Tesla T4")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """Status, output and result of facts and limits."""
    folder = tmp_path_factory.mktemp("rehearsed")
    make_driver_dir(folder / "driver")
    status, printed = rehearse(folder, "--part", "facts", "--part", "limits")
    return status, printed, written(folder)


def test_all_that_the_simulated_driver_can_show_holds(
    rehearsed: tuple[int, str, dict[str, Any]],
) -> None:
    status, printed, result = rehearsed
    assert status == 0, printed
    held = [c["name"] for c in result["checks"] if c["status"] == "holds"]
    assert len(held) >= 26, printed
    assert result["machine"]["simulated"]


def test_what_is_not_run_says_why(rehearsed: tuple[int, str, dict[str, Any]]) -> None:
    checks = [c for c in rehearsed[2]["checks"] if c["part"] == "limits"]
    skipped = [c for c in checks if c["status"] == "not run"]
    assert any("torch" in c["name"] for c in skipped)
    assert all(c["reason"] for c in skipped)


def test_shares_are_taken_and_those_of_pytorch_say_why_not(tmp_path: Path) -> None:
    """That shares are right is another test's; here every figure of every check is there."""
    make_driver_dir(tmp_path / "driver")
    _, printed = rehearse(tmp_path, "--part", "shares")
    checks = {c["name"]: c for c in written(tmp_path)["checks"]}
    skipped = {name for name, c in checks.items() if c["status"] == "not run"}
    assert skipped == {
        "a_pytorch_training_alone_loses_at_most_1_percent",
        "a_decode_loop_of_graphs_alone_loses_at_most_1_percent",
        "resnet50_trains_at_1_to_2",
        "resnet50_infers_at_1_to_2",
    }, printed
    assert all(checks[name]["measured"] for name in checks.keys() - skipped), printed
    cells = _each(checks, "cells")
    assert [len(cell["shares"]) for cell in cells] == [2, 2], printed
    assert all(cell["busy"] > 0 for cell in cells), printed
    (mix,) = _each(checks, "mixes")
    assert all(share > 0 for window in mix["shares"] for share in window), printed


def _each(checks: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for c in checks.values() for each in c["measured"].get(name, [])]


def test_a_driver_that_differs_from_a_fact_is_told(tmp_path: Path) -> None:
    inject(make_driver_dir(tmp_path / "driver"), Fault("cuMemAlloc", result=2, repeat=True))
    name = "small_allocations_share_2_mib_and_large_ones_round_up"
    status, printed = rehearse(tmp_path, "--only", name)
    assert status == 1
    assert f"does not hold  {name}" in printed


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    words = ["--driver-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "tests/gpu", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu-check: ")
    assert not (tmp_path / "out").exists()
