"""Sandboxes that a program under ``cgpu-run`` makes: bubblewrap, as Apptainer and Flatpak do it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.runs.packages import ensure_packages
from lab.worlds.cgpu_run import CAP_SIX, FILL, World

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

OUT_OF_MEMORY, NOT_PERMITTED = 2, 800
START = ("-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))")


@pytest.fixture(params=["root", "user"])
def world(request: pytest.FixtureRequest) -> World:
    ensure_packages()
    return World(root=request.param == "root")


def in_a_sandbox(
    world: World, *more: str, program: tuple[str | Path, ...] = START
) -> subprocess.CompletedProcess[str]:
    """A program where all is seen but the folder of the state directory."""
    words = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(world.state.parent), *more]
    return world.run("--mem", "6/15", "--", *words, sys.executable, "-I", *program)


def test_rel_6_a_sandbox_without_the_state_directory_has_no_driver_and_a_sentence(
    world: World,
) -> None:
    """REL-6."""
    done = in_a_sandbox(world)
    assert (done.returncode, done.stdout) == (1, "")
    where = f"{world.state}/bind-this-directory-into-the-sandbox/real/libcuda.so.1"
    assert f"{where}: cannot open shared object file" in done.stderr


@pytest.mark.parametrize("apart", [(), ("--unshare-pid", "--proc", "/proc")], ids=["", "pid"])
def test_rel_6_a_sandbox_with_the_state_directory_has_the_share(
    world: World, apart: tuple[str, ...]
) -> None:
    """REL-6, MEM-2."""
    seen = ("--bind", str(world.state), str(world.state))
    done = in_a_sandbox(world, *seen, *apart, program=(FILL, world.driver, "soname"))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["total"], answer["status"]) == (CAP_SIX, OUT_OF_MEMORY)
    assert answer["got"] < CAP_SIX


def test_rel_6_the_documented_sandbox_has_the_share(world: World) -> None:
    """REL-6, MEM-2. The simulated driver's directory stands for its device nodes."""
    words = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev-bind", "/dev", "/dev"]
    for path in (str(world.state), str(world.driver)):
        words += ["--bind", path, path]
    assert world.fill("bwrap", *words, how="soname")["total"] == CAP_SIX


def test_rel_6_a_sandbox_that_cannot_write_the_ledger_has_no_gpu(world: World) -> None:
    """REL-6."""
    done = in_a_sandbox(world, "--ro-bind", str(world.state), str(world.state))
    assert done.stdout == f"{NOT_PERMITTED}\n"
    assert "no CUDA in this process: the ledger cannot be opened" in done.stderr


def test_a_session_inside_a_sandbox_has_the_share() -> None:
    """REL-6, MEM-2: the other way round."""
    world = World()
    inside = world.command(*world.flags(), "--mem", "6/15", "--", sys.executable, "-I", FILL)
    done = world.run_command(
        ["bwrap", "--dev-bind", "/", "/", *inside, str(world.driver), "soname"]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"] == CAP_SIX
