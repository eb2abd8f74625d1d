"""The simulated libcuda exports and looks up what the real 550 library does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.driver.real_driver import real_library
from lab.driver.sim_cuda import make_driver
from lab.driver.symbols import exported, machine, versions_needed

pytestmark = pytest.mark.integration

SONAME = "libcuda.so.1"
# Of CUDA 13.0 and 13.4; the proxy has hooks for them.
NEWER = {"cuGraphAddNode_v3", "cuMemGetDefaultMemPool", "cuMemGetMemPool"}

# Prints, for every base name, CUDA version and flag, the symbol that the library's look-up gives.
LOOK_UP = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
bases, names = json.load(sys.stdin)
at = {ctypes.cast(getattr(library, n), ctypes.c_void_p).value: n for n in names}
versions = [1000, 2000, 3000, 3020, 4000, 5050, 6050, 7000, 7050, 8000, 9020, 10000, 10020]
versions += [11000 + 10 * n for n in range(9)] + [12000 + 10 * n for n in range(5)] + [13000]
answers = []
for base in bases:
    for version in versions:
        for flags in (0, 1, 2, 4):
            address, found = ctypes.c_void_p(), ctypes.c_int(-1)
            status = library.cuGetProcAddress_v2(
                base.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags),
                ctypes.byref(found))
            old = ctypes.c_void_p()
            status_of_old = library.cuGetProcAddress(
                base.encode(), ctypes.byref(old), version, ctypes.c_uint64(flags))
            same = old.value == address.value
            answers.append([base, version, flags, status, found.value, at.get(address.value),
                            status_of_old, same])
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def real() -> Path:
    return real_library("550", SONAME)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_driver(tmp_path_factory.mktemp("sim") / "driver").path / SONAME


def answers(library: Path, bases: list[str], names: list[str]) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, library],
        input=json.dumps([bases, names]),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_every_function_of_the_real_library_is_exported_and_no_other(
    real: Path, simulated: Path
) -> None:
    ours = {name for name in exported(simulated) if not name.startswith("cgpu_sim_")}
    assert ours == exported(real) | NEWER


def test_look_ups_are_answered_as_by_the_real_library(real: Path, simulated: Path) -> None:
    names = sorted(exported(real))
    bases = {re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name) for name in names}
    asked = sorted(bases | {"", "cuNoSuchCall", "cuMemAlloc_v2", "cuStreamQuery_ptsz"})
    assert answers(simulated, asked, names) == answers(real, asked, names)


def test_the_library_runs_on_old_systems(simulated: Path) -> None:
    needed = [name for name in versions_needed(simulated) if name.startswith("GLIBC_")]
    assert max(tuple(map(int, name[6:].split("."))) for name in needed) <= (2, 17)
    assert machine(simulated) in {"x64", "AArch64"}
