"""Paths of the source tree for every test, and what no test leaves to the next."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from lab.runs.children import pytest_runtest_call, pytest_timeout_set_timer  # noqa: F401 (hooks)
from lab.runs.counted import pytest_runtest_setup  # noqa: F401
from lab.runs.order import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_protocol,
    pytest_sessionfinish,
    pytest_xdist_make_scheduler,
)
from lab.runs.readable import check_readable
from lab.runs.signals import keep_from_children
from lab.runs.slowest import pytest_terminal_summary  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "native", "shim", "node", "hook", "server", "cli", "k8s", "tests", "tests/sim")

for folder in reversed(FOLDERS):
    path = str((ROOT / folder).resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


# No test asserts timings; what else the environment asks for, such as CI's own examples, stays.
hypothesis.settings.register_profile("any-speed", hypothesis.settings(deadline=None))
hypothesis.settings.load_profile("any-speed")

keep_from_children()
check_readable(ROOT)


@pytest.fixture(autouse=True)
def _broken_pipes() -> Iterator[None]:
    """A command that a test runs in this process lets a broken pipe end it: not the next tests."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, before)
