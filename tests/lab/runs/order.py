"""The order of tests where several processes run them: files that take long first.

Tests marked alone measure in real time. They begin when every process has ended all of its others,
and run beside each other only. The mark numbers their files: what takes long comes first, and what
takes most of the processors is not beside its like. Tests marked starves begin when those have
ended too, and run beside none. Design: docs/design/tests.md.
"""

from __future__ import annotations

import fcntl
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Generator

_RELEASE = re.compile(r"\[(\d+\.\d+\.\d+)[-\]]")  # of Kubernetes, the first of a test's parameters
_LATE = ("alone", "starves")
_ORDER = ("system", "c", "integration", "unit", *_LATE)
_EARLIER = pytest.StashKey[dict[str, IO[bytes]]]()


class FileScheduling(LoadFileScheduling):
    """A file is run by one process, but for each version of Kubernetes by one of its own."""

    def _split_scope(self, nodeid: str) -> str:
        found = _RELEASE.search(nodeid)
        return super()._split_scope(nodeid) + (found[1] if found else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    """Instead of what ``--dist`` names."""
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of unit tests are short: they fill up what is left at the end."""
    items.sort(key=lambda item: (_rank(item), _place(item)))


def _place(item: pytest.Item) -> int:
    """Among those with its mark; 0 where that says nothing."""
    mark = item.get_closest_marker("alone")
    return int(mark.args[0]) if mark and mark.args else 0


def _rank(item: pytest.Item) -> int:
    return max((_ORDER.index(m.name) for m in item.iter_markers() if m.name in _ORDER), default=0)


def pytest_configure(config: pytest.Config) -> None:
    """For each late mark, a process shares a lock while it may run tests that come before it."""
    if not hasattr(config, "workerinput"):
        return
    beside = Path(config.option.basetemp)
    config.stash[_EARLIER] = {m: beside.with_name(f"before-{m}").open("w+b") for m in _LATE}
    for lock in config.stash[_EARLIER].values():
        fcntl.lockf(lock, fcntl.LOCK_SH)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Before the first test with a late mark, wait until nobody shares its lock.

    That is outside the test's time limit.
    """
    earlier = item.config.stash.get(_EARLIER, {})
    for mark in _LATE[: max(0, _rank(item) - _ORDER.index(_LATE[0]) + 1)]:
        lock = earlier.pop(mark, None)
        for step in (fcntl.LOCK_UN, fcntl.LOCK_EX, fcntl.LOCK_UN) if lock else ():
            fcntl.lockf(lock, step)
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Who has no test left holds nobody up; the process lives on until all have ended."""
    for lock in session.config.stash.get(_EARLIER, {}).values():
        lock.close()
