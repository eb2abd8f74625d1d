"""Shared memory of the simulated driver lives as long as anything refers to it."""

from __future__ import annotations

import array
import os
import socket
import textwrap
from pathlib import Path

import pytest

from lab.driver.sim_cuda import PRELUDE, Driver, make_driver, read, tell

pytestmark = pytest.mark.integration

CREATE = """
    SIZE = 4 * MIB
    def properties(handle_types=0, location=1):
        return (c_uint * 8)(1, handle_types, location, 0)
    def create(handle_types=0, location=1):
        return made(cuda.cuMemCreate, c_size_t(SIZE), properties(handle_types, location),
                    c_uint64(0), kind=c_uint64)
    def reserve():
        return made(cuda.cuMemAddressReserve, c_size_t(SIZE), c_size_t(0), c_uint64(0),
                    c_uint64(0), kind=c_uint64)
    def map_in(address, handle):
        check(cuda.cuMemMap(address, c_size_t(SIZE), c_size_t(0), handle, c_uint64(0)))
        access = (c_uint * 3)(1, 0, 3)
        check(cuda.cuMemSetAccess(address, c_size_t(SIZE), access, c_size_t(1)))
    def write(address, text):
        check(cuda.cuMemcpyHtoD_v2(address, text, c_size_t(len(text))))
    def text_at(address, size=5):
        back = ctypes.create_string_buffer(size)
        check(cuda.cuMemcpyDtoH_v2(back, address, c_size_t(size)))
        return back.raw.decode()
    start()
    base = used_mib()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return make_driver(tmp_path / "driver")


def test_physical_memory_lives_until_its_last_mapping_is_gone(driver: Driver) -> None:
    out = driver.check(
        CREATE
        + """
    handle, one, two = create(), reserve(), reserve()
    show(used_mib() - base)
    map_in(one, handle), map_in(two, handle)
    write(one, b"hello")
    show(text_at(two), cuda.cuMemRelease(handle), cuda.cuMemRelease(handle), used_mib() - base)
    show(cuda.cuMemAddressFree(one, c_size_t(SIZE)))
    check(cuda.cuMemUnmap(one, c_size_t(SIZE)))
    again = made(cuda.cuMemRetainAllocationHandle, two, kind=c_uint64)
    check(cuda.cuMemUnmap(two, c_size_t(SIZE)))
    show(used_mib() - base)
    show(cuda.cuMemRelease(again), used_mib() - base, cuda.cuMemAddressFree(one, c_size_t(SIZE)))
    """
    )
    assert out == ["4.0", "hello 0 1 4.0", "1", "4.0", "0 0.0 0"]


def test_unmapped_or_inaccessible_addresses_are_not_memory(driver: Driver) -> None:
    out = driver.check(
        CREATE
        + """
    handle, address = create(), reserve()
    show(cuda.cuMemsetD8_v2(address, 1, c_size_t(1)))
    check(cuda.cuMemMap(address, c_size_t(SIZE), c_size_t(0), handle, c_uint64(0)))
    show(cuda.cuMemsetD8_v2(address, 1, c_size_t(1)))
    show(cuda.cuMemMap(address, c_size_t(SIZE), c_size_t(0), handle, c_uint64(0)))
    show(cuda.cuMemCreate(byref(c_uint64()), c_size_t(MIB), properties(), c_uint64(0)))
    """
    )
    assert out == ["1", "1", "1", "1"]


def test_host_located_memory_is_free_of_charge(driver: Driver) -> None:
    out = driver.check(
        CREATE
        + """
    handle, address = create(location=3), reserve()
    map_in(address, handle), write(address, b"hello")
    show(text_at(address), used_mib() - base)
    """
    )
    assert out == ["hello 0.0"]


IMPORT = (
    CREATE
    + """
    fd = int(sys.argv[1])
    handle = made(cuda.cuMemImportFromShareableHandle, c_void_p(fd), 1, kind=c_uint64)
    os.close(fd)
    address = reserve()
    map_in(address, handle)
    check(cuda.cuMemRelease(handle))
    show(text_at(address))
    sys.stdin.readline()
    show(text_at(address), used_mib() - 105)
"""
)


def test_an_exported_handle_outlives_its_exporter(driver: Driver, tmp_path: Path) -> None:
    """The memory is counted once, while a descriptor, a handle or a mapping is left anywhere."""
    exporter = (
        CREATE
        + """
    import socket, array
    handle, address = create(1), reserve()
    map_in(address, handle), write(address, b"hello")
    fd = made(cuda.cuMemExportToShareableHandle, handle, 1, c_uint64(0), kind=c_int).value
    check(cuda.cuMemUnmap(address, c_size_t(SIZE))), check(cuda.cuMemRelease(handle))
    show(used_mib() - base)
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(sys.argv[1])
    channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.kill(os.getpid(), 9)
    """
    )
    ask = "start()\nshow(used_mib() - 105)"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "channel"))
        server.listen()
        with driver.start(exporter, str(tmp_path / "channel")) as process:
            assert read(process) == "4.0"
            channel, _ = server.accept()
            process.wait()
        assert driver.check(ask) == ["4.0"]
        with channel:
            size = array.array("i").itemsize
            _, messages, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(size))
        fd = int.from_bytes(messages[0][2][:size], "little")
    assert driver.check(ask) == ["4.0"]
    assert (driver.check("start()\nshow(cuda.cuMemImportFromShareableHandle("
            "byref(c_uint64()), c_void_p(0), 1))")) == ["1"]  # fmt: skip
    os.close(fd)
    assert driver.check(ask) == ["0.0"]


def test_an_importer_maps_what_the_exporter_wrote(driver: Driver) -> None:
    exporter = (
        CREATE
        + """
    import subprocess
    handle, address = create(1), reserve()
    map_in(address, handle), write(address, b"hello")
    fd = made(cuda.cuMemExportToShareableHandle, handle, 1, c_uint64(0), kind=c_int).value
    os.set_inheritable(fd, True)
    importer = subprocess.Popen([sys.executable, "-c", os.environ["IMPORTER"], str(fd)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd])
    os.close(fd)
    show(importer.stdout.readline().strip(), used_mib() - base - 105)
    write(address, b"world")
    check(cuda.cuMemUnmap(address, c_size_t(SIZE))), check(cuda.cuMemRelease(handle))
    show(used_mib() - base - 105)
    show(importer.communicate("\\n")[0].split()[0])
    show(used_mib() - base)
    """
    )
    out = driver.check(exporter, IMPORTER=PRELUDE + textwrap.dedent(IMPORT))
    assert out == ["hello 4.0", "4.0", "world", "0.0"]


def test_ipc_shares_bytes_and_is_paid_once(driver: Driver) -> None:
    other = """
        start()
        handle = (c_char * 64).from_buffer_copy(bytes.fromhex(sys.argv[1]))
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", c_char * 64)]
        name = Handle.from_buffer_copy(bytes(handle))
        def open_it():
            out = c_uint64()
            return cuda.cuIpcOpenMemHandle_v2(byref(out), name, 1), out
        status, address = open_it()
        again = open_it()[1]
        back = ctypes.create_string_buffer(5)
        check(cuda.cuMemcpyDtoH_v2(back, address, c_size_t(5)))
        show(status, back.raw.decode(), again.value == address.value, used_mib() - 210)
        check(cuda.cuMemcpyHtoD_v2(address, b"world", c_size_t(5)))
        show(cuda.cuMemFree_v2(address), cuda.cuIpcCloseMemHandle(address))
        show(cuda.cuIpcCloseMemHandle(address), cuda.cuIpcCloseMemHandle(address))
    """
    owner = """
        start()
        addresses = [c_uint64(alloc(size)[1]) for size in (3 * MIB, 1000)]
        for address in addresses:
            check(cuda.cuMemcpyHtoD_v2(address, b"hello", c_size_t(5)))
            handle = ctypes.create_string_buffer(64)
            check(cuda.cuIpcGetMemHandle(handle, address))
            show(handle.raw.hex())
            sys.stdin.readline()
            back = ctypes.create_string_buffer(5)
            check(cuda.cuMemcpyDtoH_v2(back, address, c_size_t(5)))
            show(back.raw.decode(), free(address.value))
        show(used_mib())
    """
    with driver.start(owner) as process:
        for held in ("6.0", "2.0"):
            out = driver.check(other, read(process))
            assert out == [f"0 hello True {held}", "1 0", "0 1"]
            tell(process, "")
            assert read(process) == "world 0"
        assert read(process) == "105.0"


def test_memory_of_a_shared_pool_is_paid_by_its_owner(driver: Driver) -> None:
    other = """
        start()
        import base64
        pool = made(cuda.cuMemPoolImportFromShareableHandle, c_void_p(int(sys.argv[1])), 1,
                    c_uint64(0))
        share = ctypes.create_string_buffer(bytes.fromhex(sys.argv[2]), 64)
        base = used_mib()
        address = made(cuda.cuMemPoolImportPointer, pool, share, kind=c_uint64)
        back = ctypes.create_string_buffer(5)
        check(cuda.cuMemcpyDtoH_v2(back, address, c_size_t(5)))
        show(back.raw.decode(), used_mib() - base)
        none = c_uint64()
        show(cuda.cuMemAllocFromPoolAsync(byref(none), c_size_t(10), pool, None))
        check(cuda.cuMemFreeAsync(address, None))
        show(used_mib() - base)
    """
    owner = """
        import subprocess
        start()
        base = used_mib()
        properties = (c_uint64 * 11)(1 << 32 | 1, 0 << 32 | 1)
        pool = made(cuda.cuMemPoolCreate, properties)
        address = made(cuda.cuMemAllocFromPoolAsync, c_size_t(3 * MIB), pool, None, kind=c_uint64)
        check(cuda.cuMemcpyHtoD_v2(address, b"hello", c_size_t(5)))
        share = ctypes.create_string_buffer(64)
        check(cuda.cuMemPoolExportPointer(share, address))
        fd = made(cuda.cuMemPoolExportToShareableHandle, pool, 1, c_uint64(0), kind=c_int).value
        show(used_mib() - base)
        done = subprocess.run(
            [sys.executable, "-c", os.environ["OTHER"], str(fd), share.raw.hex()],
            stdout=subprocess.PIPE, text=True, pass_fds=[fd])
        show(*done.stdout.split())
        check(cuda.cuMemFreeAsync(address, None)), check(cuda.cuMemPoolDestroy(pool))
        os.close(fd)
        show(used_mib() - base)
    """
    out = driver.check(owner, OTHER=PRELUDE + textwrap.dedent(other))
    assert out == ["4.0", "hello 0.0 1 0.0", "0.0"]
