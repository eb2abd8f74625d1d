"""Physical memory through the libcuda proxy: charged until the last thing that holds it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

START = "from lab.calls.cuda_kind_calls import *\ncontext()\nbase = used()\n"


def run(proxied: Proxied, program: str, *arguments: str) -> list[str]:
    """Lines of a program below ``START``."""
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    return proxied.check(START + "\n".join(lines), *arguments).out


def test_mem_1_every_order_of_letting_go_ends_with_nothing_charged(proxied: Proxied) -> None:
    """MEM-1: two handles, a mapping and an exported descriptor, let go in all 24 orders."""
    out = run(
        proxied,
        """
        import itertools
        size = 6 * MIB
        address = reserve(size)
        kept = set()
        for order in itertools.permutations(("first", "second", "mapping", "descriptor")):
            status, handle = physical(size, handle_types=POSIX_FD)
            check(status)
            check(map_at(address, size, handle))
            again = made(cuda.cuMemRetainAllocationHandle, c_void_p(address + MIB), kind=c_uint64)
            fd = export(handle)
            steps = {
                "first": lambda: check(cuda.cuMemRelease(handle)),
                "second": lambda: check(cuda.cuMemRelease(again)),
                "mapping": lambda: check(unmap(address, size)),
                "descriptor": lambda: os.close(fd),
            }
            for count, step in enumerate(order):
                steps[step]()
                left()  # looks again at what only descriptors kept
                kept.add((4 - count - 1, (used() - base) // MIB, drift()))
        show(sorted(kept))
        """,
    )
    assert out == ["[(0, 0, 0), (1, 6, 0), (2, 6, 0), (3, 6, 0)]"]


def test_mem_1_one_call_may_unmap_what_several_mapped(proxied: Proxied) -> None:
    """MEM-1: spans of mappings of different allocations, parts of one allocation."""
    out = run(
        proxied,
        """
        address = reserve(64 * MIB)
        for size in (2, 4, 8):
            status, handle = physical(size * MIB)
            check(status)
            for offset in range(0, size, 2):
                check(map_at(address + (size + offset) * MIB, 2 * MIB, handle, offset * MIB))
            check(cuda.cuMemRelease(handle))
        show((used() - base) // MIB, drift())
        for start, size in ((4, 2), (8, 4), (12, 4), (2, 2), (6, 2)):
            show(unmap(address + start * MIB, size * MIB), (used() - base) // MIB, drift())
        show(unmap(address, 2 * MIB))
        """,
    )
    assert out == ["14 0", "0 14 0", "0 14 0", "0 6 0", "0 4 0", "0 0 0", "1"]


def test_mem_2_the_cap_holds_and_a_refusal_leaves_nothing(proxied: Proxied) -> None:
    """MEM-2: exactly what is left, in the driver's unit, and not one piece more."""
    out = run(
        proxied,
        """
        room = left() // (2 * MIB) * 2 * MIB
        show(physical(room + 2 * MIB)[0], used() - base, drift())
        status, handle = physical(room)
        show(status, left() < 2 * MIB, physical(2 * MIB)[0], drift())
        check(cuda.cuMemRelease(handle))
        show(used() - base, physical(MIB)[0], used() - base)
        """,
    )
    assert out == ["2 0 0", "0 True 2 0", "0 1 0"]


def test_mem_1_memory_on_the_host_is_free_and_managed_memory_refused(proxied: Proxied) -> None:
    """MEM-1, MEM-3."""
    out = run(
        proxied,
        """
        show(physical(64 * MIB, HOST_NUMA)[0], physical(64 * MIB, kind=MANAGED)[0], used() - base)
        """,
    )
    assert out == ["0 801 0"]


def test_mem_1_only_memory_on_the_host_is_free(proxied: Proxied) -> None:
    """MEM-1: a locality domain is part of a device; what cgpu does not know is refused."""
    outcome = proxied.check(
        START
        + """
show(physical(64 * MIB, HOST)[0], physical(64 * MIB, 4)[0], used() - base)
show(physical(64 * MIB, LOCALITY_DOMAIN)[0], (used() - base) // MIB, drift())
show(*(physical(64 * MIB, location)[0] for location in (NOWHERE, -1, 5, 7)))
show(physical(64 * MIB, kind=3)[0], physical(64 * MIB, HOST, kind=MANAGED)[0])
show((used() - base) // MIB)
"""
    )
    assert outcome.out == ["0 0 0", "0 64 0", "1 1 801 801", "801 801", "64"]
    assert "memory of a kind that is newer than cgpu, refused: cuMemCreate\n" in outcome.log


def test_mem_1_an_import_in_the_same_process_is_one_more_reference(proxied: Proxied) -> None:
    """MEM-1: paid once, until the import is released as well."""
    out = run(
        proxied,
        """
        status, handle = physical(6 * MIB, handle_types=POSIX_FD)
        check(status)
        fd = export(handle)
        check(cuda.cuMemRelease(handle))
        imported = import_fd(fd)
        os.close(fd)
        show((left(), used() - base)[1] // MIB, drift())
        check(cuda.cuMemRelease(imported))
        show((left(), used() - base)[1], drift())
        """,
    )
    assert out == ["6 0", "0 0"]


def test_mem_1_a_descriptor_number_that_is_used_again_keeps_nothing(proxied: Proxied) -> None:
    """MEM-1: the same number for another allocation: the first one's charge goes."""
    out = run(
        proxied,
        """
        for _ in range(5):
            status, handle = physical(6 * MIB, handle_types=POSIX_FD)
            check(status)
            fd = export(handle)
            check(cuda.cuMemRelease(handle))
            os.close(fd)
            other = os.open("/dev/null", os.O_RDONLY)
            show(other == fd, (left(), used() - base)[1])
            os.close(other)
        """,
    )
    assert out == ["True 0"] * 5


IMPORTER = """
import array, socket
from lab.calls.cuda_kind_calls import *
context()
base = used()
link = socket.socket(fileno=int(sys.argv[1]))
message, ancillary, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4))
fd = array.array("i", ancillary[0][2])[0]
handle = import_fd(fd)
address = reserve(64 * MIB)
check(map_at(address, 64 * MIB, handle))
check(cuda.cuMemRelease(handle))
show(used() - base)
check(unmap(address, 64 * MIB))
show(used() - base)
"""

EXPORTER = """
import array, socket, subprocess
ours, theirs = socket.socketpair()
prelude = "import sys, os, ctypes\\nfrom lab.calls.cuda_calls import *\\n"
command = [sys.executable, "-c", prelude + sys.argv[1], str(theirs.fileno())]
child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
from lab.calls.cuda_kind_calls import *
context()
base = used()
status, handle = physical(64 * MIB, handle_types=POSIX_FD)
check(status)
fd = export(handle)
ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
check(child.wait())
"""


def test_mem_1_memory_imported_by_another_process_is_paid_once(proxied: Proxied) -> None:
    """MEM-1: the exporter pays; mapping and unmapping elsewhere change nothing."""
    outcome = proxied.check(EXPORTER, IMPORTER)
    assert outcome.out == ["0", "0"]


# Says when it has mapped what it got, and goes on when the exporter has ended.
HEIR = """
import array, socket
from lab.calls.cuda_kind_calls import *
context()
link = socket.socket(fileno=int(sys.argv[1]))
message, ancillary, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4))
fd = array.array("i", ancillary[0][2])[0]
late = sys.argv[3] == "late"
if late:
    link.recv(1)
if sys.argv[4] == "full":
    check(alloc(left() - 32 * MIB)[0])
base = used()
handle = import_fd(fd)
os.close(fd)
address = reserve(64 * MIB)
status = map_at(address, 64 * MIB, handle)
show(status, (used() - base) // MIB)
if not late:
    link.send(b"x")
    link.recv(1)
base = used()
if status == 0:
    check(unmap(address, 64 * MIB))
check(cuda.cuMemRelease(handle))
show((base - used()) // MIB, drift())
"""

# Ends, or lets go, when the other one has mapped it, or before that.
TESTATOR = """
import array, socket, subprocess
ours, theirs = socket.socketpair()
prelude = "import sys, os, ctypes\\nfrom lab.calls.cuda_calls import *\\n"
command = [sys.executable, "-c", prelude + sys.argv[1], str(theirs.fileno()), *sys.argv[2:]]
child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
theirs.close()
exporter = os.fork()
if exporter == 0:
    from lab.calls.cuda_kind_calls import *
    context()
    status, handle = physical(64 * MIB, handle_types=POSIX_FD)
    check(status)
    fd = export(handle)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    if sys.argv[3] == "early":
        ours.recv(1)
    if sys.argv[2] == "ends":
        os._exit(0)
    os.close(fd)
    check(cuda.cuMemRelease(handle))
    ours.send(b"x")
    ours.recv(1)  # stays until the heir has ended: its context would count in drift()
    os._exit(0)
if sys.argv[2] == "ends":
    os.waitpid(exporter, 0)
    ours.send(b"x")
ours.close()
check(child.wait())
"""


@pytest.mark.parametrize("how", ["ends", "lets go"])
def test_mem_1_who_has_imported_memory_pays_when_its_exporter_is_gone(
    proxied: Proxied, how: str
) -> None:
    """MEM-1: nothing is free because another process made it."""
    outcome = proxied.check(TESTATOR, HEIR, how, "early", "room")
    assert outcome.out == ["0 0", "64 0"]


@pytest.mark.parametrize("how", ["ends", "lets go"])
def test_mem_1_who_imports_memory_of_nobody_pays(proxied: Proxied, how: str) -> None:
    """MEM-1: a descriptor outlives who made it."""
    outcome = proxied.check(TESTATOR, HEIR, how, "late", "room")
    assert outcome.out == ["0 64", "64 0"]


def test_mem_1_memory_of_nobody_must_fit(proxied: Proxied) -> None:
    """MEM-1: it cannot be mapped beyond the cap."""
    outcome = proxied.check(TESTATOR, HEIR, "ends", "late", "full")
    assert outcome.out == ["2 0", "0 0"]


def test_mem_1_a_duplicate_of_an_own_descriptor_frees_nothing(proxied: Proxied) -> None:
    """MEM-1: the memory comes back through a descriptor that was not made by exporting."""
    out = run(
        proxied,
        """
        status, handle = physical(6 * MIB, handle_types=POSIX_FD)
        check(status)
        fd = export(handle)
        copy = os.dup(fd)
        os.close(fd)
        check(cuda.cuMemRelease(handle))
        left()
        again = import_fd(copy)
        os.close(copy)
        address = reserve(6 * MIB)
        for size in (2, 4, 6, 6, 2):
            check(map_at(address, size * MIB, again))
            show((used() - base) // MIB)
            check(unmap(address, size * MIB))
        check(cuda.cuMemRelease(again))
        show((left(), used() - base)[1], drift())
        """,
    )
    assert out == ["2", "4", "6", "6", "6", "0 0"]
