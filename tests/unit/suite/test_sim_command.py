"""``python -m cgpu_sim DIR``, as it is typed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from cgpu_sim.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def run(*words: str) -> int:
    """The exit status."""
    with pytest.raises(SystemExit) as end:
        main([*words])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_it_says_what_was_made_and_a_command_that_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two GPUs"
    assert run(str(folder), "--gpu", "Tesla T4:15109", "--gpu", "A10:23028") == 0
    made, following = capsys.readouterr().out.splitlines()
    assert "Tesla T4 of 15109 MiB, A10 of 23028 MiB" in made
    assert shlex.split(following)[:3] == ["cgpu-run", "--driver-dir", str(folder)]


def test_a_simulated_driver_is_made_anew(tmp_path: Path) -> None:
    assert run(str(tmp_path)) == 0
    assert run(str(tmp_path), "--gpu", "A10:23028") == 0
    assert (tmp_path / "driver.json").exists()


def test_a_directory_with_other_files_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter").touch()
    assert run(str(tmp_path)) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith(f"python -m cgpu_sim: {tmp_path}: ")
    assert sentence.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]
