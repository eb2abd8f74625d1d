"""What processes of containers may do to themselves, that those who look at them must stand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cgpu_native
from cgpu_env import GpuShare
from cgpu_node.shares import liveness
from cgpu_node.shares.liveness import find_inhabited, start_time
from cgpu_node.shares.mountinfo import read_mounts
from cgpu_node.shares.record import Owner, Record
from cgpu_node.view import processes
from cgpu_node.view.usage import locate_processes, use_of
from cgpu_server.audit import process_owners
from cgpu_server.audit.process_owners import ContainerLookup, read_process
from lab.machine.nobody import NOBODY
from lab.machine.trees import leave_trees

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from cgpu_node.shares.mountinfo import MountInfo


pytestmark = pytest.mark.integration

MOUNTS = b"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.unshare(0x20000)  # CLONE_NEWNS
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
os.mkdir(sys.argv[1])
assert libc.mount(b"none", os.fsencode(sys.argv[1]), b"tmpfs", 0, None) == 0
print(flush=True)
sys.stdin.read()
"""
# Mounts a file at a path that ends as the ledger's does: the limits, or one that is only named so.
BINDS = b"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.unshare(0x20000)  # CLONE_NEWNS
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
source, target = map(os.fsencode, sys.argv[1:])
os.makedirs(os.path.dirname(source), exist_ok=True)
open(source, "ab").close()
assert libc.mount(source, target, None, 0x1000, None) == 0  # MS_BIND
print(flush=True)
sys.stdin.read()
"""
MAPS = b"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
from cgpu_native._native import ffi, lib
ledger = ffi.new("struct cgpu_ledger **")
assert lib.cgpu_ledger_attach(os.fsencode(sys.argv[2]), os.getpid(), ledger) == 0
assert lib.cgpu_ledger_charge(ledger[0], 0, 1 << 30, 1000, ffi.new("uint64_t *")) == 0
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    # MAP_SHARED | MAP_FIXED, before everything else
    low = libc.mmap(0x10000, 4096, 1, 0x11, file.fileno(), 0)
    assert low == 0x10000
print(flush=True)
sys.stdin.read()
"""
# Of a process whose first thread has ended /proc/PID shows no memory, mounts or program.
HEADLESS = b"""
import ctypes, os, sys, threading
from cgpu_native._native import ffi, lib
ledger = ffi.new("struct cgpu_ledger **")
assert lib.cgpu_ledger_attach(os.fsencode(sys.argv[2]), os.getpid(), ledger) == 0
assert lib.cgpu_ledger_charge(ledger[0], 0, 1 << 30, 1000, ffi.new("uint64_t *")) == 0
def rest():
    print(flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    cgpu_native.create_ledger(tmp_path, "ledger")
    return tmp_path / "ledger"


class Strange:
    """A process that runs ``script`` with a path of ``name`` and the ledger's."""

    def __init__(self, script: bytes, name: bytes, ledger: Path) -> None:
        path = os.path.join(os.fsencode(ledger.parent), name)  # noqa: PTH118 (no text)
        words = [sys.executable, "-c", script, path, ledger]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)


def session(ledger: Path) -> Record:
    gpus, owner, directory = (GpuShare(0, "GPU-0", 1),), Owner(1, 1, None), str(ledger.parent)
    return Record(
        "run-1",
        "session",
        owner,
        gpus,
        1,
        high_priority=False,
        policy=0,
        command=(),
        directory=directory,
    )


NAMES = [b"\xff", b"a\rb\rc", b"a b\nc"]


@pytest.mark.parametrize("name", NAMES)
def test_mounts_of_any_name_hide_nobody_and_break_nothing(ledger: Path, name: bytes) -> None:
    with Strange(MOUNTS, name, ledger) as strange:
        assert find_inhabited([str(ledger.parent)]) == set()
        process = read_process(strange.pid)
        assert process is not None
        assert ContainerLookup([session(ledger)]).find(process) is None


def test_a_process_with_more_mounts_than_can_be_read_may_be_a_sessions(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-2: reading ends after some time, and the session keeps what it has."""
    with Strange(MOUNTS, b"mounted", ledger) as strange:
        process = read_process(strange.pid)
        assert process is not None
        folder, now = f"/proc/{strange.pid}", time.thread_time()
        assert None not in list(read_mounts(folder, now + 60))
        assert list(read_mounts(folder, now)) == [None]
        monkeypatch.setattr(liveness, "MOUNTS_CPU_S", 0.0)
        monkeypatch.setattr(process_owners, "_READ_CPU_S", 0.0)
        assert find_inhabited([str(ledger.parent)]) == {str(ledger.parent)}
        assert ContainerLookup([session(ledger)]).find(process) is None


# In a user's own namespaces; a root in there could stack any number of mounts.
APART = b"""
import ctypes, os, sys
user = int(sys.argv[1].rpartition("/")[2])
os.setgid(user); os.setuid(user)
ctypes.CDLL(None).unshare(0x10000000 | 0x20000)  # CLONE_NEWUSER | CLONE_NEWNS
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("user", "kept"), [(NOBODY, "theirs"), (0, "root")])
def test_a_users_mounts_keep_no_session_but_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, kept: str
) -> None:
    """REL-8: with more than can be read, no session that ended gave its share back.

    Root in a container is the same user as root of the host.
    """
    sessions = {name: tmp_path / name for name in ("root", "theirs", "another", "earlier")}
    for name, directory in sessions.items():
        directory.mkdir()
        (directory / "limits").touch()
        cgpu_native.create_ledger(directory, "ledger")
        if name != "root":
            os.chown(directory / "ledger", NOBODY, NOBODY)  # which users may do
    (sessions["theirs"] / "guest").write_text(str(NOBODY))
    (sessions["another"] / "guest").write_text("1234")
    wanted = {str(directory) for directory in sessions.values()}
    with Strange(APART, b"%d" % user, sessions["root"] / "ledger") as strange:
        assert find_inhabited(wanted) == set()
        full = f"/proc/{strange.pid}"

        def read(folder: str, until: float, ending: bytes = b"") -> Iterator[MountInfo | None]:
            return iter([None]) if folder == full else read_mounts(folder, until, ending)

        monkeypatch.setattr(liveness, "read_mounts", read)
        assert find_inhabited(wanted) == {str(sessions[name]) for name in (kept, "earlier")}


@pytest.mark.parametrize("own", [True, False], ids=["its limits", "a file of that name"])
def test_only_the_limits_themselves_show_whose_a_process_is(
    ledger: Path,
    own: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    """REL-8, MEM-9: every user can mount a file of any name, in a folder of any name."""
    directory = ledger.parent
    (directory / "limits").touch()
    forged = f"x/{directory.name}/limits".encode()
    with Strange(BINDS, b"limits" if own else forged, ledger) as strange:
        assert find_inhabited([str(directory)]) == ({str(directory)} if own else set())
        process = read_process(strange.pid)
        assert process is not None
        found = ContainerLookup([session(ledger)]).find(process)
        assert found == (session(ledger) if own else None)


def test_dra_2_a_process_of_a_container_is_found_by_the_limits_of_its_claim(ledger: Path) -> None:
    """MEM-9, DRA-2: also after root of such a container has given the ledger to somebody else."""
    (ledger.parent / "limits").touch()
    os.chown(ledger, 1234, -1)
    with Strange(BINDS, b"limits", ledger) as strange:
        process = read_process(strange.pid)
        assert process is not None
        claim = session(ledger)._replace(kind="claim")
        assert ContainerLookup([claim]).find(process) == claim
        assert ContainerLookup([session(ledger)]).find(process) is None


def holdings(record: Record) -> list[tuple[processes.Holding, ...]]:
    """Who holds memory, on each of the container's GPUs, with ids on the host."""
    ((use),) = locate_processes([use_of(record)])
    return [gpu.processes for gpu in use.gpus]


@pytest.mark.parametrize("name", NAMES)
def test_mapped_files_of_any_name_hide_nobody_and_break_nothing(ledger: Path, name: bytes) -> None:
    with Strange(MAPS, name, ledger) as strange:
        ((held,),) = holdings(session(ledger))
        assert held == (strange.pid, 1000, strange.pid)
        process = read_process(strange.pid)
        assert process is not None
        assert ContainerLookup([session(ledger)]).find(process) == session(ledger)


def test_a_process_whose_first_thread_has_ended_lives_and_belongs(ledger: Path) -> None:
    with Strange(HEADLESS, b"", ledger) as strange:
        until_headless(strange.pid)
        assert start_time(strange.pid) is not None
        process = read_process(strange.pid)
        assert process is not None
        assert not process.ends
        assert ContainerLookup([session(ledger)]).find(process) == session(ledger)
        assert holdings(session(ledger)) == [((strange.pid, 1000, strange.pid),)]


def until_headless(pid: int) -> None:
    while Path(f"/proc/{pid}/statm").read_bytes().split()[0] != b"0":
        pass


LOOKS = """
import ctypes, os, sys
from cgpu_doctor import state
from cgpu_doctor.finding import Ground
from cgpu_install.machine import Machine
from cgpu_server.tree import mounts
libc = ctypes.CDLL(None)
for kind, user in ((b"fuse.\\xff", 0), (b"fuse.cgpu_km", 7)):
    for name in (b"/x;reboot", b"/\\xff", b"/a\\rb\\xc2\\x85c", b"/a\\x1b"):
        path = os.fsencode(f"{sys.argv[1]}/{user}") + name
        os.makedirs(path, exist_ok=True)
        device = mounts.open_device()
        data = f"fd={device},rootmode=40000,user_id={user},group_id=0"
        assert libc.mount(b"x", path, kind, ctypes.c_ulong(0), data.encode()) == 0
        os.close(device)
mounts.unmount_tree(sys.argv[1])
ground = Ground(Machine(), sys.argv[1], None)
print([*state.check_leftovers(ground)])
"""


def test_mounts_of_users_disturb_neither_server_nor_doctor(tmp_path: Path) -> None:
    """They can mount a file system of any kind and options that FUSE has."""
    words = [sys.executable, "-c", LOOKS, tmp_path]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, preexec_fn=leave_trees
    )
    assert done.returncode == 0, done.stderr
    assert "nothing is left of ended containers" in done.stdout


def test_many_mappings_hold_nobody_up(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All containers are looked for at once, and not for long."""
    looks = []
    whole = processes._find_host_pids  # noqa: SLF001 (what takes time)

    def look(*arguments: Any) -> Any:
        looks.append(arguments)
        return whole(*arguments)

    monkeypatch.setattr(processes, "_find_host_pids", look)
    with Strange(MAPS, b"file", ledger) as strange:
        record = session(ledger)
        twice = record._replace(gpus=record.gpus * 2)
        known = [((strange.pid, 1000, strange.pid),), ()]
        assert holdings(twice) == known
        assert len(looks) == 1
        unknown = [((0, 1000, strange.pid),), ()]
        for bound in ("_CPU_S", "_ALL_CPU_S"):
            with monkeypatch.context() as patched:
                patched.setattr(processes, bound, -1)
                assert holdings(twice) == unknown


def test_more_mappings_than_can_be_read_hide_their_own_process_only(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-9, REL-5: 65,000 of files with long paths take 2 s and 240 MB."""
    record = session(ledger)
    with Strange(MAPS, b"file", ledger) as strange, Strange(HEADLESS, b"", ledger) as other:
        process, beside = read_process(strange.pid), read_process(other.pid)
        assert process is not None
        assert beside is not None
        spent: dict[tuple[int, int], float] = {}
        assert ContainerLookup([record], spent=spent).find(process) == record
        first = spent[process[:2]]
        monkeypatch.setattr(process_owners, "_READ_CPU_S", first + 1e-9)
        ContainerLookup([record], spent=spent).find(process)
        assert spent[process[:2]] > first, "what all looks take adds up"
        lookup = ContainerLookup([record], spent=spent)
        assert lookup.find(process) is None, "it is not read again"
        assert lookup.find(beside) == record


# A ledger of another file system, with the same number there, as every user can make.
FORGED = """
import mmap, os, subprocess, sys
import cgpu_native
from cgpu_node.view.processes import Holding, locate_holdings
folders = [f"{sys.argv[1]}/{name}/container" for name in ("real", "forged")]
for folder in folders:
    os.mkdir(os.path.dirname(folder))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.path.dirname(folder)], check=True)
    os.mkdir(folder)
    cgpu_native.create_ledger(folder, "ledger")
assert len({os.stat(f"{folder}/ledger").st_ino for folder in folders}) == 1
mapped = mmap.mmap(os.open(f"{folders[1]}/ledger", os.O_RDWR), 4096)
held = Holding(0, 1, os.getpid())
print([locate_holdings([(folder, (held,))])[0][0].pid == os.getpid() for folder in folders])
"""


def test_a_ledger_of_another_file_system_is_another_one(tmp_path: Path) -> None:
    """REL-5: its process would be shown as one of the container's."""
    words = ["unshare", "-m", sys.executable, "-c", FORGED, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[False, True]\n", done.stderr
