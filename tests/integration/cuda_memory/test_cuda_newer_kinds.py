"""What the simulated driver lacks: newer values of enumerations, and memory without properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab.driver.cuda_base import Base
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

START = "from lab.calls.cuda_kind_calls import *\nimport struct\ncontext()\nbase = used()\n"


def test_mem_1_a_graph_node_of_a_newer_type_may_allocate(proxied: Proxied) -> None:
    """MEM-1: it shows nothing, and what the graph reserves is charged."""
    outcome = proxied.check(
        START
        + """
stream = made(cuda.cuStreamCreate, 0)
graph = made(cuda.cuGraphCreate, 0)
node = ctypes.create_string_buffer(struct.pack("<I12x", 14) + node_parameters(40 * MIB).raw, 256)
made(cuda.cuGraphAddNode, graph, None, c_size_t(0), node)
exec = instantiate(graph)
check(cuda.cuGraphLaunch(exec, stream))
show((used() - base) // MIB, drift())
"""
    )
    assert outcome.out == ["40 0"]


def test_mem_1_an_array_of_a_newer_format_is_charged_the_largest_texels(base: Base) -> None:
    """MEM-1: where the driver cannot be asked."""
    outcome = base.check(
        START
        + """
for format in 0x20, 0x91, 0xcb, 0xcc, 0x21:
    array = c_void_p()
    shape = (c_uint64 * 5)(1024, 1024, 0, 4 << 32 | format, 0)
    check(cuda.cuArray3DCreate_v2(byref(array), shape))
    show((used() - base) // MIB)
    check(cuda.cuArrayDestroy(array))
"""
    )
    assert outcome.out == ["16", "16", "16", "64", "64"]


@pytest.mark.parametrize(("operation", "kept"), [(1, "4"), (2, "0"), (3, "4")])
def test_mem_1_what_is_done_with_an_array_keeps_memory_unless_it_unmaps(
    base: Base, operation: int, kept: str
) -> None:
    """MEM-1."""
    outcome = base.check(
        START
        + """
status, handle = physical(4 * MIB)
check(status)
array = c_void_p()
check(cuda.cuArray3DCreate_v2(byref(array), descriptor(1024, 1024, flags=0x40)))
words = (0, array.value, 0, 0, 0, 0, 0, int(sys.argv[1]), 0, handle.value, 0, 1, 0, 0, 0)
check(cuda.cuMemMapArrayAsync(struct.pack("<i4xQi4xQQQQiiQQ4I", *words), 1, None))
check(cuda.cuMemRelease(handle))
show((used() - base) // MIB)
check(cuda.cuArrayDestroy(array))
show((used() - base) // MIB)
""",
        str(operation),
    )
    assert outcome.out == [kept, "0"]


def test_mem_1_imported_memory_of_a_newer_kind_is_refused(base: Base) -> None:
    """MEM-1: cgpu could not count it. It may be on a device that the process does not see."""
    outcome = base.check(
        START
        + """
def arrive(type=PINNED, location=DEVICE, way=POSIX_FD):
    cuda.stub_show(type, location)
    return cuda.cuMemImportFromShareableHandle(byref(c_uint64()), c_void_p(0), way)
show(arrive(), arrive(location=HOST), arrive(location=5), arrive(location=LOCALITY_DOMAIN))
show(arrive(location=7), arrive(type=3), arrive(type=MANAGED), arrive(way=16), arrive(way=8))
"""
    )
    assert outcome.out == ["0 0 0 0", "801 801 801 801 0"]
    line = "memory of a kind that is newer than cgpu, refused: cuMemImportFromShareableHandle\n"
    assert line in outcome.log


def test_imported_memory_of_which_nothing_is_known_passes(base: Base) -> None:
    """Multicast objects, which NCCL imports on nodes with NVSwitch, may have no properties."""
    outcome = base.check(
        START
        + """
cuda.stub_show(-1, 0)
handle = c_uint64()
show(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(0), POSIX_FD))
show(cuda.cuMemRelease(handle), used() - base)
"""
    )
    assert outcome.out == ["0", "0 0"]


def test_opened_memory_of_which_nothing_is_known_passes_and_holds_nobody_up(base: Base) -> None:
    """It may lie on a GPU that the process does not see. The driver may wait for other threads."""
    outcome = base.check(
        START
        + """
import threading
current = c_void_p()
check(cuda.cuCtxGetCurrent(byref(current)))
handles = [physical(2 * MIB)[1] for _ in range(2)]
address = c_uint64()
def during(call, handle):
    answers = []
    def run():
        check(cuda.cuCtxSetCurrent(current))
        answers.append(call())
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not cuda.stub_waits():
        pass
    check(cuda.cuMemRelease(handle))
    thread.join()
    show(*answers)
during(lambda: cuda.cuIpcOpenMemHandle_v2(byref(address), IpcHandle(), 1), handles[0])
during(lambda: cuda.cuIpcCloseMemHandle(address), handles[1])
show(used() - base)
"""
    )
    assert outcome.out == ["0", "0", "0"]


@pytest.mark.parametrize(("memory_type", "charged"), [(1, "0"), (2, "4")], ids=["host", "device"])
def test_imported_memory_of_a_pool_in_host_memory_is_free(
    base: Base, memory_type: int, charged: str
) -> None:
    """The driver names a GPU for it, too."""
    outcome = base.check(
        START
        + f"""
cuda.stub_show_pooled({memory_type})
address = made(cuda.cuMemPoolImportPointer, None, None, kind=c_uint64)
show((used() - base) // MIB)
check(cuda.cuMemFree_v2(address))
show(used() - base)
"""
    )
    assert outcome.out == [charged, "0"]
