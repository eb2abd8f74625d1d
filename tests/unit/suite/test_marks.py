"""Code that notes its lines: it does what it did, and notes each line that it runs."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

import pytest

from lines.marks import HEADER, Marks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

SOURCE = '''"""What it is."""

from __future__ import annotations

import functools

@functools.cache
def half(number: int) -> int:
    """Of an even number."""
    if number % 2:
        raise ValueError
    return number // 2

def tried(number: object) -> object:
    try:
        match number:
            case int():
                return half(number)
            case _:
                return None
    except ValueError:
        return "odd"
'''


def test_marked_code_does_what_it_did_and_notes_each_line_that_runs(tmp_path: Path) -> None:
    path, notes = tmp_path / "module.py", dict[int, int]()
    path.write_text(SOURCE)
    marks = Marks(tmp_path, tmp_path / "notes")
    code = marshal.loads(marks.compiled(path)[len(HEADER) :])
    module: dict[str, Any] = {"__name__": "module", "__ran__": notes}

    def ran() -> list[int]:
        lines = sorted(marks.lines[number][1] for number in notes)
        notes.clear()
        return lines

    exec(code, module)
    assert (module["__doc__"], ran()) == ("What it is.", [3, 5, 7, 8, 14])
    assert (module["tried"](4), ran()) == (2, [10, 12, 15, 16, 17, 18])
    assert (module["tried"](3), ran()) == ("odd", [10, 11, 15, 16, 17, 18, 21, 22])
    assert (module["tried"](""), ran()) == (None, [15, 16, 19, 20])
    assert module["half"].__wrapped__.__doc__ == "Of an even number."
    assert {name for name, _ in marks.lines} == {str(path)}


def test_what_runs_when_python_has_ended_the_rest_notes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("class Some:\n    def __del__(self):\n        pass\n")
    marks = Marks(tmp_path, tmp_path / "notes")
    marks.compiled(path)
    assert sorted(line for _, line in marks.lines) == [1, 2]
