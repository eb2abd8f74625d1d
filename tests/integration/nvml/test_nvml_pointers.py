"""NVML's calls that leave out pointers: the driver's answers, with the container's figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lab.driver.nvml_base import (
    MIB,
    ROOT,
    T4_MIB,
    Base,
    Gpu,
    Tenant,
    View,
    build_tenant,
    lay_out,
    make_machine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

HOOKS = ROOT / "shim" / "nvml" / "hooks.def"
CAP = T4_MIB * MIB * 6 // 15

# Shows the status of each call, and every word of what it was given to write to.
START = """
import itertools, struct
lib = c.CDLL("libnvidia-ml.so.1")

class Room:
    def __init__(self, size, *words):
        self.size, self.words = size, words

def once(name, arguments, missing):
    made = [c.create_string_buffer(struct.pack(f"<{len(a.words)}I", *a.words).ljust(a.size, b"\\0"),
            a.size) if isinstance(a, Room) else a for a in arguments]
    given = [None if i in missing else a for i, a in enumerate(made)]
    status = getattr(lib, name)(*given)
    written = b"".join(a.raw.ljust(-len(a.raw) // 8 * -8, b"\\0") for a in given
                       if isinstance(a, c.Array))
    seen = struct.unpack(f"<{len(written) // 8}Q", written)
    seen += struct.unpack(f"<{len(written) // 4}I", written)
    shown = "".join("-" if i in missing else "+" for i in range(len(given)))
    print(name, shown, status, *sorted(set(seen) - {0}))

def call(name, *arguments):
    pointers = [i for i, a in enumerate(arguments) if isinstance(a, (Room, c._Pointer))]
    for count in range(len(pointers) + 1):
        for missing in itertools.combinations(pointers, count):
            if hasattr(lib, name):
                once(name, arguments, missing)
"""

CALLS = """
for name in "nvmlDeviceGetCount", "nvmlDeviceGetCount_v2":
    call(name, Room(4))
for name in "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2":
    for number in 0, 1:
        call(name, number, Room(8))
call("nvmlDeviceGetMemoryInfo", gpu, Room(24))
for version in 2 << 24 | 40, 0, 1 << 24 | 40, 3 << 24 | 48, 0xffffffff:
    call("nvmlDeviceGetMemoryInfo_v2", gpu, Room(48, version))
for kind in "Compute", "Graphics", "MPSCompute":
    for suffix in "", "_v2", "_v3":
        for room in 0, 1, 4:
            call(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", gpu, Room(4, room), Room(4 * 24))
for version in 1 << 24 | 24, 0, 2 << 24 | 24:
    for mode in 0, 1, 2:
        for room in 0, 1, 4:
            call("nvmlDeviceGetRunningProcessDetailList", gpu, Room(24, version, mode, room))
for room in 0, 4:
    call("nvmlDeviceGetAccountingPids", gpu, Room(4, room), Room(16))
call("nvmlDeviceGetAccountingStats", gpu, os.getpid(), Room(64))
call("nvmlDeviceGetUtilizationRates", gpu, Room(8))
call("nvmlDeviceGetEncoderUtilization", gpu, Room(4), Room(4))
call("nvmlDeviceGetDecoderUtilization", gpu, Room(4), Room(4))
for room in 0, 4:
    call("nvmlDeviceGetProcessUtilization", gpu, Room(4 * 32), Room(4, room), c.c_uint64(0))
for version in 1 << 24 | 24, 0, 2 << 24 | 24:
    for room in 0, 4:
        call("nvmlDeviceGetProcessesUtilizationInfo", gpu, Room(24, version, room))
call("nvmlDeviceGetSamples", gpu, 5, c.c_uint64(0), Room(4), Room(4, 4), Room(4 * 16))
call("nvmlInternalGetExportTable", Room(8), Room(16, 7))
"""

PROGRAM = f"{START}{CALLS}n.nvmlShutdown()\n{CALLS}"


@pytest.fixture
def tenant(tmp_path: Path) -> Tenant:
    return Tenant(build_tenant(tmp_path / "tenant"), make_machine(tmp_path / "driver", [Gpu()]))


@pytest.fixture
def strangers(tenant: Tenant) -> Iterator[list[int]]:
    """Busy processes of other containers."""
    with tenant.running(700, kernel_ms=20) as one, tenant.running(500, kernel_ms=20) as other:
        yield [one, other]


@pytest.fixture
def base(tenant: Tenant, tmp_path: Path, strangers: list[int]) -> Iterator[Base]:
    """A container whose two processes hold 300 MiB."""
    assert len(strangers) == 2
    made = lay_out(tmp_path / "base", tenant.machine, [Gpu().limited(6, 15)])
    with (
        tenant.running(100, kernel_ms=20) as one,
        tenant.running(200, kernel_ms=20) as other,
        made.attach(one) as first,
        made.attach(other) as second,
    ):
        first.charge(0, CAP, 100 * MIB)
        second.charge(0, CAP, 200 * MIB)
        yield made


def _answers(view: View, program: str) -> tuple[list[str], list[set[int]]]:
    """Of each call: name, what was given, status; and the words that it wrote."""
    lines = [line.split() for line in view.python(program)]
    return [" ".join(line[:3]) for line in lines], [set(map(int, line[3:])) for line in lines]


def test_mem_4_a_call_without_its_pointers_is_answered_as_the_driver_does(
    base: Base, strangers: list[int]
) -> None:
    """MEM-4: with any pointers left out, too little room or another version of a struct, it shows
    nothing of others and gives the driver's status; also when NVML is not initialised.
    """
    plain, all_of_it = _answers(base.view._replace(libraries=base.machine), PROGRAM)
    answers, container = _answers(base.view, PROGRAM)
    free = (T4_MIB - 700 - 500 - 300) * MIB
    others = {T4_MIB * MIB, free, 700 * MIB, 500 * MIB, *strangers}
    assert answers == plain
    assert others & set().union(*container) == set()
    assert others & set().union(*all_of_it) == others
    assert {CAP, CAP - 300 * MIB, 300 * MIB} <= set().union(*container)


def test_mem_4_what_is_not_supported_writes_nothing(base: Base) -> None:
    """MEM-4: what cannot be divided, such as the size of BAR1, or how busy all make the GPU."""
    names = _rows("REJECT")
    assert {
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetConfComputeMemSizeInfo",
        "nvmlDevicePerfMetricsGetSamples_v1",
    } <= names
    program = "".join(f"call('{name}', gpu, Room(64), Room(64))\n" for name in sorted(names))
    answers, written = _answers(base.view, START + program)
    assert {answer.split()[2] for answer in answers} == {"3"}
    assert written == [set()] * len(answers)


def test_every_hook_is_called_without_its_pointers() -> None:
    """A new hook's calls are added above."""
    lists = {
        f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        for kind in ("Compute", "Graphics", "MPSCompute")
        for suffix in ("", "_v2", "_v3")
    }
    assert _rows("HOOK") == lists | set(re.findall(r'"(nvml\w+)"', CALLS))


def _rows(kind: str) -> set[str]:
    return set(re.findall(rf"^{kind}\((\w+)", HOOKS.read_text(), re.MULTILINE))
