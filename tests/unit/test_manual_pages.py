"""The manual pages say what the programs say of themselves."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "man"


def test_the_pages_are_those_of_these_programs() -> None:
    """``make man`` writes them."""
    made = runpy.run_path(str(ROOT / "deploy" / "man.py"))["pages"]()
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == made


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_a_page_is_understood_by_man(name: str) -> None:
    section = name.rpartition(".")[2]
    text = (FOLDER / name).read_text()
    if text.startswith(".so "):
        assert text == ".so man8/cgpu-runtime.8\n"
        return
    assert text.startswith(f".TH {name.removesuffix('.' + section).upper()} {section} ")
    words = ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(FOLDER / name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
