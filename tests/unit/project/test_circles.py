"""C files of one folder that call each other in a circle: none is added to those listed here.

`test_layers.py` lists the circles of Python modules.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
# Folder: the files of each circle in it.
CIRCLES = {
    "native/ledger": ("attachment lock sharing slot work",),
}
COMMENT_OR_STRING = re.compile(r'/\*[\s\S]*?\*/|"(?:\\.|[^"\\\n])*"')
# The type is on a line of its own above the name.
DEFINITION = re.compile(
    r"^(?P<type>[^\n;}]*)\n(?P<name>(?!__attribute__)\w+)\([^;{]*\)\s*\{", re.MULTILINE
)


def circles(sources: dict[str, str]) -> set[frozenset[str]]:
    """The groups of files each of which uses, over others of the group, all of the group."""
    texts = {name: COMMENT_OR_STRING.sub(" ", text) for name, text in sources.items()}
    owner = {
        found["name"]: name
        for name, text in texts.items()
        for found in DEFINITION.finditer(text)
        if "static" not in found["type"]
    }
    used = {
        name: {owner[word] for word in re.findall(r"\w+", text) if word in owner} - {name}
        for name, text in texts.items()
    }
    reach = {name: reached(name, used) for name in used}
    return {
        frozenset(each for each in names if name in reach[each])
        for name, names in reach.items()
        if name in names
    }


def reached(name: str, used: dict[str, set[str]]) -> set[str]:
    """What a file uses, and what that uses, and so on."""
    found: set[str] = set()
    ahead = [*used[name]]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += used[each]
    return found


def test_c_files_call_each_other_in_circles_only_where_it_is_listed() -> None:
    patterns = ("native/*.c", "shim/*.c", "hook/*.c")
    listed = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    folders: dict[str, dict[str, str]] = defaultdict(dict)
    for path in map(Path, listed.split()):
        folders[str(path.parent)][path.stem] = (ROOT / path).read_text()
    found = {name: circles(sources) for name, sources in folders.items()}
    expected = {name: {frozenset(each.split()) for each in CIRCLES[name]} for name in CIRCLES}
    assert {name: each for name, each in found.items() if each} == expected


@pytest.mark.parametrize(
    ("back", "expected"),
    [
        ("one();", {frozenset({"a", "b"})}),
        ("/* one(); */", set()),
        ('log("one");', set()),
    ],
)
def test_a_circle_is_found_where_a_file_is_called_back(
    back: str, expected: set[frozenset[str]]
) -> None:
    sources = {
        "a": "\nvoid\none(void)\n{\n    two();\n}\n",
        "b": f"\nvoid\ntwo(void)\n{{\n    {back}\n}}\n",
        "c": "\nstatic void\none(void)\n{\n    two();\n}\n",
    }
    assert circles(sources) == expected
