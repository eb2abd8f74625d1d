"""The NVML proxy as a binary: what it exports, what it needs, and the list it was built from."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
from cuda_base import compile_c
from nvml_base import MIB, PROGRAMS, ROOT, SONAME, Gpu, lay_out
from products import build
from real_driver import real_library
from symbols import dynamic, exported, machine, versions_needed

pytestmark = pytest.mark.integration

SHIM = ROOT / "shim" / "nvml"
MACHINES = {"x86_64": "x64", "aarch64": "AArch64"}
CLASSES = {"HOOK", "REJECT", "PASS"}
BASE = "/dev/cgpu" + "/." * 100


def hooks(kind: str = r"HOOK|REJECT") -> list[str]:
    return re.findall(rf"^(?:{kind})\((\w+)", (SHIM / "hooks.def").read_text(), flags=re.MULTILINE)


def entry_points() -> list[dict[str, str]]:
    with (SHIM / "entry_points.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=MACHINES)
def processor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proxy(processor: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(processor)
    return build(f"shim/cgpu_shim/_lib/{SONAME}", processor, folder)


def test_it_is_built_for_the_processor(proxy: Path, processor: str) -> None:
    assert machine(proxy) == MACHINES[processor]


def test_it_exports_exactly_the_hooks(proxy: Path) -> None:
    assert exported(proxy) == set(hooks())


def test_it_needs_the_real_library_by_absolute_path_and_else_only_libc(proxy: Path) -> None:
    own, *others = dynamic(proxy, "DT_NEEDED")
    assert own == f"{BASE}/real/{SONAME}"
    assert set(others) <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert dynamic(proxy, "DT_SONAME") == [SONAME]


def test_it_has_no_runpath(proxy: Path) -> None:
    assert dynamic(proxy, "DT_RUNPATH") == []
    assert dynamic(proxy, "DT_RPATH") == []


def test_it_runs_on_glibc_2_17(proxy: Path) -> None:
    versions = [v.removeprefix("GLIBC_").split(".") for v in versions_needed(proxy)]
    assert versions
    assert max(tuple(map(int, version)) for version in versions) <= (2, 17)


@pytest.mark.parametrize("version", ["535", "550"])
def test_every_name_of_the_real_library_is_in_exactly_one_class(version: str) -> None:
    rows = entry_points()
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert {row["class"] for row in rows} == CLASSES
    real = exported(real_library(version, SONAME))
    assert real == {row["name"] for row in rows if row[f"exported{version}"]}


def test_hooks_are_the_names_classed_so() -> None:
    for kind in ("HOOK", "REJECT"):
        assert hooks(kind) == list(dict.fromkeys(hooks(kind)))
        assert set(hooks(kind)) == {r["name"] for r in entry_points() if r["class"] == kind}


def test_every_name_that_is_called_exists_in_the_real_library() -> None:
    assert set(hooks("HOOK|REAL")) <= exported(real_library("550", SONAME))


REENTRANT = """
class Memory(Structure):
    _fields_ = [("total", c_uint64), ("free", c_uint64), ("used", c_uint64)]
proxy, real = CDLL(sys.argv[1]), CDLL(sys.argv[2])
memory = Memory()
status = proxy.nvmlDeviceGetMemoryInfo(c_void_p(1), byref(memory))
print(status, memory.total, c_int.in_dll(real, "inner_calls").value,
      c_uint64.in_dll(real, "inner_total").value)
"""


def test_calls_of_the_real_library_into_its_own_exports_pass_through(tmp_path: Path) -> None:
    """The depth guard: inside a hook, NVML sees the GPU's own figures."""
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{SONAME}")
    (tmp_path / "driver").mkdir()
    real = compile_c(PROGRAMS / "reentrant_nvml.c", tmp_path / "driver" / SONAME, *flags)
    base = lay_out(tmp_path / "base", real.parent, [Gpu().limited(6, 15)])
    program = "import sys\nfrom ctypes import *\n" + REENTRANT
    out = base.view.run(
        sys.executable, "-c", program, base.path / "lib" / SONAME, base.path / "real" / SONAME
    )
    cap = 15109 * MIB * 6 // 15
    assert out.split() == ["0", str(cap), "1", str(16 << 30)]
