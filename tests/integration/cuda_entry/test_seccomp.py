"""Which system calls a seccomp filter may refuse, as docs/isolation.md has them."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import MIB, PROGRAMS, ROOT, STUB_CAP, STUB_CONTEXT, compile_c
from lab.driver.sim_cuda import read
from lab.shares.gate_world import CLOSED, OPEN, Gate

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_base import Base

pytestmark = pytest.mark.integration

# What the filter refuses has no effect; then it allocates and launches on both GPUs.
PROGRAM = """
from lab.calls.gate_calls import *
show(ctypes.CDLL(None).prctl(15, b"renamed"))
for gpu in 1, 0:
    context(gpu)
    show(alloc(MIB)[0], cuda.cuLaunchKernel(c_void_p(4096), 1, 1, 1, 32, 1, 1, 0, None, None, None))
show(alloc(1 << 40)[0], memory())
sys.stdin.readline()
"""


def refusing(folder: Path, *calls: str) -> str:
    """The library whose preloading refuses them."""
    flags = ("-DREFUSED=" + ",".join(calls), "-shared", "-fPIC")
    source = PROGRAMS / "preloaded" / "filter.c"
    return str(compile_c(source, folder / "filter.so", *flags))


def optional() -> list[str]:
    """The calls of the table."""
    page = (ROOT / "docs" / "isolation.md").read_text()
    part = page.partition("\n## What a seccomp filter must allow\n")[2].partition("\n## ")[0]
    cells = re.findall(r"(?m)^\| (`[^|]*) \|", part)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_without_all_calls_that_a_filter_may_refuse_share_and_turns_hold(
    base: Base, tmp_path: Path
) -> None:
    names = optional()
    assert {"membarrier", "prctl"} < set(names)
    preload = refusing(tmp_path, *(f"{{SYS_{name},ANY,0}}" for name in names))
    with (
        Gate(base.path, state=OPEN) as gate,
        Gate(base.path, 1, state=OPEN) as other,
        base.start(PROGRAM, LD_PRELOAD=preload) as process,
    ):
        assert [read(process) for _ in range(3)] == ["-1", "0 0", "0 0"]
        assert read(process) == f"2 ({STUB_CAP - STUB_CONTEXT - 2 * MIB}, {STUB_CAP})"
        for each in gate, other:
            assert each.work.active != 0
            each.set(CLOSED)
        for each in gate, other:
            each.wait_for_quiet()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert log.startswith("cgpu: out of memory")
    assert log.count("\n") == 1


@pytest.mark.parametrize(
    "call",
    [
        "{SYS_fcntl,1,F_OFD_SETLK}",
        "{SYS_madvise,2,MADV_WIPEONFORK}",
        "{SYS_madvise,2,MADV_DONTFORK}",
        "{SYS_mmap,3,MAP_SHARED}",
    ],
)
def test_without_a_call_that_it_must_allow_there_is_no_cuda(
    base: Base, tmp_path: Path, call: str
) -> None:
    outcome = base.run("show(cuda.cuInit(0))", LD_PRELOAD=refusing(tmp_path, call))
    assert outcome.out != ["0"]
    assert "no CUDA in this process" in outcome.log


def test_without_the_call_that_shows_who_is_dead_their_memory_stays_charged(
    base: Base, tmp_path: Path
) -> None:
    """Any process that may make it gives that back."""
    with base.start("context(); show(alloc(4 * MIB)[0]); sys.stdin.readline()") as process:
        assert read(process) == "0"
        process.send_signal(signal.SIGKILL)
        process.wait()
    preload = refusing(tmp_path, "{SYS_fcntl,1,F_OFD_GETLK}")
    program = "context(); show(left(), alloc(left() + 1)[0], left())"
    own, dead = STUB_CAP - STUB_CONTEXT, STUB_CONTEXT + 4 * MIB
    assert base.check(program, LD_PRELOAD=preload).out == [f"{own - dead} 2 {own - dead}"]
    assert base.check(program).out == [f"{own} 2 {own}"]
