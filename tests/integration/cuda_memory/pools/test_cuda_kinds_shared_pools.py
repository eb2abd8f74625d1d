"""Memory of pools that other processes have imported: paid for once, by somebody who has it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.driver.cuda_proxied import Proxied
    from lab.runs.children import Child

pytestmark = pytest.mark.integration

MIB = 1 << 20
START = """
from lab.calls.cuda_kind_calls import *
import socket, struct
from ctypes import create_string_buffer
context()
base = charged()
def own():
    return charged() - base
"""
MAKER = (
    START
    + """
shares = struct.pack("<4i", PINNED, POSIX_FD, DEVICE, 0) + bytes(72)
pool = made(cuda.cuMemPoolCreate, shares)
before = alloc_async(64 * MIB, pool)[1]
fd = made(cuda.cuMemPoolExportToShareableHandle, pool, POSIX_FD, c_uint64(0), kind=c_int).value
after = alloc_async(32 * MIB, pool)[1]
def exported(address):
    data = create_string_buffer(64)
    check(cuda.cuMemPoolExportPointer(data, c_uint64(address)))
    return data.raw.hex()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
show(exported(before), exported(after))
socket.send_fds(server.accept()[0], [b"x"], [fd])
for line in sys.stdin:
    if line == "frees\\n":
        check(free_async(before))
        check(cuda.cuMemFree_v2(c_uint64(after)))
        check(cuda.cuCtxSynchronize())
    elif line == "destroys the pool\\n":
        check(cuda.cuMemPoolDestroy(pool))
    show(own())
"""
)
USER = (
    START
    + """
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
fd = socket.recv_fds(client, 1, 1)[1][0]
pool = made(cuda.cuMemPoolImportFromShareableHandle, c_void_p(fd), POSIX_FD, c_uint64(0))
show(own())
addresses = []
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "import":
        address = c_uint64()
        data = create_string_buffer(bytes.fromhex(rest), 64)
        status = cuda.cuMemPoolImportPointer(byref(address), pool, data)
        if status == 0:
            addresses.append(address.value)
        show(status, own())
    elif word == "free":
        show(free(addresses.pop()), own(), drift())
    elif word == "async":
        show(free_async(addresses.pop()), own(), drift())
    elif word == "twice":
        show(free(addresses[-1]), free(addresses[-1]), free_async(addresses[-1]), own())
    elif word == "fill":
        filler = alloc(left() - int(rest))[1]
        show(own() != 0)
    elif word == "empty":
        show(free(filler))
    else:
        show(own(), drift())
"""
)


@contextmanager
def shared(proxied: Proxied, **env: str) -> Iterator[tuple[Child, Child, list[str]]]:
    """Who made a pool, somebody else who has imported it, and what has 64 and 32 MiB of it."""
    with ExitStack() as stack:
        path = str(proxied.base.path / "socket")
        maker = stack.enter_context(proxied.start(MAKER, path, **env))
        data = read(maker).split()
        user = stack.enter_context(proxied.start(USER, path))
        assert read(user) == "0"
        yield maker, user, data
        for each in (user, maker):
            if each.poll() is None:
                each.communicate(timeout=60)


def let_go(maker: Child, how: str) -> None:
    if how == "ends":
        maker.communicate(timeout=60)
    else:
        assert ask(maker, how) == "0"


WAYS = ("frees", "ends")


def test_mem_1_memory_of_an_imported_pool_is_paid_once(proxied: Proxied) -> None:
    """MEM-1: by the process that made the pool, however often it is imported."""
    with shared(proxied) as (maker, user, data):
        for each in [*data, *data]:
            assert ask(user, f"import {each}") == "0 0"
        assert ask(maker, "") == str(96 * MIB)
        assert ask(user, "") == "0 0"


@pytest.mark.parametrize("how", WAYS)
def test_mem_1_who_has_imported_a_pools_memory_pays_when_its_maker_has_let_go(
    proxied: Proxied, how: str
) -> None:
    """MEM-1: until it frees it, in a stream or not."""
    with shared(proxied) as (maker, user, data):
        for each in data:
            assert ask(user, f"import {each}") == "0 0"
        let_go(maker, how)
        assert ask(user, "") == f"{96 * MIB} 0"
        assert ask(user, "free") == f"0 {64 * MIB} 0"
        assert ask(user, "async") == "0 0 0"


def test_mem_1_a_pools_memory_that_is_imported_twice_counts_once(proxied: Proxied) -> None:
    """MEM-1: and is held until it was freed as often."""
    with shared(proxied) as (maker, user, data):
        for each in [*data, *data]:
            assert ask(user, f"import {each}") == "0 0"
        let_go(maker, "ends")
        assert ask(user, "") == f"{96 * MIB} 0"
        for _ in range(2):
            assert ask(user, "free") == f"0 {96 * MIB} 0"
        assert ask(user, "free") == f"0 {64 * MIB} 0"
        assert ask(user, "free") == "0 0 0"


def test_mem_1_freeing_that_fails_leaves_the_charge(proxied: Proxied) -> None:
    """MEM-1: what was freed already."""
    with shared(proxied) as (maker, user, data):
        assert ask(user, f"import {data[0]}") == "0 0"
        let_go(maker, "ends")
        assert ask(user, "twice") == "0 1 1 0"


def test_mem_2_memory_of_a_pool_that_nobody_pays_for_must_fit(proxied: Proxied) -> None:
    """MEM-2: here of a maker in no container. What is refused is not imported."""
    real = proxied.base.path / "real"
    alone = {"LD_LIBRARY_PATH": str(real), "CGPU_PROXY": str(real / "libcuda.so.1")}
    with shared(proxied, **alone) as (_, user, data):
        assert ask(user, f"import {data[0]}") == f"0 {64 * MIB}"
        assert ask(user, "free").split()[:2] == ["0", "0"]
        assert ask(user, f"fill {48 * MIB}") == "True"
        assert ask(user, f"import {data[0]}").split()[0] == "2"
        assert ask(user, f"import {data[1]}").split()[0] == "0"
        assert ask(user, "empty") == "0"
        assert ask(user, "").split()[0] == str(32 * MIB)
