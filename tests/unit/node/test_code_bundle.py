"""The file with all that a start loads: it stands for the modules as they are, or for nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from cgpu_node import code_bundle
from lab.runs.opened import opened

pytestmark = pytest.mark.unit

PROGRAM = """
import sys
from cgpu_env.word import WORD

sys.modules["odd"] = None
sys.modules["cgpu_odd"] = object()

def main(arguments):
    print(WORD, *arguments)
    if arguments == ["refuse"]:
        import cgpu_env.refusal
        return 1
    return 0
"""


class Place:
    """An installation with one program: ``cgpu_env.program``, which prints what another knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in ("cgpu_node", "cgpu_env"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text("")
        for name in ("bootstrap.py", "code_bundle.py"):
            shutil.copy(Path(code_bundle.__file__).with_name(name), folder / "cgpu_node")
        (folder / "cgpu_env" / "program.py").write_text(PROGRAM)
        (folder / "cgpu_env" / "refusal.py").write_text("")
        self.print_word("one")

    def print_word(self, word: str) -> None:
        """Change what the program prints."""
        (self.folder / "cgpu_env" / "word.py").write_text(f"WORD = {word!r}\n")

    @property
    def kept(self) -> Path:
        """The file."""
        name = Path(code_bundle.file_of("cgpu_env.program")).name
        return self.folder / "cgpu_node" / "__pycache__" / name

    def start(self, *arguments: str) -> tuple[str, set[str]]:
        """What the program prints, and the names of the files below the folder that it opens."""
        bootstrap = str(self.folder / "cgpu_node" / "bootstrap.py")
        done, paths = opened(bootstrap, "cgpu_env.program", *arguments)
        assert done.returncode == int("refuse" in arguments), done.stderr
        names = {path.name for path in map(Path, paths) if self.folder in path.parents}
        return done.stdout.rstrip("\n"), names


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "one")


def test_the_second_start_reads_one_file_for_all_modules(place: Place) -> None:
    printed, names = place.start("x")
    assert printed == "one x"
    assert {"program.py", "word.py"} <= names
    printed, names = place.start("x", "y")
    assert printed == "one x y"
    assert not [name for name in names if name.startswith(("program.", "word."))]
    assert place.kept.name in names


def test_a_module_that_has_changed_is_not_taken_from_the_file(place: Place) -> None:
    place.start()
    place.print_word("three")
    printed, names = place.start()
    assert printed == "three"
    assert "program.py" not in names
    printed, names = place.start()
    assert printed == "three"
    assert "word.py" not in names


def test_a_module_that_is_gone_is_not_taken_from_the_file(place: Place) -> None:
    place.start()
    (place.folder / "cgpu_env" / "word.py").unlink()
    shutil.rmtree(place.folder / "cgpu_env" / "__pycache__")
    with pytest.raises(AssertionError, match="No module named"):
        place.start()


def test_what_only_a_refusal_loads_is_not_kept(place: Place) -> None:
    place.start("refuse")
    assert not place.kept.exists()
    place.start()
    before = place.kept.read_bytes()
    place.start("refuse")
    assert place.kept.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"no such thing", b"\xe3", b"N"])
def test_a_damaged_file_is_made_anew(place: Place, content: bytes) -> None:
    place.start()
    good = place.kept.read_bytes()
    place.kept.write_bytes(content)
    assert place.start()[0] == "one"
    assert place.kept.read_bytes() == good


def test_a_file_with_one_wrong_letter_is_made_anew(place: Place) -> None:
    """It may still be read, and each start would fail until somebody removes it, or go astray."""
    place.start()
    good = place.kept.read_bytes()
    place.kept.write_bytes(good.replace(b"main", b"mein"))
    assert place.start()[0] == "one"
    assert place.kept.read_bytes() == good


def test_a_file_from_another_folder_is_made_anew(place: Place, tmp_path: Path) -> None:
    """Or a copy, or what was moved, would run the modules of the place that it comes from."""
    place.start()
    other = Place(tmp_path / "two")
    other.print_word("three")
    other.kept.parent.mkdir()
    shutil.copy(place.kept, other.kept)
    assert other.start()[0] == "three"
    assert other.kept.read_bytes() != place.kept.read_bytes()


@pytest.mark.parametrize("reason", ["access", "open"])
def test_nothing_is_compiled_where_the_file_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Each start of somebody else's installation would take a third of a second of a processor."""
    finder = code_bundle.Finder("none")
    monkeypatch.setitem(sys.modules, "cgpu_new", code_bundle)
    compiled: list[object] = []
    monkeypatch.setattr(code_bundle, "_make_entry", compiled.append)
    refusals = {"access": lambda *_: False, "open": lambda *_: os.close(-1)}
    monkeypatch.setattr(os, reason, refusals[reason])
    with contextlib.suppress(OSError):
        finder.keep()
    monkeypatch.undo()
    assert not compiled


def test_a_start_goes_on_where_the_file_cannot_be_written(place: Place) -> None:
    place.kept.parent.write_text("not a folder")
    assert place.start()[0] == "one"


def test_the_file_is_all_that_is_left_and_all_may_read_it(place: Place) -> None:
    place.start()
    assert {path.suffix for path in place.kept.parent.iterdir()} == {".pyc", ".start"}
    assert place.kept.stat().st_mode & 0o777 == 0o644
