"""What an installation consists of: every module, every product of the build, the licence."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "cgpu_env": "cgpu_env",
    "cgpu_native": "native/cgpu_native",
    "cgpu_shim": "shim/cgpu_shim",
    "cgpu_hook": "hook/cgpu_hook",
    "cgpu_cli": "cli/cgpu_cli",
    "cgpu_install": "cli/cgpu_install",
    "cgpu_upgrade": "cli/cgpu_upgrade",
    "cgpu_doctor": "cli/cgpu_doctor",
    "cgpu_server": "cli/cgpu_server",
    "cgpu_sim": "tests/sim/cgpu_sim",
}
PROGRAMS = {"cgpu_hook/_bin/cgpu-runtime", "cgpu_hook/_bin/cgpu-hook"}
LIBRARIES = {
    f"{package}/_lib/{name}"
    for package in ("cgpu_shim", "cgpu_sim")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1")
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["build", "--build-base", f"{folder}/build"]
    pack = ["bdist_wheel", "--dist-dir", f"{folder}/dist", "--bdist-dir", f"{folder}/bdist"]
    metadata = ["egg_info", "--egg-base", str(folder)]
    subprocess.run(
        [sys.executable, "setup.py", "-q", *metadata, *build, *pack], cwd=ROOT, check=True
    )
    [path] = (folder / "dist").iterdir()
    return zipfile.ZipFile(path)


def test_a_wheel_has_every_module_and_nothing_else_of_the_tree(wheel: zipfile.ZipFile) -> None:
    modules = {
        f"{name}/{file.name}"
        for name, folder in PACKAGES.items()
        for pattern in ("*.py", "py.typed")
        for file in (ROOT / folder).glob(pattern)
    }
    binding = "cgpu_native/_native.abi3.so"
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    folder = ROOT / "cli" / "cgpu_install" / "files"
    files = {f"cgpu_install/files/{file.name}" for file in folder.iterdir()}
    assert packed == modules | PROGRAMS | LIBRARIES | {binding} | files


def test_programs_in_a_wheel_can_be_executed(wheel: zipfile.ZipFile) -> None:
    modes = {name: wheel.getinfo(name).external_attr >> 16 for name in PROGRAMS}
    assert all(mode & 0o111 == 0o111 for mode in modes.values()), modes


def test_a_wheel_has_the_licence_and_the_commands(wheel: zipfile.ZipFile) -> None:
    [metadata] = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(f"{metadata}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    commands = wheel.read(f"{metadata}/entry_points.txt").decode()
    assert [line.split(" = ")[0] for line in commands.splitlines() if " = " in line] == [
        "cgpu",
        "cgpu-run",
        "cgpu-smi",
        "cgpud",
    ]
