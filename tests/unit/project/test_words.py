"""The project's words: CONTRIBUTING.md explains each, and retired ones do not come back."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from test_layers import PACKAGES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "CONTRIBUTING.md"
CODE = {".py", ".c", ".h", ".def", ".inc"}
# These name retired words on purpose, and those of engines' configurations are not ours.
EXEMPT = ("CONTRIBUTING.md", "tests/unit/project/test_words.py", "tests/unit/install/golden/")


class Retired(NamedTuple):
    """A word that is not used any more.

    Attributes:
        word: as CONTRIBUTING.md lists it.
        pattern: what finds it in text of small letters, where ``_`` separates ``CamelCase``.
        names: it is retired in names only: sentences may have it, and so may names of tests.
        folders: where; everywhere if empty.
    """

    word: str
    pattern: str
    names: bool = False
    folders: tuple[str, ...] = ()


# There a place was the number of a GPU in the limits, or an entry of a table.
INDEXED = (
    "native/",
    "shim/",
    "node/",
    "server/",
    "hook/",
    "tests/c/",
    "tests/model/",
    "tests/sim/",
)
# There a page was the entry of one GPU in a container's limits.
PAGES = ("node/", "server/", "hook/", "native/arbiter/")
_CGPU = r"(cgpu|(its|the) (ledgers?|hooks|prox(y|ies)|cap)|the real one)"
RETIRED = (
    Retired("settle", r"(un)?settl(e[drs]?|ing|ement)"),
    Retired("conductor", r"conductors?"),
    Retired("judgement", r"judge?ments?"),
    Retired("belonging", r"belongings?"),
    Retired("seat", r"seat(s|ed)?"),
    Retired("lend", r"(lend(s|er|ing)?|lent)(?!_policy)"),  # a key of rules.json
    Retired("around", rf"around {_CGPU}"),
    Retired("told", r"(is|are|was|were|be|been|being) told(?! apart| from)"),
    Retired("said", r"(as|(is|are|was|were|be|been)) said"),
    Retired("told", r"told", names=True),
    Retired("said", r"said", names=True),
    Retired("around", r"around", names=True),
    Retired("gauge", r"gauges?(?!_metric_family)", names=True),
    Retired("place", r"(?<!in_)places?", names=True, folders=INDEXED),
    Retired("page", r"pages?", names=True, folders=PAGES),
)

_COMMENTS_AND_STRINGS = re.compile(
    r'"""[\s\S]*?"""|/\*[\s\S]*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|'
    r"(?m:^|(?<=\s))#(?!\s*(?:include|define|if|else|endif|undef))[^\n]*"
)


def _normal(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def _names(text: str) -> str:
    return re.sub(r"\btest_\w+", " ", _COMMENTS_AND_STRINGS.sub(" ", text))


@cache
def _files() -> tuple[str, ...]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = (name for name in done.stdout.splitlines() if not name.startswith(EXEMPT))
    return tuple(each for each in named if (ROOT / each).is_file())


def retired(name: str, text: str) -> list[str]:
    """The retired words in the file called ``name``, and in its name."""
    rules = [rule for rule in RETIRED if not rule.folders or name.startswith(rule.folders)]
    if name == "CHANGELOG.md":  # what was released stays as it was written
        text = text.partition("\n## 0.")[0]
    whole, names = f"{_normal(name)}\n{_normal(text)}", _normal(Path(name).stem)
    if Path(name).suffix in CODE:
        names += "\n" + _normal(_names(text))
    return [
        found[0]
        for rule in rules
        for found in re.finditer(
            rf"(?<![a-z])(?:{rule.pattern})(?![a-z])", names if rule.names else whole
        )
    ]


@cache
def _found() -> dict[str, list[str]]:
    every = {name: retired(name, (ROOT / name).read_text(errors="replace")) for name in _files()}
    return {name: words for name, words in every.items() if words}


def test_retired_words_do_not_come_back() -> None:
    assert _found() == {}


def test_no_file_has_the_marks_of_a_merge() -> None:
    """Nor where they were wrapped into a line of prose."""
    command = ["git", "grep", "-InE", "(<{7}|>{7}) [A-Za-z0-9]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def _table(title: str) -> list[tuple[str, str]]:
    """The rows of the first table below this line of the guide."""
    lines = iter(GUIDE.read_text().partition(f"\n{title}\n")[2].splitlines())
    table = takewhile(lambda line: line, dropwhile(lambda line: not line.startswith("|"), lines))
    rows = [line.strip("| ").split(" | ") for line in table]
    return [(word, meaning) for word, meaning in rows[2:]]


def test_each_word_is_explained_by_one_sentence_in_order() -> None:
    words = _table("## Words")
    assert 25 <= len(words) <= 40
    assert [word for word, _ in words] == sorted((word for word, _ in words), key=str.lower)
    assert [text for _, text in words if not re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", text)] == []


def test_each_word_that_is_explained_is_used() -> None:
    text = " ".join((ROOT / name).read_text(errors="replace").lower() for name in _files())
    words = [re.sub(r"\W*`.*", "", word).lower() for word, _ in _table("## Words")]
    assert [word for word in words if word not in text] == []


def test_the_guide_lists_the_words_that_are_retired() -> None:
    listed = {word for word, _ in _table("Retired words, and what replaces them:")}
    assert listed == {rule.word for rule in RETIRED}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "def judge_Settle(x): pass", ["settle"]),
        ("hook/a.py", "class Places: pass", ["places"]),
        ("a.py", "# in place of that\nx = 'said'  # said so\n", []),
        ("a.py", "def test_what_is_told() -> None: said()", ["said"]),
        ("shim/a.c", "/* takes the place of it */ int place;", ["place"]),
        ("shim/a.c", "#define A_PLACE 3", ["place"]),
        ("cli/a.py", "place = 1", []),
        ("server/a.py", "page = 1", ["page"]),
        ("cli/a.py", "page = 1", []),
        ("seat.py", "", ["seat"]),
        ("a.md", "Memory taken around cgpu, and white space around it.", ["around cgpu"]),
        ("a.md", "It is told apart, and nobody is told.", ["is told"]),
        ("CHANGELOG.md", "## Unreleased\n\n## 0.1.0\n\n- The seat.", []),
    ],
)
def test_a_word_is_found_where_it_is_retired(name: str, text: str, words: list[str]) -> None:
    assert retired(name, text) == words


def questions(source: str) -> list[str]:
    """The docstrings that begin as a question does; of a truth value, ``Whether`` is usual."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    texts = [ast.get_docstring(node) or "" for node in nodes]
    return [text for text in texts if re.match(r"(What|Which|Who|Where|How|Why)\b", text)]


def test_docstrings_say_what_the_code_does_or_returns() -> None:
    rooms = {package: room for package, (room, _) in PACKAGES.items() if package != "cgpu_sim"}
    folders = [ROOT / rooms[package] / package for package in rooms]
    texts = {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}
    assert {path: found for path in texts if (found := questions(texts[path]))} == {}


def test_a_docstring_that_begins_as_a_question_is_found() -> None:
    assert questions('def f():\n    """What it is."""\n') == ["What it is."]
    assert questions('def f():\n    """Whether it is."""\n') == []
