"""Where several processes run the tests, late ones begin when all earlier ones have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

CONFTEST = """
from lab.runs.order import (
    pytest_collection_modifyitems, pytest_configure, pytest_runtest_protocol, pytest_sessionfinish,
    pytest_xdist_make_scheduler
)
"""
LATE = """
import pathlib, pytest
pytestmark = pytest.mark.{mark}
@pytest.mark.timeout(3)  # less than it waits for the other
def test_it():
    pathlib.Path("{mark}-began").touch()
    assert pathlib.Path("{after}-ended").exists()
"""
EARLIER = """
import pathlib, pytest, time
@pytest.mark.{mark}
def test_it():
    until = time.monotonic() + 4
    while time.monotonic() < until and not pathlib.Path("{before}-began").exists():
        time.sleep(0.01)
    pathlib.Path("{mark}-ended").touch()
"""

RELEASES = """
import os, pathlib, pytest, time
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("release", ["1.20.2", "1.36.2"])
def test_it(release, number):
    pathlib.Path(f"{release}-{os.getpid()}").touch()
    until = time.monotonic() + 10
    while time.monotonic() < until and len(list(pathlib.Path().glob("1.*"))) < 2:
        time.sleep(0.01)
    assert len(list(pathlib.Path().glob("1.*"))) == 2
"""


def run(folder: Path, processes: int) -> str:
    """What pytest prints of a folder's tests, all of which pass."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  starves\n  unit\n")
    words = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("mark", "after"), [("alone", "unit"), ("starves", "alone")])
def test_who_is_late_waits_for_all_earlier_ones(tmp_path: Path, mark: str, after: str) -> None:
    for name in ("late_1", "late_2"):
        (tmp_path / f"test_{name}.py").write_text(LATE.format(mark=mark, after=after))
    (tmp_path / "test_earlier.py").write_text(EARLIER.format(mark=after, before=mark))
    assert "3 passed" in run(tmp_path, 3)


def test_one_process_runs_what_a_file_has_for_one_version_of_kubernetes(tmp_path: Path) -> None:
    """And another one, beside it, what it has for the other."""
    (tmp_path / "test_versions.py").write_text(RELEASES)
    assert "4 passed" in run(tmp_path, 4)


def test_late_files_come_in_the_order_that_their_marks_say(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n")
    for name, place in (("a", 3), ("b", 1), ("c", 2)):
        text = f"import pytest\n@pytest.mark.alone({place})\ndef test_it(): pass\n"
        (tmp_path / f"test_{name}.py").write_text(text)
    listed = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    output = subprocess.check_output(listed, cwd=tmp_path, env=os.environ | path, text=True)
    assert output.splitlines()[:3] == [f"test_{name}.py::test_it" for name in "bca"]
