"""A child that hangs ends with the time of its test, which shows what the child had said."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration

CONFTEST = "from lab.runs.children import pytest_runtest_call, pytest_timeout_set_timer\n"
SAYS = "import time; print('what it said', flush=True); time.sleep(1000)"
POPEN = f"subprocess.Popen([sys.executable, '-c', {SAYS!r}], text=True, stdout=subprocess.PIPE)"
START = f"Child([sys.executable, '-c', {SAYS!r}], dict(os.environ))"
HEAD = "import os, subprocess, sys\nfrom lab.runs.children import Child\n"


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[[str], str]:
    """What pytest says of a test that has two seconds."""

    def run(body: str) -> str:
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "test_inner.py").write_text(HEAD + body)
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=2", "test_inner.py"]
        done = subprocess.run(
            [sys.executable, *words, "-c", os.devnull, "--rootdir", tmp_path],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 1, done
        return done.stdout

    return run


@pytest.mark.parametrize("start", [POPEN, START])
def test_it_is_killed_where_it_is_waited_for_without_end(
    outcome: Callable[[str], str], start: str
) -> None:
    output = outcome(
        "def test_it():\n"
        f"    with {start} as process:\n"
        "        out, _ = process.communicate()\n"
        "    assert (process.returncode, out) == (0, '')\n"
    )
    assert "assert (-9, 'what it said\\n') == (0, '')" in output


def test_it_is_killed_where_the_test_fails_beside_it(outcome: Callable[[str], str]) -> None:
    output = outcome(f"def test_it():\n    with {START}:\n        raise ValueError\n")
    assert "ValueError" in output
    assert "what it said" in output


def test_it_is_killed_where_its_own_time_is_over_before_the_tests(
    outcome: Callable[[str], str],
) -> None:
    output = outcome(
        f"def test_it():\n    with {START} as process:\n        process.communicate(timeout=0.5)\n"
    )
    assert "TimeoutExpired" in output
    assert "what it said" in output


def test_what_fails_because_its_child_was_killed_says_that_its_time_was_over(
    outcome: Callable[[str], str],
) -> None:
    output = outcome(f"def test_it():\n    {POPEN}.wait()\n    open('/gone')\n")
    assert "FileNotFoundError" in output
    assert "FAILED test_inner.py::test_it - Failed: its time was over" in output


def test_a_test_that_needed_its_child_killed_does_not_pass(outcome: Callable[[str], str]) -> None:
    output = outcome(f"def test_it():\n    assert {POPEN}.wait() == -9\n")
    assert "it passed when its time was over" in output


def test_a_test_that_hangs_by_itself_ends_too(outcome: Callable[[str], str]) -> None:
    output = outcome(f"import time\ndef test_it():\n    {POPEN}.wait()\n    time.sleep(1000)\n")
    assert "Timeout" in output


def test_what_the_driver_of_a_container_hangs_in_is_shown(
    outcome: Callable[[str], str], tmp_path: Path
) -> None:
    output = outcome(
        "from pathlib import Path\n"
        "from lab.driver.cuda_proxied import make_proxied\n"
        "def test_it():\n"
        f"    make_proxied(Path({str(tmp_path)!r})).check({SAYS!r})\n"
    )
    assert "Outcome(code=-9, out=['what it said']" in output
