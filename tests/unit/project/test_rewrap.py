"""``deploy/rewrap.py``: prose of Markdown at 100 columns, and all else as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
rewrap = runpy.run_path(str(ROOT / "deploy" / "rewrap.py"))["rewrap"]

LONG = "word " * 40 + "end"


def test_prose_is_wrapped_and_wrapping_again_changes_nothing() -> None:
    text = rewrap(f"{LONG}\nmore\n\n- {LONG}\n  more\n\n  {LONG}\n1. {LONG}\n")
    assert max(map(len, text.splitlines())) <= 100
    assert rewrap(text) == text
    assert text.split() == f"{LONG} more - {LONG} more {LONG} 1. {LONG}".split()
    assert "\n  word" in text
    assert "\n   word" in text


@pytest.mark.parametrize(
    "text",
    [
        f"# {LONG}\n",
        f"| {LONG} | b |\n|---|---|\n",
        f"```sh\n{LONG}\n- {LONG}\n```\n",
        f"- item:\n\n  ```toml\n  {LONG}\n  ```\n",
        f"    {LONG}\n",
        f"![{LONG}](a.png)\n",
        f"<!-- {LONG} -->\n",
        f"<!-- figures: begin -->\n{LONG}\n<!-- figures: end -->\n",
    ],
)
def test_code_tables_headings_and_pictures_stay(text: str) -> None:
    assert rewrap(text) == text


@pytest.mark.parametrize("unit", ["`a b c`", "[a b c](d.md)", "word - 1", "word 3. then", "a | b"])
def test_no_line_breaks_where_markdown_would_change(unit: str) -> None:
    for length in range(80, 110):
        text = rewrap("x" * length + f" {unit} {LONG}\n")
        kept = unit if " " in unit and unit[0] in "`[" else unit.rpartition(" ")[0]
        assert kept in text
