"""The order of tests where several processes run them: files that take long first, alone last.

Tests marked alone measure in real time. They begin when every process has ended all of its others,
and run beside each other only.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_ORDER = ("system", "c", "integration", "unit", "alone")
_OTHERS = pytest.StashKey[IO[bytes]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of unit tests are short: they fill up what is left at the end."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return max((_ORDER.index(m.name) for m in item.iter_markers() if m.name in _ORDER), default=0)


def pytest_configure(config: pytest.Config) -> None:
    """A process shares a lock while it may run tests that are not alone."""
    if hasattr(config, "workerinput"):
        config.stash[_OTHERS] = Path(config.option.basetemp).with_name("others").open("w+b")
        fcntl.lockf(config.stash[_OTHERS], fcntl.LOCK_SH)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Before the first test that is alone, wait until nobody shares it: outside its time limit."""
    others = item.config.stash.get(_OTHERS, None)
    if others is not None and item.get_closest_marker("alone"):
        for step in (fcntl.LOCK_UN, fcntl.LOCK_EX, fcntl.LOCK_UN):
            fcntl.lockf(others, step)
        del item.config.stash[_OTHERS]
    return (yield)
