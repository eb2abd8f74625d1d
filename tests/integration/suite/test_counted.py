"""Where lines are counted, tests marked exact have the programs as they are built."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.runs.counted import OUTSIDE, PROXIES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

CONFTEST = "from lab.runs.counted import pytest_runtest_setup\n"
TESTS = f"""
import os, pathlib, pytest
def check(program, counts):
    assert pathlib.Path("program").read_text() == program
    assert ({PROXIES!r} in os.environ) is counts
def test_it(): check("counts", True)
@pytest.mark.exact
def test_exactly(): check("built", False)
def test_again(): check("counts", True)
"""
COVERED = 'mount --bind cover program && exec "$@"'


def test_exact_tests_are_outside_of_what_counts(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_inner.py": TESTS, "program": "built", "cover": "counts"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  exact\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", COVERED, "sh", *words],
        cwd=tmp_path,
        env=os.environ
        | {
            OUTSIDE: f"/proc/{os.getpid()}/ns/mnt",
            PROXIES: "proxies",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
