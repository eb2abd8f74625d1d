"""Which share of our Python and C was run, and whether that is as much as it was."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage
from doors import FOLDERS, LINES, ROOT

# Percent of all lines.
PYTHON_FLOOR = 90
C_FLOOR = 87
COUNTED = ("build/coverage/c", "tests/c/_build/plain")  # integration tests, C tests


def _recorded() -> dict[str, set[int]]:
    """The lines that any process ran, by file."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in LINES.iterdir():
        for row in path.read_text().splitlines():
            name, _, numbers = row.partition("\t")
            found[name].update(map(int, numbers.split()))
    return found


def _python() -> bool:
    files = [str(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    measured = coverage.Coverage(data_file=None)
    data = measured.get_data()
    data.add_lines({name: seen for name, seen in _recorded().items() if name in files})
    data.touch_files(files)
    return measured.report() >= PYTHON_FLOOR


def _c() -> bool:
    gcovr = Path(sys.executable).with_name("gcovr")
    words = [gcovr, "--root", ROOT, "--filter", "native/", "--filter", "shim/"]
    words += ["--merge-mode-functions", "separate", "--fail-under-line", str(C_FLOOR)]
    return subprocess.run([*words, *COUNTED], cwd=ROOT, check=False).returncode == 0


def report() -> int:
    """Print the figures; 1 if one is below its floor."""
    python, c = _python(), _c()
    for name, enough, floor in (("Python", python, PYTHON_FLOOR), ("C", c, C_FLOOR)):
        if not enough:
            print(f"Tests run less than {floor} % of the lines in {name}: see above which.")
    return int(not (python and c))
