"""Every file and folder that the pages for developers name is there, where the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("docs/ARCHITECTURE.md", "CONTRIBUTING.md")
MADE = {"dist"}  # by `make`
TOP = {path.name for path in ROOT.iterdir()} - MADE
# Not what begins with / or <state>: that is on a host or in a container.
WORD = re.compile(r"(?<![\w/<>.-])[\w*][\w*<>.-]*(?:/[\w*<>.-]*)*")
SOURCE = re.compile(r"\.(py|c|h|def|csv)$")


def missing(page: str) -> list[str]:
    """The paths that lead nowhere.

    A path begins at the top of the repository. Any other, and a file without a folder, goes by a
    path before it: the last one, or the last one that began a line. In a table or a list that is
    one of the same row.
    """
    wrong, heading, last = [], ROOT, ROOT
    for line in page.splitlines():
        if line.startswith(("#", "|", "- ")) or re.match(r"\d\. ", line):
            heading = last = ROOT
        for found in WORD.finditer(line):
            word = found[0].rstrip(".")
            pattern = re.sub(r"<\w+>", "*", word).rstrip("/")
            if ("/" in word or "." in word) and word.partition("/")[0] in TOP:
                places = [ROOT]
            elif SOURCE.search(word) or (word.endswith("/") and word.rstrip("/") not in MADE):
                above = (*last.parents, *heading.parents) if "/" in word.rstrip("/") else ()
                places = [heading, last, *above]
            else:
                continue
            place = next((place for place in places if any(place.glob(pattern))), None)
            if place is None:
                wrong.append(word)
            elif "/" in word.rstrip("/") or (place == ROOT and "/" in word):
                last = place / (word if word.endswith("/") else word.rpartition("/")[0])
                heading = heading if found.start() else last
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text()) == []


def test_a_path_that_leads_nowhere_is_found() -> None:
    assert missing("`cli/cgpu_cli/smi.py`, `run.py`, `sim.py`") == ["sim.py"]
    assert missing("`cli/cgpu_server/tree.py`") == ["cli/cgpu_server/tree.py"]
    assert missing("`native/policy/policy_<name>.c`, `policy_<name>.py`") == ["policy_<name>.py"]


def test_a_row_of_a_table_does_not_go_by_the_row_above() -> None:
    assert missing("| `cli/cgpu_cli/smi.py` |\n| `run.py` |") == ["run.py"]
    assert missing("cli/cgpu_cli/smi.py\n   run.py") == []
