"""docs/contract.md says what every promise means that tests, code and documents name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "contract.md"
FOLDERS = (
    "bench",
    "cgpu_env",
    "cli",
    "deploy",
    "docs",
    "hook",
    "k8s",
    "native",
    "node",
    "server",
    "shim",
    "tests",
)
KINDS = (".py", ".c", ".h", ".md", ".def", ".inc", ".csv", ".toml", ".yml", ".json")
# MEM-1; SCH-9, 10; ENV-8..10
NAME = re.compile(r"\b(ENV|MEM|SCH|TREE|CLI|REL|K8S|COS|DRA)-(\d+)((?:(?:\.\.|, )\d+\b)*)")
ROW = re.compile(r"^\| ([A-Z0-9]+-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
IN_WORK = "in work"


def named(text: str) -> set[str]:
    """The identifiers in a text."""
    found = set()
    for kind, first, more in NAME.findall(text):
        last = int(first)
        found.add(f"{kind}-{last}")
        for sign, number in re.findall(r"(\.\.|, )(\d+)", more):
            begin = last + 1 if sign == ".." else int(number)
            found |= {f"{kind}-{each}" for each in range(begin, int(number) + 1)}
            last = int(number)
    return found


def rows() -> dict[str, tuple[str, str]]:
    """Promise and tests by identifier."""
    return {name: (promise, tests) for name, promise, tests in ROW.findall(PAGE.read_text())}


def files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    ours = [path for path in (*ROOT.glob("*.md"), *inside) if path.suffix in KINDS]
    return [path for path in ours if path.is_file() and "_build" not in path.parts]


def test_ranges_and_lists_are_read() -> None:
    assert named("ENV-8..10, SCH-9, 10 and (CLI-1, 4)") == {
        *("ENV-8", "ENV-9", "ENV-10", "SCH-9", "SCH-10", "CLI-1", "CLI-4"),
    }


def test_every_identifier_in_the_tree_has_a_row() -> None:
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files()
        if path != PAGE
        for name in named(path.read_text(errors="replace")) - rows().keys()
    }
    assert unknown == set()


@pytest.mark.parametrize("name", rows())
def test_the_tests_of_a_promise_are_there_and_name_it(name: str) -> None:
    _, output = rows()[name]
    if output == IN_WORK:
        return
    tests = re.findall(r"`([^`]+)`", output)
    assert tests
    for test in tests:
        assert name in named((ROOT / "tests" / test).read_text()), test


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
