"""Where several processes run the tests, those marked alone begin when all others have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONFTEST = """
from lab.runs.order import pytest_collection_modifyitems, pytest_configure, pytest_runtest_protocol
"""
ALONE = """
import pathlib, pytest
pytestmark = pytest.mark.alone
@pytest.mark.timeout(3)  # less than it waits for the other
def test_it():
    pathlib.Path("{name}").touch()
    assert pathlib.Path("ended").exists()
"""
OTHER = """
import pathlib, pytest, time
@pytest.mark.unit
def test_it():
    until = time.monotonic() + 4
    while time.monotonic() < until and not list(pathlib.Path().glob("alone*")):
        time.sleep(0.01)
    pathlib.Path("ended").touch()
"""


def test_who_is_alone_waits_for_all_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  unit\n")
    for name in ("alone_1", "alone_2"):
        (tmp_path / f"test_{name}.py").write_text(ALONE.format(name=name))
    (tmp_path / "test_other.py").write_text(OTHER)
    processes = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *processes, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
