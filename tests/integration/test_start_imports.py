"""What a start loads: half of its time is spent on imports, so each one more has to be meant.

A module costs about 0.1 ms. Whoever needs another one on a start path adds it here, and measures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hook_world import World

from cgpu_node import bootstrap, own_code

pytestmark = pytest.mark.integration

PYTHON = [sys.executable, "-I", "-S", "-E", "-X", "importtime"]
# Of the standard library; ``os`` and what it brings is there anyway.
EDITOR = {
    *("__future__", "_operator", "errno", "gc", "time"),
    *("_json", "_socket", "fcntl"),
}
LAUNCHER = EDITOR - {"_socket", "gc"} | {
    *("_ctypes", "_struct", "ctypes", "ctypes._endian", "struct", "types"),
}
MOST_OF_OURS = 48


def loaded(*arguments: str | Path) -> list[str]:
    """The modules that a program imports."""
    done = subprocess.run(
        [*PYTHON, *arguments], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:")]
    return [row[2].strip() for row in rows[1:]]


def check(modules: list[str], standard: set[str]) -> None:
    """Nothing is loaded that is not known, and no more of ours than there are now."""
    ours = [name for name in modules if name.startswith("cgpu_")]
    others = set(modules).difference(loaded("-c", "import os"), ours, {"_cffi_backend"})
    assert others <= standard
    assert len(ours) <= MOST_OF_OURS, ours


def test_the_editor_loads_only_what_it_uses(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.write_config(hooks={"prestart": [{"path": "/proc/1/exe"}]})
    modules = loaded(
        *(bootstrap.__file__, "cgpu_hook.command", "edit", "--config", world.config),
        *("--bundle", world.bundle),
        *("--id", "c1", "--pid", "1", "--runtime-dir", "/nowhere"),
        *("--state-dir", world.state, "--driver-dir", world.driver),
    )
    assert world.shares() == ["c1"]
    check(modules, EDITOR)


def test_cgpu_run_loads_only_what_it_uses() -> None:
    code = f"import sys; sys.path += {own_code.import_path()}; import cgpu_cli.run"
    check(loaded("-c", code), LAUNCHER)
