"""Decision records: each has a number, a title and a status, is short, and is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "decisions"
HEAD = re.compile(
    r"# (?P<number>\d{4}): (?P<title>.+)\n\n"
    r"(?:In force since \d{4}-\d\d-\d\d\.|Superseded by \[\d{4}\]\([^)]+\) on \d{4}-\d\d-\d\d\.)\n"
)


def test_each_record_has_its_number_a_title_and_a_status_and_is_listed() -> None:
    listed = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        head = HEAD.match(path.read_text())
        assert head, f"{path.name}: the title or the status is missing"
        assert path.name.startswith(f"{head['number']}-")
        listed.append(f"- [{head['number']}]({path.name}): {head['title']}")
    lines = re.sub(r"\n +", " ", (FOLDER / "README.md").read_text()).splitlines()
    assert [line for line in lines if line.startswith("- [")] == listed


def test_a_record_has_at_most_40_lines_and_a_page_on_the_design_200() -> None:
    """A record is frozen, so it does not grow; what grows is split into pages."""
    most = dict.fromkeys(FOLDER.glob("[0-9]*.md"), 40)
    most |= dict.fromkeys((FOLDER.parent / "design").glob("*.md"), 200)
    lines = {path: len(path.read_text().splitlines()) for path in most}
    assert {path.name: count for path, count in lines.items() if count > most[path]} == {}
