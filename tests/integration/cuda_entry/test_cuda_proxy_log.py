"""The proxy's log line where nobody reads it: it is dropped, and the program goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cgpu_native import MISSTATED
from lab.driver.cuda_base import lay_out
from lab.driver.cuda_proxied import GPUS, Proxied
from lab.driver.sim_cuda import read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

REFUSED = """
import os, signal, sys
from lab.calls.cuda_calls import *
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
context()
status, _ = alloc(1 << 40)
masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
os.write(1, f"{status} {len(masked)} {len(signal.sigpending())}".encode())
"""


def refused(proxied: Proxied, stderr: int) -> tuple[int, bytes]:
    """A program whose request is refused while its standard error is ``stderr``."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=60,
        check=False,
        env=proxied.base.environment(CGPU_SIM_MACHINE=str(proxied.machine)),
    )
    return done.returncode, done.stdout


def test_mem_2_a_refusal_does_not_end_a_program_whose_log_has_no_reader(proxied: Proxied) -> None:
    """MEM-2: the call fails, not the program."""
    reader, writer = os.pipe()
    os.close(reader)
    assert refused(proxied, writer) == (0, b"2 0 0")
    os.close(writer)


def test_mem_2_a_refusal_does_not_wait_for_a_log_that_is_full(proxied: Proxied) -> None:
    """MEM-2: the call fails at once."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    assert refused(proxied, writer) == (0, b"2 0 0")
    os.close(reader)
    os.close(writer)


def test_mem_2_a_refusal_with_standard_error_closed_is_a_refusal(proxied: Proxied) -> None:
    program = f"import os\nos.close(2)\n{REFUSED}"
    with proxied.start(program) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "2 0 0")


def test_no_line_is_written_to_a_file_of_the_program_that_has_the_number_of_its_standard_error(
    proxied: Proxied, tmp_path: Path
) -> None:
    """The program has closed its standard error, and the next file it opens gets the number."""
    program = """
    import os, sys
    os.close(2)
    assert os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600) == 2
    context()
    show(alloc(1 << 40)[0])
    """
    data = tmp_path / "data"
    assert proxied.check(program, str(data)).out == ["2"]
    assert data.read_bytes() == b""


def test_a_wrong_size_of_the_gpu_is_named_when_a_program_starts_cuda(
    proxied: Proxied, tmp_path: Path
) -> None:
    """ENV-2: once, and not by a program that only loads the library."""
    gpus = [gpu.limited(6, 80) for gpu in GPUS]
    library = proxied.base.path / "real" / "libcuda.so.1"
    odd = Proxied(lay_out(tmp_path / "odd", library, gpus, MISSTATED), proxied.machine)
    for program, count in (("context(); context()", 1), ("show(1)", 0)):
        with odd.start(program) as process:
            _, err = process.communicate(timeout=60)
        assert err.count("\n") == err.count("cgpu: the size stated for a GPU by ") == count
        assert err.count(f" on GPU 0 the cap is {gpus[0].cap_bytes} B (1133.2 MiB)") == count


@pytest.mark.parametrize("others", [0, 1])
def test_a_thread_that_is_cancelled_is_refused_all_the_same(proxied: Proxied, others: int) -> None:
    """It holds locks: whoever wanted one after its end would wait for ever."""
    program = """
    import ctypes, threading
    context()
    libc = ctypes.CDLL(None)
    libc.pthread_cancel(c_uint64(threading.get_ident()))
    status = cuda.cuCtxSetLimit(2, c_size_t(1 << 45))
    libc.pthread_setcancelstate(1, None)
    show(status)
    """
    with contextlib.ExitStack() as beside:
        for _ in range(others):  # looking whether it lives opens files
            child = beside.enter_context(proxied.start("context(); show(0); sys.stdin.readline()"))
            assert read(child) == "0"
        assert proxied.check(program).out == ["2"]
