"""What a start loads: half of its time is spent on imports, so each one more has to be meant.

A module costs about 0.1 ms. Whoever needs another one on a start path adds it here, and measures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_node import bootstrap, code_bundle
from lab.runs.opened import opened
from lab.worlds.hook import World

pytestmark = pytest.mark.integration

PYTHON = [sys.executable, "-I", "-S", "-E", "-X", "importtime"]
# Of the standard library; ``os`` and what it brings is there anyway.
EDITOR = {
    *("__future__", "_operator", "errno", "gc", "time"),
    *("_json", "_socket", "fcntl"),
}
LAUNCHER = EDITOR - {"_socket", "gc"}
THREE = ["ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15"]
MOST_OF_OURS = 50
# Of the world, beside two other containers. Their records are read twice: before the lock is taken,
# for those whose end only a pass over all processes finds, and under it.
MOST_READ = 16
MOST_CODE = 3  # the package of code_bundle, itself, and the file with all others


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


def editor(world: World, name: str) -> list[str | Path]:
    """The command line of a container's creation, without interpreter."""
    world.write_config(THREE, hooks={"prestart": [{"path": "/proc/1/exe"}]})
    return [
        *(bootstrap.__file__, "cgpu_hook.command", "edit", "--config", world.config),
        *("--bundle", world.bundle),
        *("--id", name, "--pid", "1", "--runtime-dir", "/nowhere"),
        *("--state-dir", world.state, "--driver-dir", world.driver),
    ]


def test_the_editor_loads_only_what_it_uses(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    modules = loaded(*editor(world, "c1"))
    assert world.shares() == ["c1"]
    check(modules, EDITOR)


def test_the_editor_opens_each_file_once(tmp_path: Path) -> None:
    """What the node and the container say is read once, and modules come from one file."""
    world = World(tmp_path / "world")
    for name in ("c1", "c2", "c3"):  # the second one is the first beside another
        paths = opened(*editor(world, name))[1]
    assert world.shares() == ["c1", "c2", "c3"]
    read = [path for path in paths if path.startswith(str(world.folder))]
    assert read.count(str(world.config)) == 1
    assert read.count(str(world.state / "rules.json")) == 1
    assert read.count(str(world.state / "node.json")) == 1
    assert len(read) <= MOST_READ, read
    package = str(Path(code_bundle.__file__).parent)
    code = [path for path in paths if path.endswith((".pyc", ".start")) and "/cgpu_" in path]
    assert len(code) <= MOST_CODE, code
    assert all(path.startswith(package) for path in code)


def test_the_hook_of_a_claim_loads_only_what_it_uses() -> None:
    code = (
        f"import sys; sys.path += {code_bundle.import_path()};"
        " import cgpu_hook.claim, cgpu_hook.edit, cgpu_node.facts.node"
    )
    check(loaded("-c", code), EDITOR)


def test_cgpu_run_loads_only_what_it_uses() -> None:
    code = f"import sys; sys.path += {code_bundle.import_path()}; import cgpu_cli.run"
    check(loaded("-c", code), LAUNCHER)


def test_cgpu_run_does_not_look_for_garbage() -> None:
    code = (
        f"import atexit, gc, sys; sys.path += {code_bundle.import_path()}\n"
        "atexit.register(lambda: print(gc.isenabled()))\n"
        "sys.argv = ['cgpu-run', '--version']\n"
        "import cgpu_entry; cgpu_entry.cgpu_run()"
    )
    done = subprocess.run([*PYTHON[:4], "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["False"], done
