"""Every file and folder that the pages for developers name is there, where the page says."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
LISTED = subprocess.check_output(["git", "ls-files", "*README.md"], cwd=ROOT, text=True).split()
OTHERS = {"README.md", "deploy/README.md", "docs/decisions/README.md"}  # for users, and a list
READMES = [name for name in LISTED if name not in OTHERS]
PAGES = ("docs/ARCHITECTURE.md", "CONTRIBUTING.md", *READMES)
DESIGN = sorted(path.name for path in (ROOT / "docs/design").iterdir())
MADE = {"dist"}  # by `make`
TOP = {path.name for path in ROOT.iterdir()} - MADE
# Not what begins with / or <state>: that is on a host or in a container.
WORD = re.compile(r"(?<![\w/<>.-])[\w*][\w*<>.-]*(?:/[\w*<>.-]*)*")
SOURCES = ("*.py", "*.c", "*.h", "*.def")
SOURCE = re.compile(r"\.(py|c|h|def|csv)$")


def named(page: str, room: Path = ROOT) -> list[tuple[str, list[Path]]]:
    """The paths on a page, and which files and folders each of them names; none: it is wrong.

    A path begins at the top of the repository, or in the room whose page it is. Any other, and a
    file without a folder, goes by a path before it: the last one, or the last one that began a
    line. In a table or a list that is one of the same row.
    """
    names, heading, last = [], room, room
    for line in page.splitlines():
        if line.startswith(("#", "|", "- ")) or re.match(r"\d\. ", line):
            heading = last = room
        for found in WORD.finditer(line):
            word = found[0].rstrip(".")
            pattern = re.sub(r"<\w+>", "*", word).rstrip("/")
            if ("/" in word or "." in word) and word.partition("/")[0] in TOP:
                places = [room, ROOT]
            elif SOURCE.search(word) or (word.endswith("/") and word.rstrip("/") not in MADE):
                above = (*last.parents, *heading.parents) if "/" in word.rstrip("/") else ()
                places = [heading, last, *above]
            else:
                continue
            place = next((place for place in places if any(place.glob(pattern))), None)
            names.append((word, [] if place is None else [*place.glob(pattern)]))
            if place and ("/" in word.rstrip("/") or (place == room and "/" in word)):
                last = place / (word if word.endswith("/") else word.rpartition("/")[0])
                heading = heading if found.start() else last
    return names


def missing(page: str, room: Path = ROOT) -> list[str]:
    """The paths that lead nowhere."""
    return [word for word, paths in named(page, room) if not paths]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_is_there(page: str) -> None:
    room = (ROOT / page).parent if page in READMES else ROOT
    assert missing((ROOT / page).read_text(), room) == []


@pytest.mark.parametrize("name", DESIGN)
def test_every_file_that_a_page_on_the_design_names_is_somewhere(name: str) -> None:
    """Such a page names files of its room without their folders."""
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    paths = [f"/{path}" for path in listed.split()]
    words = {found[0] for found in WORD.finditer((ROOT / "docs/design" / name).read_text())}
    files = {re.sub(r"<\w+>|NAME", "*", word) for word in words if SOURCE.search(word)}
    assert {word for word in files if not fnmatch.filter(paths, f"*/{word}")} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_on_the_page_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\((?!http|#)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_each_file_of_a_room_is_in_a_readme_of_the_room() -> None:
    """But for the program's beginning, and for a header beside its source."""
    listed = subprocess.check_output(["git", "ls-files", *SOURCES], cwd=ROOT, text=True).split()
    rooms = {(ROOT / page).parent: (ROOT / page).read_text() for page in READMES}
    read = {
        path for room, page in rooms.items() for _, paths in named(page, room) for path in paths
    }
    files = [ROOT / name for name in listed if name.partition("/")[0] not in {"tests", "deploy"}]
    unnamed = {
        str(path.relative_to(ROOT))
        for path in files
        if path.parent != ROOT and path.stem not in {"__init__", "__main__", "main"}
        if path not in read and (path.suffix != ".h" or not path.with_suffix(".c").exists())
    }
    assert unnamed == set()


def test_each_room_has_a_readme_and_no_page_is_longer_than_one_reads() -> None:
    table = (
        (ROOT / "docs/ARCHITECTURE.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    )
    rooms = set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE))
    assert {f"{room}/README.md" for room in rooms - {"deploy", "docs"}} <= set(READMES)
    most = dict.fromkeys(READMES, 25) | {"docs/ARCHITECTURE.md": 150}
    lines = {page: len((ROOT / page).read_text().splitlines()) for page in most}
    assert {page: count for page, count in lines.items() if count > most[page]} == {}


def test_a_path_that_leads_nowhere_is_found() -> None:
    assert missing("`cli/cgpu_cli/smi.py`, `run.py`, `sim.py`") == ["sim.py"]
    assert missing("`cli/cgpu_server/tree.py`") == ["cli/cgpu_server/tree.py"]
    assert missing("`native/policy/policy_<name>.c`, `policy_<name>.py`") == ["policy_<name>.py"]
    assert missing("`cgpu_cli/smi.py`, `sim.py`, `run.py`", ROOT / "cli") == ["sim.py"]


def test_a_row_of_a_table_does_not_go_by_the_row_above() -> None:
    assert missing("| `cli/cgpu_cli/smi.py` |\n| `run.py` |") == ["run.py"]
    assert missing("cli/cgpu_cli/smi.py\n   run.py") == []
