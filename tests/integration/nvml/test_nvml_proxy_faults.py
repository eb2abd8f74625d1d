"""The NVML proxy fails closed: without limits or ledger, nothing of the GPU is shown."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.driver.nvml_base import MIB, T4_MIB, Base, Gpu, View, lay_out, make_machine
from lab.driver.real_driver import real_nvidia_smi

pytestmark = pytest.mark.integration

TWO = (Gpu(), Gpu("NVIDIA A10", 22731, 1))
FIGURES = (
    "for f in 'MemoryInfo', 'ComputeRunningProcesses', 'UtilizationRates', 'AccountingPids':\n"
    "    print(code(getattr(n, 'nvmlDeviceGet' + f), gpu))\n"
)


def corrupt(offset: int, value: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(value)

    return change


def truncate(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "limits missing": ("limits", Path.unlink),
    "limits of another format": ("limits", corrupt(0, b"XXXX")),
    "limits of another version": ("limits", corrupt(4, b"\x09")),
    "limits of another size": ("limits", corrupt(8, b"\x01\x00\x00\x00")),
    "limits with too many GPUs": ("limits", corrupt(12, b"\xff\xff")),
    "limits cut short": ("limits", truncate(100)),
    "limits a directory": ("limits", make_directory),
    "ledger missing": ("ledger", Path.unlink),
    "ledger of another format": ("ledger", corrupt(0, b"XXXX")),
    "ledger of another release": ("ledger", corrupt(4, b"\x63")),
    "ledger empty": ("ledger", truncate(0)),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_machine(tmp_path_factory.mktemp("sim") / "driver", TWO)


@pytest.fixture
def base(machine: Path, tmp_path: Path) -> Base:
    return lay_out(tmp_path / "base", machine, [Gpu().limited(6, 15)])


@pytest.mark.parametrize("fault", FAULTS)
def test_without_limits_or_ledger_no_figure_is_shown(fault: str, base: Base) -> None:
    name, break_it = FAULTS[fault]
    break_it(base.path / name)
    lines = base.view.python(FIGURES)
    # The simulated driver's accounting is off: its empty list is replaced by the error too.
    assert lines == ["NVMLError_Unknown"] * 4
    out = base.view.run(real_nvidia_smi())
    assert not re.search(rf"{T4_MIB}|MiB /", out)


def test_a_gpu_that_is_not_in_the_limits_is_not_shown(base: Base) -> None:
    lines = base.view.python("gpu = n.nvmlDeviceGetHandleByIndex(1)\n" + FIGURES)
    assert lines == ["NVMLError_NotSupported", "[]", *["NVMLError_NotSupported"] * 2]
    lines = base.view.python("print(n.nvmlDeviceGetMemoryInfo(gpu).used)")
    assert lines == ["0"]


def test_a_ledger_that_breaks_is_not_an_empty_one(base: Base) -> None:
    lines = base.view.python(
        "print(n.nvmlDeviceGetMemoryInfo(gpu).used)\n"
        f"os.truncate({str(base.path / 'ledger')!r}, 0)\n"
        "print(code(n.nvmlDeviceGetMemoryInfo, gpu))\n"
    )
    assert lines == ["0", "NVMLError_Unknown"]


def test_limits_that_come_after_the_library_count(base: Base) -> None:
    limits = base.path / "limits"
    limits.rename(base.path / "later")
    lines = base.view.python(
        "print(code(n.nvmlDeviceGetMemoryInfo, gpu))\n"
        f"os.rename({str(base.path / 'later')!r}, {str(limits)!r})\n"
        "print(n.nvmlDeviceGetMemoryInfo(gpu).total)\n"
    )
    assert lines == ["NVMLError_Unknown", str(base.gpus[0].cap_bytes)]


SLOW_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
int fcntl(int fd, int command, ...)
{
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    for (clock_t begun = clock(); command == F_OFD_GETLK && getenv("SLOW_LOCKS") != NULL &&
                                  clock() - begun < CLOCKS_PER_SEC / 20;) {
    }
    return real(fd, command, argument);
}
int fcntl64(int, int, ...) __attribute__((alias("fcntl")));
"""
HOLDER = """
import os, sys
from cgpu_native._native import ffi, lib
ledger = ffi.new("struct cgpu_ledger **")
assert lib.cgpu_ledger_attach(os.fsencode(sys.argv[1]), os.getpid(), ledger) == 0
assert lib.cgpu_ledger_charge(ledger[0], 0, 1 << 40, 300, ffi.new("uint64_t *")) == 0
print(flush=True)
sys.stdin.read()
"""


def test_mem_4_a_query_that_was_costly_blinds_no_later_one(base: Base, tmp_path: Path) -> None:
    """MEM-4: who has died since then holds nothing."""
    library = tmp_path / "slow_locks.so"
    command = ["gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"]
    subprocess.run(command, input=SLOW_LOCKS, text=True, check=True)
    lines = base.view.python(
        "import subprocess, sys\n"
        f"command = [sys.executable, '-c', {HOLDER!r}, {str(base.path / 'ledger')!r}]\n"
        "holder = subprocess.Popen(command, stdin=-1, stdout=-1)\n"
        "holder.stdout.readline()\n"
        "os.environ['SLOW_LOCKS'] = '1'\n"
        "print(n.nvmlDeviceGetMemoryInfo(gpu).used)\n"
        "del os.environ['SLOW_LOCKS']\n"
        "holder.kill(); holder.wait()\n"
        "print(n.nvmlDeviceGetMemoryInfo(gpu).used)\n",
        LD_PRELOAD=str(library),
    )
    assert lines == ["300", "0"]


OF_THE_LEDGER = (
    "for fd in os.listdir('/proc/self/fd'):\n"
    "    if os.path.exists(f'/proc/self/fd/{fd}'):\n"
    "        if os.path.basename(os.readlink(f'/proc/self/fd/{fd}')) == 'ledger':\n"
    "            "
)
CHANGES = {
    "nothing": "pass",
    "another root": "os.chroot('/proc')",
    "no free descriptor": (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "for _ in range(64):\n"
        "    try:\n        os.dup(0)\n"
        "    except OSError:\n        pass\n"
    ),
    "the descriptor closed": f"{OF_THE_LEDGER}os.close(int(fd))",
    "the descriptor of another file": (
        f"other = os.open('/dev/zero', os.O_RDONLY)\n{OF_THE_LEDGER}os.dup2(other, int(fd))"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_mem_4_the_figures_stand_whatever_a_program_does_to_root_and_descriptors(
    change: str, base: Base
) -> None:
    """MEM-4: also if the first question comes after the change."""
    cap = T4_MIB * MIB * 6 // 15
    with base.attach(102) as ledger:
        ledger.charge(0, MIB, MIB)
        ask = "memory = n.nvmlDeviceGetMemoryInfo(gpu); print(memory.total, memory.used)\n"
        assert base.view.python(f"{CHANGES[change]}\n{ask}") == [f"{cap} {MIB}"]
        assert base.view.python(f"{ask}{CHANGES[change]}\n{ask}") == [f"{cap} {MIB}"] * 2


def test_without_the_real_library_nothing_loads(base: Base) -> None:
    (base.path / "real" / "libnvidia-ml.so.1").unlink()
    with pytest.raises(AssertionError, match="NVMLError_LibraryNotFound"):
        base.view.python("pass")


def test_gpus_are_told_apart_by_uuid_not_by_order(machine: Path, tmp_path: Path) -> None:
    limits = [TWO[1].limited(3, 15), TWO[0].limited(6, 15)]
    base = lay_out(tmp_path / "swapped", machine, limits)
    lines = base.view.python(
        "for i in 0, 1, 0:\n"
        "    print(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).total)\n"
    )
    caps = [str(gpu.cap_bytes) for gpu in (limits[1], limits[0], limits[1])]
    assert lines == caps


def test_the_plain_driver_shows_everything(machine: Path) -> None:
    """What the tests above would see without the proxy."""
    lines = View(machine, machine).python("print(n.nvmlDeviceGetMemoryInfo(gpu).total >> 20)")
    assert lines == [str(T4_MIB)]
