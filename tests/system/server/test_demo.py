"""``make demo``, as a newcomer on a machine with Docker sees it."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cgpu_cli.demo import tenant
from cgpu_node.facts.driver import PROXIED
from cgpu_sim import make_driver_dir
from lab.containers.enclosure import CGROUPS, PREFIX
from lab.machine.nobody import NOBODY
from lab.runs.children import Child

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[3]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
DEMO = [sys.executable, ROOT / "deploy" / "demo"]


@pytest.fixture
def users_clone(tmp_path: Path) -> Path:
    """As much of this repository as the demonstration starts, with a user's files."""
    for name in ("cgpu_env", "deploy", "hook", "native", "node", "server", "shim", "tests/lab"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / name, target], check=True)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", tmp_path], check=True)
    subprocess.run(["chmod", "-R", "g+w", tmp_path], check=True)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    return tmp_path


def test_the_demonstration_runs_two_containers_and_succeeds(users_clone: Path) -> None:
    """CLI-1, ENV-6, ENV-8, MEM-2, MEM-4, SCH-6: shares by the simulated GPU's own account.

    Also where root types it in a user's clone, which is what `sudo make demo` is.
    """
    demo = [sys.executable, users_clone / "deploy" / "demo"]
    done = subprocess.run(demo, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout
    assert "$ docker run --runtime=cgpu -e ALIYUN_COM_GPU_MEM_CONTAINER=6" in shown
    assert "0MiB /  6043MiB" in shown
    assert "0MiB /  9065MiB" in shown
    assert "CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert "-e ALIYUN_COM_GPU_SCHD_WEIGHT=2 " in shown
    had = [float(n) for n in re.findall(r"own account \d+ of 15 had ([\d.]+) %", shown)]
    assert had == pytest.approx([100 / 3, 200 / 3], abs=3)
    assert "where 0 of 15109 MiB are free" in shown
    assert shown.endswith("All of it as it must be.\n")


def test_its_image_has_what_a_driver_needs_also_without_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since glibc 2.34 Python itself needs no libdl and no libpthread, and a driver does."""
    monkeypatch.syspath_prepend(ROOT / "deploy" / "demo")
    make = importlib.import_module("image").make
    driver = make_driver_dir(tmp_path / "driver")
    root = tmp_path / "image"
    make(root, Path(tenant.__file__), [driver / name for name in PROXIED])
    for name in PROXIED:
        shutil.copy(driver / name, root / name)
        words = ["chroot", root, "/python", "-ISc", f"import ctypes; ctypes.CDLL('/{name}')"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["Making an image", "--runtime=cgpu"])
def test_an_interrupted_demonstration_leaves_nothing(moment: str, number: signal.Signals) -> None:
    """CLI-9."""
    process = Child(DEMO, ENVIRONMENT, session=True)
    assert process.stdout is not None
    assert any(moment in line for line in iter(process.stdout.readline, ""))
    os.killpg(process.pid, number)
    _, output = process.communicate(timeout=200)
    status = -number if number == signal.SIGINT else 128 + number
    assert (process.returncode, output) == (status, "")
    name = f"{PREFIX}{process.pid}"
    folders = [CGROUPS, *CGROUPS.glob("*/"), Path(tempfile.gettempdir())]
    assert [folder for folder in folders if (folder / name).exists()] == []
