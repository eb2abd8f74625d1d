"""The NVML proxy before a driver that calls its own exports and lists every tenant's processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.driver.cuda_base import compile_c
from lab.driver.nvml_base import MIB, PROGRAMS, SONAME, T4_MIB, Base, Gpu, lay_out

pytestmark = pytest.mark.integration

PRELUDE = """
import sys
from ctypes import *
proxy, real, device = CDLL(sys.argv[1]), CDLL(sys.argv[2]), c_void_p(1)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """clang would not call an exported function of the same file by name if not told to."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ("-shared", "-fPIC", "-fsemantic-interposition", f"-Wl,-soname,{SONAME}")
    compile_c(PROGRAMS / "drivers" / "reentrant_nvml.c", folder / SONAME, *flags)
    return folder


@pytest.fixture
def base(driver: Path, tmp_path: Path) -> Base:
    return lay_out(tmp_path / "base", driver, [Gpu().limited(6, 15)])


def run(base: Base, program: str, **env: str) -> list[str]:
    libraries = (base.path / "lib" / SONAME, base.path / "real" / SONAME)
    return base.view.run(sys.executable, "-c", PRELUDE + program, *libraries, **env).splitlines()


def test_calls_of_the_real_library_into_its_own_exports_pass_through(base: Base) -> None:
    """The depth guard: inside a hook, NVML sees the GPU's own figures."""
    lines = run(
        base,
        "memory = (c_uint64 * 3)()\n"
        "print(proxy.nvmlDeviceGetMemoryInfo(device, memory), memory[0])\n"
        "print(*(t.in_dll(real, n).value for t, n in\n"
        "        ((c_int, 'inner_calls'), (c_uint64, 'inner_total'))))\n",
    )
    assert lines == [f"0 {T4_MIB * MIB * 6 // 15}", f"1 {16 << 30}"]


def test_accounting_knows_only_own_processes(base: Base) -> None:
    with base.attach(102) as ledger:
        ledger.charge(0, MIB, MIB)
        lines = run(
            base,
            "pids = (c_uint * 8)(); count = c_uint(8)\n"
            "print(proxy.nvmlDeviceGetAccountingPids(device, byref(count), pids),\n"
            "      pids[:count.value])\n"
            "count = c_uint(0)\n"
            "print(proxy.nvmlDeviceGetAccountingPids(device, byref(count), None), count.value)\n"
            "for pid in 101, 102:\n"
            "    stats = create_string_buffer(64)\n"
            "    print(proxy.nvmlDeviceGetAccountingStats(device, pid, stats), stats.raw[0])\n",
        )
    assert lines == ["0 [102]", "7 1", "6 0", "0 102"]


@pytest.mark.parametrize("mode", [1, 2])
def test_lists_of_other_kinds_are_empty_whatever_the_driver_has(mode: int, base: Base) -> None:
    lines = run(
        base,
        f"words = (c_uint * 6)(1 << 24 | 24, {mode}, 9)\n"
        "print(proxy.nvmlDeviceGetRunningProcessDetailList(device, words), words[2])\n",
    )
    assert lines == ["0 0"]


LEAKS = """
import os
def held():
    pages = int(open("/proc/self/statm").read().split()[0])
    return len(os.listdir("/proc/self/fd")), pages
def ask():
    for _ in range(200):
        memory, count, pids = (c_uint64 * 3)(), c_uint(8), (c_uint * 8)()
        assert proxy.nvmlDeviceGetMemoryInfo(device, memory) == 0
        assert proxy.nvmlDeviceGetAccountingPids(device, byref(count), pids) == 0
        assert proxy.nvmlDeviceGetAccountingStats(device, 102, create_string_buffer(64)) == 0
ask(); before = held(); ask(); after = held()
print(after[0] - before[0], after[1] - before[1] < 256)
"""


def test_questions_leave_no_descriptor_and_no_memory(base: Base) -> None:
    with base.attach(102) as ledger:
        ledger.charge(0, MIB, MIB)
        assert run(base, LEAKS) == ["0 True"]


TABLE = """
own, other = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4"), bytes(16)
table = POINTER(c_size_t)()
status = proxy.nvmlInternalGetExportTable(byref(table), own)
print(status, [i for i in range(1, 216) if table[i] != i] if status == 0 else "")
print(proxy.nvmlInternalGetExportTable(byref(table), other), table[213])
"""


@pytest.mark.parametrize(
    ("slots", "answer"),
    [
        (0, "6 "),
        (182, "0 []"),
        (213, "0 []"),
        (214, "6 "),
        (215, "6 "),
        (216, "0 [213, 214, 215]"),
        (251, "0 [213, 214, 215]"),
        (1024, "0 [213, 214, 215]"),
        (1025, "6 "),
    ],
)
def test_the_private_table_is_the_drivers_but_for_the_lists(
    slots: int, answer: str, base: Base
) -> None:
    """One without lists is the driver's, one whose lists cannot be found is refused; other tables
    are none of ours."""
    assert run(base, TABLE, TABLE_SLOTS=str(slots)) == [answer, "0 213"]


@pytest.mark.exact
def test_a_function_that_the_driver_lacks_is_not_found(base: Base) -> None:
    program = (
        "print(*(hasattr(proxy, 'nvmlDevice' + n) for n in ('GetUtilizationRates', 'GetUUID')))"
    )
    assert run(base, program) == ["False True"]


def test_hooks_do_not_use_the_programs_allocator(base: Base, tmp_path: Path) -> None:
    program = compile_c(PROGRAMS / "no_malloc.c", tmp_path / "no_malloc", "-ldl")
    with base.attach(102) as ledger:
        ledger.charge(0, MIB, MIB)
        out = base.view.run(program, base.path / "lib" / SONAME)
    assert out == f"{T4_MIB * MIB * 6 // 15} {MIB} 1\n"
