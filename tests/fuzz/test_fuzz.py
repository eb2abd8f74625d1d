"""Readers of foreign bytes read or refuse whatever they are given (ENV-9, REL-4, REL-5, REL-7).

A fixed number of inputs for each, and always the same ones; ``make fuzz`` tries many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import mutator, programs, readers
from fuzz.counts import COUNTS, how_to_repeat

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", COUNTS)
def test_whatever_it_is_given_a_reader_reads_it_or_refuses_it(name: str) -> None:
    outcome = programs.run(name, count=COUNTS[name])
    if outcome.failed:
        pytest.fail(f"{outcome.output}\n{how_to_repeat(name, outcome.failed)}", pytrace=False)


def test_every_target_has_a_count() -> None:
    assert {*programs.TARGETS, *readers.TARGETS} == COUNTS.keys()
    assert {path.stem.removeprefix("target_") for path in programs.HERE.glob("target_*.c")} == {
        *programs.TARGETS
    }


def test_a_mistake_behind_four_letters_is_found_written_down_and_found_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "word").write_bytes(b"word")
    program = programs.build(programs.HERE / "planted.c", programs.Target())
    outcome = programs.tried([str(program)], tmp_path / "corpus", 1_000_000)
    assert "heap-buffer-overflow" in outcome.output
    assert outcome.failed is not None
    assert outcome.failed.read_bytes().startswith(b"fuzz")
    again = programs.once([str(program)], outcome.failed)
    assert again.returncode != 0
    assert "heap-buffer-overflow" in again.stderr
    assert programs.once([str(program)], tmp_path / "corpus" / "word").returncode == 0


def test_a_mistake_behind_one_bit_of_a_known_input_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "word").write_bytes(b"fuzx")
    program = programs.build(programs.HERE / "planted.c", programs.Target())
    outcome = programs.tried([str(program)], tmp_path, 1)
    assert outcome.failed is not None
    assert outcome.failed.read_bytes() == b"fuzz"


def test_a_mistake_of_a_reader_in_python_is_found_written_down_and_found_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def reader(data: bytes) -> None:
        assert b"null" not in data

    failed = tmp_path / "failed"
    bounds = mutator.Bounds(count=10_000, seconds=0, seed=1)
    assert mutator.run(reader, [b'{"a": [1, 2]}'], failed, bounds) == 1
    assert "AssertionError" in capfd.readouterr().err
    with pytest.raises(AssertionError):
        mutator.main(reader, str(failed))


def test_a_reader_that_takes_for_ever_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def reader(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(mutator, "MOST_SECONDS", 0.1)
    bounds = mutator.Bounds(count=1, seconds=0, seed=1)
    assert mutator.run(reader, [b"x"], tmp_path / "failed", bounds) == 1
    assert (tmp_path / "failed").read_bytes() == b"x"
    assert "ended with status -27" in capfd.readouterr().err
