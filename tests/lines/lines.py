"""Which share of our Python and C was run, and whether that is as much as it was."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage
from doors import BUILD, FOLDERS, LINES, NOTES, ROOT

# Percent of all lines.
PYTHON_FLOOR = 90
C_FLOOR = 87
PLAIN = ROOT / "tests/c/_build/plain"  # of the C tests
COUNTED = ("build/coverage/c", PLAIN)


def _noted() -> dict[str, set[int]]:
    """The lines that any process ran, by file."""
    found: dict[str, set[int]] = defaultdict(set)
    for (name, line), ran in zip(json.loads(LINES.read_text()), NOTES.read_bytes(), strict=True):
        if ran:
            found[name].add(line)
    return found


def _python(*, each: bool) -> float:
    files = [str(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    measured = coverage.Coverage(data_file=None)
    data = measured.get_data()
    data.add_lines(_noted())
    data.touch_files(files)
    return measured.report(file=sys.stdout if each else io.StringIO())


def _c(*, each: bool) -> float:
    gcovr = Path(sys.executable).with_name("gcovr")
    sums = BUILD / "c.json"
    for counts in BUILD.rglob("*.gcda"):
        if counts.stat().st_size == 0:  # nobody ran it, and gcov takes it for broken
            counts.unlink()
    for notes in PLAIN.rglob("*.gcno"):  # of a source that has gone since, gcovr makes an error
        source = notes.relative_to(PLAIN / "objects").with_name(notes.name.strip(".").split(".")[0])
        if not (ROOT / source).with_suffix(".c").exists():
            notes.unlink()
    words = [gcovr, "--root", ROOT, "--filter", "native/", "--filter", "shim/", "-j", "0"]
    words += ["--merge-mode-functions", "separate", "--json-summary", sums]
    subprocess.run([*words, *(["--txt"] if each else []), *COUNTED], cwd=ROOT, check=True)
    return float(json.loads(sums.read_text())["line_percent"])


def report(*, each: bool) -> int:
    """Print the figures, of ``each`` file if that is asked for; 1 if one is below its floor."""
    figures = {
        "Python": (_python(each=each), PYTHON_FLOOR),
        "C": (_c(each=each), C_FLOOR),
    }
    for name, (share, floor) in figures.items():
        print(
            f"The tests run {share:.1f} % of the lines in {name}; at least {floor} % must be run."
        )
    return int(any(share < floor for share, floor in figures.values()))
