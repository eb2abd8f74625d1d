"""Linear memory that others open by its IPC handle: paid for once, by somebody who has it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Fault, inject
from lab.driver.sim_cuda import ask, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.driver.cuda_proxied import Proxied
    from lab.runs.children import Child

pytestmark = pytest.mark.integration

MIB = 1 << 20
# Each does what it reads, line by line, and says when it is done.
START = """
from lab.calls.cuda_kind_calls import *
current = context(int(sys.argv[1]))
base = {gpu: charged(gpu) for gpu in (0, 1)}
def own(gpu=0):
    return charged(gpu) - base[gpu]
"""
MAKER = (
    START
    + """
status, address = alloc(int(sys.argv[2]))
check(status)
ipc_handle(address + 500)  # as good as its beginning
show(ipc_handle(address))
for line in sys.stdin:
    if line == "frees\\n":
        check(free(address))
    elif line == "frees in a stream\\n":
        check(free_async(address))
        check(cuda.cuCtxSynchronize())
    elif line == "destroys its context\\n":
        check(cuda.cuCtxDestroy_v2(current))
    show(own())
"""
)
USER = (
    START
    + """
show(own())
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "open":
        status, address = open_ipc(rest)
        show(status, own())
    elif word == "close":
        show(close_ipc(address), own(), drift())
    elif word == "fill":
        filler = alloc(left() - int(rest))[1]
        show(own() != 0)
    elif word == "empty":
        show(free(filler))
    elif word == "destroy":
        check(cuda.cuCtxDestroy_v2(current))
        show(own() + base[0])
    else:
        show(own(int(word)), drift() if word == "0" else "-")
"""
)


@contextmanager
def shared(
    proxied: Proxied, size: int = 64 * MIB, device: int = 0, **env: str
) -> Iterator[tuple[Child, Child, str]]:
    """Who made memory, somebody else, and its handle."""
    with ExitStack() as stack:
        maker = stack.enter_context(proxied.start(MAKER, str(device), str(size), **env))
        handle = read(maker)
        user = stack.enter_context(proxied.start(USER, "0"))
        assert read(user) == "0"
        yield maker, user, handle
        for each in (user, maker):
            if each.poll() is None:
                each.communicate(timeout=60)


def let_go(maker: Child, how: str) -> None:
    """Have the maker do this, which keeps it no memory."""
    if how == "ends":
        maker.communicate(timeout=60)
    else:
        assert int(ask(maker, how)) <= 0


def test_mem_1_memory_opened_by_its_ipc_handle_is_paid_once(proxied: Proxied) -> None:
    """MEM-1: by the process that allocated it, however often it is opened."""
    with shared(proxied) as (maker, user, handle):
        for _ in range(3):
            assert ask(user, f"open {handle}") == "0 0"
        assert ask(user, "0") == "0 0"
        for _ in range(3):
            assert ask(user, "close") == "0 0 0"
        assert ask(maker, "") == str(64 * MIB)
        assert ask(maker, "frees") == "0"
        assert ask(user, "0") == "0 0"


WAYS = ("frees", "frees in a stream", "destroys its context", "ends")


@pytest.mark.parametrize("how", WAYS)
def test_mem_1_who_has_opened_memory_pays_when_its_maker_has_let_go(
    proxied: Proxied, how: str
) -> None:
    """MEM-1: nothing is free because another process made it."""
    with shared(proxied) as (maker, user, handle):
        for _ in range(2):
            assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, how)
        assert ask(user, "0") == f"{64 * MIB} 0"
        assert ask(user, "close") == f"0 {64 * MIB} 0"
        assert ask(user, "close") == "0 0 0"


@pytest.mark.parametrize("how", WAYS)
def test_mem_1_small_memory_that_is_opened_counts_as_large_as_it_is(
    proxied: Proxied, how: str
) -> None:
    """MEM-1: in its block there may be other memory."""
    with shared(proxied, 1000) as (maker, user, handle):
        assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, how)
        assert ask(user, "0").split()[0] == "1000"
        assert ask(user, "close") == "0 0 0"


def test_mem_1_opened_memory_goes_with_the_context_that_opened_it(proxied: Proxied) -> None:
    """MEM-1."""
    with shared(proxied) as (maker, user, handle):
        assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, "frees")
        assert ask(user, "destroy") == "0"


def test_mem_1_memory_of_another_gpu_is_paid_there(proxied: Proxied) -> None:
    """MEM-1: whichever GPU is current where it is opened."""
    with shared(proxied, device=1) as (maker, user, handle):
        assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, "ends")
        assert ask(user, "0").split()[0] == "0"
        assert ask(user, "1") == f"{64 * MIB} -"


def test_mem_2_memory_that_nobody_pays_for_is_opened_only_if_it_fits(proxied: Proxied) -> None:
    """MEM-2: its maker is in no account, or in that of another container."""
    past = str(proxied.base.path / "real" / "libcuda.so.1")
    with shared(proxied, CGPU_PROXY=past) as (_, user, handle):
        assert ask(user, f"fill {32 * MIB}") == "True"
        status, used = ask(user, f"open {handle}").split()
        assert status == "2"
        assert ask(user, "0").split()[0] == used
        assert ask(user, "empty") == "0"
        assert ask(user, f"open {handle}") == f"0 {64 * MIB}"
        assert ask(user, "close").split()[:2] == ["0", "0"]


@pytest.mark.parametrize("query", ["cuPointerGetAttribute", "cuMemGetAddressRange"])
def test_opened_memory_of_which_the_driver_says_nothing_is_free(
    proxied: Proxied, query: str
) -> None:
    """As of a GPU that the process does not see: refusing it would end the program."""
    with shared(proxied) as (maker, user, handle):
        inject(proxied.machine, Fault(query, result=1))
        assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, "ends")
        assert ask(user, "0").split()[0] == "0"
        assert ask(user, "close").split()[:2] == ["0", "0"]


def test_mem_1_memory_that_could_not_be_closed_stays_charged(proxied: Proxied) -> None:
    """MEM-1: closed for good as often as it was opened."""
    with shared(proxied) as (maker, user, handle):
        for _ in range(2):
            assert ask(user, f"open {handle}") == "0 0"
        let_go(maker, "ends")
        for left in 1, 0:
            inject(proxied.machine, Fault("cuIpcCloseMemHandle", result=999))
            assert ask(user, "close") == f"999 {64 * MIB} 0"
            assert ask(user, "close") == f"0 {64 * MIB * left} 0"
