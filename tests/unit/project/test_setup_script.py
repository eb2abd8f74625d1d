"""What ``deploy/setup.sh`` and ``deploy/step.sh`` say before and while they work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
NEEDED = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())


@pytest.fixture
def old_python(tmp_path: Path) -> Path:
    """An interpreter that says that it is older than all that cgpu runs on."""
    program = tmp_path / "python3.9"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 9, 18)\n"
        "sys.argv = sys.argv[1:]\nexec(sys.argv.pop(1))\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As much of this repository as `make demo` reads before it makes anything."""
    tree = tmp_path / "tree"
    (tree / "deploy").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "deploy/setup.sh", "deploy/step.sh"):
        shutil.copyfile(ROOT / name, tree / name)
    return tree


def refusal(tree: Path, python: str | Path) -> str:
    """The sentence with which `make demo` refuses an interpreter; make adds a line of its own."""
    before = sorted(tree.rglob("*"))
    command = ["make", "-C", str(tree), "demo", f"PYTHON={python}"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sorted(tree.rglob("*")) == before
    assert all(line.startswith("make: ") for line in done.stdout.splitlines())
    output, of_make = done.stderr.splitlines()
    assert of_make.startswith("make: *** [Makefile:")
    return output


def test_a_python_that_is_too_old_is_refused_before_anything_is_made(
    tree: Path, old_python: Path
) -> None:
    assert NEEDED
    output = refusal(tree, old_python)
    assert output.startswith(f"cgpu needs Python {NEEDED[1]} or newer, and {old_python} is 3.9: ")


def test_a_python_that_does_not_exist_is_refused_before_anything_is_made(tree: Path) -> None:
    assert NEEDED
    assert refusal(tree, "python9.9") == (
        f"cgpu needs Python {NEEDED[1]} or newer, and there is no python9.9 here:"
        " name one that is there, as in: make demo PYTHON=python3.12"
    )


def test_a_target_that_needs_root_says_so_before_anything_is_made(tree: Path) -> None:
    (tree / "id").write_text("#!/bin/sh\necho 1000\n")
    (tree / "id").chmod(0o755)
    before = sorted(tree.rglob("*"))
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    alone["PATH"] = f"{tree}:{alone['PATH']}"
    for target in ("demo-k8s", "test", "faults", "coverage"):
        command = ["make", "-C", str(tree), target]
        done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
        output = done.stderr.partition("*** ")[2]
        assert output == f"make {target}: you are not root: run it as root.  Stop.\n"
    assert sorted(tree.rglob("*")) == before


def test_a_step_says_how_long_it_took_and_nothing_else() -> None:
    command = ["sh", ROOT / "deploy/step.sh", "Working", "sh", "-c", "echo noise; echo more >&2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"Working \.\.\.\nWorking: \d+ s\n", done.stdout)
    assert done.stderr == ""


def test_a_step_that_fails_shows_what_was_said() -> None:
    command = ["sh", ROOT / "deploy/step.sh", "Working", "sh", "-c", "echo reason; exit 3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Working: failed:\nreason\n")


def test_others_can_read_what_a_step_makes_under_a_closed_umask(tmp_path: Path) -> None:
    command = ["sh", ROOT / "deploy/step.sh", "Working", "mkdir", tmp_path / "made"]
    subprocess.run(command, capture_output=True, check=True, umask=0o077)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755
