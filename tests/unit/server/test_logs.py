"""What is logged: the page about it, its lines, its rate and its levels."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cgpu_env.logline import LONGEST_VALUE, format_line, quote_value
from cgpu_server.journal import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "logs.md").read_text()
LEVELS = ("info", "warning", "error")
OURS = {  # not by the server's ``log``
    "more": "info",
    "library_says": "error",
    "container_refused": "error",
    "size_missing": "warning",
}


class Call(NamedTuple):
    """``log.<level>(event, key=...)``; ``spread``: what stands behind ``**``."""

    level: str
    event: str
    keys: frozenset[str]
    where: str


def calls() -> Iterator[Call]:
    """Every call of the server's log."""
    for file in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and node.func.attr != "flush"
            ):
                where = f"{file.relative_to(ROOT)}:{node.lineno}"
                [event] = node.args
                assert isinstance(event, ast.Constant), f"{where}: the event is no literal"
                keys = frozenset(k.arg for k in node.keywords if k.arg is not None)
                yield Call(node.func.attr, event.value, keys, where)


def rows(title: str) -> dict[str, list[str]]:
    """The table below the heading ``title``, by what its first column quotes."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines()]
    return {
        name: cells[1:]
        for cells in lines
        if cells and cells[0].startswith("`")
        for name in re.findall(r"`([^`]+)`", cells[0])
    }


def test_the_page_lists_the_events_with_their_levels() -> None:
    made = {call.event: call.level for call in calls()}
    assert made | OURS == {event: cells[0] for event, cells in rows("Events").items()}


def test_every_warning_and_error_says_what_to_do_there_and_on_the_page() -> None:
    silent = [c.where for c in calls() if c.level != "info" and "do" not in c.keys]
    assert silent == []
    assert [e for e, (level, _, do) in rows("Events").items() if level != "info" and not do] == []


def test_keys_and_events_are_words_of_one_vocabulary() -> None:
    known = set(rows("Lines"))
    assert {key for call in calls() for key in call.keys} <= known
    assert [c.where for c in calls() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", c.event)] == []
    assert [c.where for c in calls() if c.level not in LEVELS] == []


def test_nothing_of_the_server_or_the_hook_logs_in_another_way() -> None:
    others = re.compile(r"\b(getLogger|logging\.(info|warning|error|exception)|syslog\()")
    found = {
        str(file.relative_to(ROOT))
        for folder in ("cli", "hook", "node", "server")
        for file in (ROOT / folder).rglob("*.py")
        if others.search(file.read_text())
    }
    assert found == {"server/cgpu_server/journal.py", "hook/cgpu_hook/systemlog.py"}


def test_the_page_lists_the_sentences_of_a_containers_log() -> None:
    text = "".join(file.read_text() for file in (ROOT / "shim" / "cuda").rglob("*.c"))
    flat = re.sub(r'"\s*"', "", text)
    output = set(re.findall(r'add\(&line, "([a-z][^"]*)"\)|cgpu_log_text\(\w+,\s*"([^"]+)"', flat))
    output |= {("", s) for s in re.findall(r'CGPU_LOG_[A-Z]+,\s*"([a-z][^"]+)"', flat)}
    begun = rows("Sentences in a container's log")
    for sentence in filter(None, ("".join(pair) for pair in output)):
        assert any(sentence.startswith(begin) for begin in begun), sentence
    for begin in begun:
        assert begin in flat, begin


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("GPU-1.2:/a", "GPU-1.2:/a"),
        (True, "1"),
        ("", '""'),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('say "x"\n\x1b[31m\x7f', '"say \\"x\\"\\n\\u001b[31m\\u007f"'),
        ("\u2028\x85\udc80é", '"\\u2028\\u0085\\udc80\\u00e9"'),
    ],
)
def test_no_value_breaks_a_line(value: object, shown: str) -> None:
    assert quote_value(value) == shown
    assert format_line("event", {"key": value}).isprintable()
    if shown.startswith('"'):
        assert json.loads(shown) == str(value)


def test_a_long_value_is_cut() -> None:
    assert quote_value("x" * 1000) == f'"{"x" * LONGEST_VALUE}..."'.strip('"')


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def journal(kept: Kept, now: list[float]) -> EventLog:
    logger = logging.getLogger("test")
    logger.handlers, logger.propagate = [], False
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    return EventLog(logger, 2, 60, lambda: now[0])


def test_an_event_is_logged_so_many_times_a_minute(
    journal: EventLog, kept: Kept, now: list[float]
) -> None:
    for number in range(5):
        journal.warning("full", do="empty it", count=number)
    journal.info("other")
    now[0] = 60
    journal.info("next")
    assert kept.lines == [
        'WARNING full count=0 do="empty it"',
        'WARNING full count=1 do="empty it"',
        "INFO other",
        "WARNING more event=full count=3",
        "INFO next",
    ]


def test_what_was_held_back_is_told_even_if_nothing_follows(
    journal: EventLog, kept: Kept, now: list[float]
) -> None:
    for _ in range(3):
        journal.info("x")
    now[0] = 59.9
    journal.flush()
    assert kept.lines == ["INFO x"] * 2
    now[0] = 60
    journal.flush()
    journal.flush()
    assert kept.lines == [*["INFO x"] * 2, "INFO more event=x count=1"]


def test_what_was_held_back_is_told_at_the_end(journal: EventLog, kept: Kept) -> None:
    for _ in range(3):
        journal.info("x")
    journal.flush(everything=True)
    assert kept.lines[-1] == "INFO more event=x count=1"


def test_threads_that_log_at_once_lose_no_count(journal: EventLog, kept: Kept) -> None:
    def many() -> None:
        for _ in range(500):
            journal.info("x")

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.flush(everything=True)
    assert kept.lines == [*["INFO x"] * 2, "INFO more event=x count=1998"]


PROGRAM = """
import logging, os
from cgpu_server.journal import log, open_log
if SERVICE:
    facts = os.fstat(2)
    os.environ["JOURNAL_STREAM"] = f"{facts.st_dev}:{facts.st_ino}"
open_log(None)
log.info("serving", path="/x")
log.error("look_fails", error="a\\nb", do="wait")
try:
    raise KeyError("k")
except KeyError:
    logging.getLogger("asyncio").exception("lost\\n%s", 1)
"""


@pytest.mark.parametrize("service", [False, True], ids=["terminal", "journal"])
def test_a_line_has_its_level_and_one_for_the_journal(service: bool) -> None:  # noqa: FBT001
    program = PROGRAM.replace("SERVICE", str(service))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    expected = [
        (6, "cgpud: INFO serving path=/x"),
        (3, 'cgpud: ERROR look_fails error="a\\nb" do=wait'),
        (3, 'cgpud: ERROR library_says library=asyncio error="lost\\n1: KeyError('),
    ]
    for shown, (number, text) in zip(done.stderr.splitlines(), expected, strict=True):
        assert shown.startswith(f"<{number}>{text}" if service else text)
