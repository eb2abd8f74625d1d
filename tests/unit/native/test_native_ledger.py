"""The ledger through its Python binding: layout, errors, leaks, how it is built."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from cgpu_native._native import ffi, lib
from elftools.elf.elffile import ELFFile

import cgpu_native
import cgpu_native.build
from cgpu_native import _native
from lab.driver.attached import AttachedLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.unit

CAP = 1 << 20


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a tmpfs, as on the host
        cgpu_native.create_ledger(folder, "ledger")
        yield Path(folder) / "ledger"


def _offsets(name: str) -> dict[str, int]:
    return {field: kind.offset for field, kind in ffi.typeof(name).fields}


def test_the_layout_is_the_one_that_running_containers_write() -> None:
    assert _offsets("struct cgpu_ledger_file") == {
        "magic": 0,
        "version": 4,
        "size": 8,
        "slot_bound": 12,
        "reaped_ms": 16,
        "work_bound": 24,
        "reserved0": 28,
        "reserved": 32,
        "gpus": 128,
        "works": 4224,
        "slots": 36992,
    }
    assert _offsets("struct cgpu_ledger_gpu") == {
        "lock": 0,
        "bell": 4,
        "used": 8,
        "refused": 16,
        "stalls": 24,
        "stalled_ns": 32,
        "permits": 40,
        "queued_ns": 56,
        "freed": 64,
        "reserved0": 68,
        "reserved": 72,
    }
    slot = {"taken": 0, "generation": 4, "pid": 8, "reserved0": 12, "reserved": 16, "used": 64}
    assert _offsets("struct cgpu_ledger_slot") == slot
    assert _offsets("struct cgpu_ledger_work") == {
        "owner": 0,
        "gpu": 4,
        "active": 8,
        "waiting": 12,
        "idle": 16,
        "certain": 20,
        "end_ns": 24,
        "busy_ns": 32,
        "begun_ns": 40,
        "markers": 48,  # eight bytes until 0.2, and never more than four of them used
        "done_us": 52,
        "missed": 56,
        "lag_ns": 60,
    }
    sizes = {"file": 364672, "gpu": 128, "slot": 320, "work": 64}
    assert {name: ffi.sizeof(f"struct cgpu_ledger_{name}") for name in sizes} == sizes
    assert int.from_bytes(b"CLED", "little") == lib.CGPU_LEDGER_MAGIC


def test_amounts_stand_in_the_file_where_the_layout_says(path: Path) -> None:
    with AttachedLedger.attach(path, pid=77) as ledger:
        ledger.charge(5, CAP, 1234)
        file = ffi.new("struct cgpu_ledger_file *")
        ffi.buffer(file)[:] = path.read_bytes()
        assert (file.magic, file.version, file.size) == (lib.CGPU_LEDGER_MAGIC, 2, 364672)
        assert (file.gpus[5].used, file.slots[0].used[5], file.slots[0].pid) == (1234, 1234, 77)


def test_a_charge_is_seen_by_observers_and_given_back(path: Path) -> None:
    observer = cgpu_native.Ledger.observe(path)
    with AttachedLedger.attach(path) as ledger:
        assert ledger.charge(0, CAP, 150) == 150
        assert (ledger.read_used(0), ledger.read_own(0), observer.read_used(0)) == (150, 150, 150)
        assert observer.list_processes() == [cgpu_native.LedgerProcess(os.getpid(), 0, 150)]
        assert observer.list_processes(1) == []
        ledger.release(0, 50)
        assert observer.read_used(0) == 100
    assert observer.read_used(0) == 0
    observer.close()


def _found_costly(path: Path) -> None:
    """Look at a ledger, and find that asking for its processes is costly."""
    with cgpu_native.Ledger.observe(path) as observer:
        lib.cgpu_ledger_rest(observer._handle, time.monotonic_ns() + 10**9)  # noqa: SLF001
        observer.look()
    assert cgpu_native.is_costly(path)


def test_a_new_ledger_is_not_taken_for_a_costly_one_that_is_gone(tmp_path: Path) -> None:
    """Most file systems give a new file the number of the one that was removed last."""
    path = tmp_path / "ledger"
    cgpu_native.create_ledger(tmp_path, path.name)
    _found_costly(path)
    path.unlink()
    for name in map(str, range(20)):
        cgpu_native.create_ledger(tmp_path, name)
        assert not cgpu_native.is_costly(tmp_path / name)
        with cgpu_native.Ledger.observe(tmp_path / name) as observer:
            assert lib.cgpu_ledger_rests(observer._handle) == 0  # noqa: SLF001


def test_what_is_remembered_of_costly_ledgers_is_forgotten_with_its_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgpu_native.ledger, "_RESTS", {})
    before = len(list(Path("/proc/self/fd").iterdir()))
    _found_costly(path)
    _found_costly(path)
    with monkeypatch.context() as later:
        later.setattr(cgpu_native.ledger, "_is_past", lambda _: True)
        assert not cgpu_native.is_costly(path)
    assert not cgpu_native.is_costly(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_kept_of_a_costly_ledger_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgpu_native.ledger, "_RESTS", {})
    before = _descriptors()
    for name in map(str, range(20)):
        cgpu_native.create_ledger(tmp_path, name)
        _found_costly(tmp_path / name)
        (tmp_path / name).unlink()
    assert _descriptors() == before + 1
    assert not cgpu_native.is_costly(tmp_path / "19")
    assert _descriptors() == before


def test_only_the_256_costly_ledgers_that_were_found_last_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgpu_native.ledger, "_RESTS", {})
    before = _descriptors()
    ledgers = [tmp_path / str(number) for number in range(260)]
    for path in ledgers:
        cgpu_native.create_ledger(tmp_path, path.name)
    for path in (*ledgers[:256], ledgers[0], *ledgers[256:]):
        _found_costly(path)
    assert _descriptors() == before + 256
    remembered = {path.name for path in ledgers if cgpu_native.is_costly(path)}
    assert remembered == {path.name for path in (ledgers[0], *ledgers[5:])}


def test_what_is_remembered_of_costly_ledgers_may_change_while_it_is_gone_through(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread finds another ledger costly meanwhile."""
    rests: dict[tuple[int, int], object] = {}
    monkeypatch.setattr(cgpu_native.ledger, "_RESTS", rests)
    _found_costly(path)

    def other_thread(_: object) -> bool:
        rests[0, len(rests)] = next(iter(rests.values()))
        return False

    monkeypatch.setattr(cgpu_native.ledger, "_is_past", other_thread)
    assert cgpu_native.is_costly(path)
    assert len(rests) > 1


def test_each_status_is_an_exception_of_its_own(path: Path) -> None:
    with AttachedLedger.attach(path) as ledger:
        with pytest.raises(cgpu_native.NativeError, match="does not fit under the cap") as caught:
            ledger.charge(0, CAP, CAP + 1)
        assert caught.value.status == lib.CGPU_EOVERCAP
        assert ledger.read_refused(0) == 1
        with pytest.raises(cgpu_native.NativeError, match="release 1 bytes on GPU 0"):
            ledger.release(0, 1)
    with pytest.raises(cgpu_native.NativeError):
        ledger.charge(0, CAP, 1)  # closed
    (path.parent / "other").write_bytes(b"no ledger")
    with pytest.raises(cgpu_native.FormatError):
        AttachedLedger.attach(path.parent / "other")
    with pytest.raises(FileNotFoundError):
        cgpu_native.Ledger.observe(path.parent / "missing")
    with pytest.raises(FileExistsError):
        cgpu_native.create_ledger(path.parent, "ledger")


def test_a_full_ledger_takes_no_more_processes(path: Path) -> None:
    ledgers = [AttachedLedger.attach(path) for _ in range(lib.CGPU_LEDGER_SLOTS)]
    with pytest.raises(cgpu_native.NativeError, match="no free process slot"):
        AttachedLedger.attach(path)
    for ledger in ledgers:
        ledger.close()


def test_an_unwritable_directory_gives_the_system_error() -> None:
    with pytest.raises(OSError, match="proc") as caught:
        cgpu_native.create_ledger("/proc", "ledger-in-proc")
    assert caught.value.errno in (errno.ENOENT, errno.EACCES, errno.EROFS)


def test_a_full_disk_refuses_the_ledger_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import cgpu_native, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    cgpu_native.create_ledger(sys.argv[1], 'ledger')\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], env=environment, capture_output=True, check=True
    )
    assert int(done.stdout) == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def _ledger_calls(path: Path) -> None:
    out = ffi.new("struct cgpu_ledger **")
    number, count = ffi.new("uint64_t *"), ffi.new("size_t *")
    found, survey = ffi.new("struct cgpu_process[4]"), ffi.new("struct cgpu_survey *")
    name = os.fsencode(path)
    for attach in (
        lambda: lib.cgpu_ledger_attach(name, 1, out),
        lambda: lib.cgpu_ledger_observe(name, out),
    ):
        attach()
        lib.cgpu_ledger_charge(out[0], 0, CAP, 10, number)
        lib.cgpu_ledger_charge(out[0], 0, CAP, CAP, number)
        lib.cgpu_ledger_release(out[0], 0, 1)
        lib.cgpu_ledger_used(out[0], 0)
        lib.cgpu_ledger_own(out[0], 0)
        lib.cgpu_ledger_refused(out[0], 0)
        lib.cgpu_ledger_total(out[0], 0)
        lib.cgpu_ledger_processes(out[0], lib.CGPU_MAX_GPUS, found, 4, count)
        lib.cgpu_ledger_survey(out[0], survey)
        lib.cgpu_ledger_rest(out[0], lib.cgpu_ledger_rests(out[0]))
        os.close(lib.cgpu_ledger_reopen(out[0]))
        lib.cgpu_ledger_detach(out[0])


def _failing_calls(path: Path) -> None:
    out = ffi.new("struct cgpu_ledger **")
    directory = os.open(path.parent, os.O_PATH)
    assert lib.cgpu_ledger_create(directory, b"ledger") == lib.CGPU_EIO
    os.close(directory)
    for name in (b"/nonexistent", b"/dev/null", b"/proc/self/maps"):
        assert lib.cgpu_ledger_attach(name, 1, out) != 0
        assert lib.cgpu_ledger_observe(name, out) != 0


def _creation(path: Path) -> None:
    directory = os.open(path.parent, os.O_PATH)
    assert lib.cgpu_ledger_create(directory, b"another") == 0
    os.unlink("another", dir_fd=directory)
    os.close(directory)


def _holdings_calls(_: Path) -> None:
    out = ffi.new("struct cgpu_holdings **")
    entry, copy = ffi.new("struct cgpu_holding *"), ffi.new("struct cgpu_holding *")
    lib.cgpu_holdings_create(out)
    for handle in range(1000):
        entry.handle, entry.owner, entry.kind = handle, handle % 2 + 1, 1
        assert lib.cgpu_holdings_insert(out[0], entry) == 0
    lib.cgpu_holdings_find(out[0], 1, 5, copy)
    lib.cgpu_holdings_update(out[0], entry)
    lib.cgpu_holdings_take(out[0], 1, 5, copy)
    lib.cgpu_holdings_take_owned(out[0], 2, copy)
    assert lib.cgpu_holdings_count(out[0]) == 998
    assert lib.cgpu_holdings_list(out[0], 1, copy, 1) == 998
    lib.cgpu_holdings_destroy(out[0])


def _arbitration_calls(path: Path) -> None:
    out, key = ffi.new("struct cgpu_arbitration **"), ffi.new("uint32_t *")
    figures = ffi.new("struct cgpu_arbitration_figures *")
    limits = path.with_name("limits")
    gpu = cgpu_native.LimitsGpu("GPU-00000000-0000-0000-0000-000000000001", 0, CAP, CAP)
    limits.write_bytes(cgpu_native.pack_limits("some", [gpu]))
    assert lib.cgpu_arbitration_start(lib.CGPU_POLICY_SOFT, 4, 80, out) == 0
    names = os.fsencode(limits), os.fsencode(path)
    assert lib.cgpu_arbitration_add(out[0], *names, 0, 1, 0, key) == 0
    lib.cgpu_arbitration_begin(out[0])
    assert lib.cgpu_arbitration_add(out[0], *names, 1, 1, 0, key) == lib.CGPU_EINVAL
    assert lib.cgpu_arbitration_set_tenant(out[0], key[0], 2, 1) == 0
    assert lib.cgpu_arbitration_set_rules(out[0], lib.CGPU_POLICY_FIXED, 4, 80) == 0
    lib.cgpu_arbitration_read(out[0], figures)
    assert lib.cgpu_arbitration_remove(out[0], key[0]) == 0
    assert lib.cgpu_arbitration_add(out[0], *names, 0, 1, 0, key) == 0
    other = ffi.new("struct cgpu_arbitration **")
    assert lib.cgpu_arbitration_start(lib.CGPU_POLICY_FAIR_SHARE, 4, 80, other) == 0
    assert lib.cgpu_arbitration_join([out[0], other[0]], 2) == 0
    lib.cgpu_arbitration_stop(out[0])
    lib.cgpu_arbitration_stop(other[0])


def _policy_calls(_: Path) -> None:
    claims = ffi.new("struct cgpu_claim[2]", [{"weight": 1}, {"weight": 2}])
    for policy in range(lib.CGPU_POLICIES):
        assert ffi.string(lib.cgpu_policy_name(policy))
        assert lib.cgpu_policy_entitle(policy, claims, 2, 4) == 0
    assert lib.cgpu_policy_entitle(lib.CGPU_POLICIES, claims, 2, 4) == lib.CGPU_EINVAL


def _system_calls(path: Path) -> None:
    nowhere = os.fsencode(path / "nowhere")
    assert lib.cgpu_system_mount(b"none", nowhere, b"tmpfs", 0, b"") == lib.CGPU_EIO
    assert lib.cgpu_system_unmount(nowhere, 0) == lib.CGPU_EIO
    assert lib.cgpu_system_unshare(0) == 0


LOOPS: list[Callable[[Path], None]] = [
    *(_ledger_calls, _failing_calls, _creation),
    *(_holdings_calls, _arbitration_calls, _policy_calls, _system_calls),
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_calls_in_a_loop_leak_neither_memory_nor_descriptors(
    loop: Callable[[Path], None], path: Path
) -> None:
    process = psutil.Process()
    for _ in range(50):
        loop(path)
    memory, descriptors = process.memory_info().rss, process.num_fds()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(400):
        loop(path)
    assert process.num_fds() <= descriptors  # what earlier tests left may be closed meanwhile
    assert abs(len(Path("/proc/self/maps").read_text().splitlines()) - maps) < 20
    assert process.memory_info().rss - memory < 1 << 20


def test_every_public_function_is_in_the_leak_test() -> None:
    used = set(re.findall(r"lib\.(cgpu_\w+)\(", Path(__file__).read_text(encoding="utf-8")))
    public: set[str] = set()
    for header in cgpu_native.build.HEADERS:
        declared = cgpu_native.build.read_declarations(cgpu_native.build.NATIVE / header)
        public |= set(re.findall(r"\b(cgpu_\w+)\(", declared))
    assert public == used | {"cgpu_system_adopt_orphans"}  # which would change this process


def test_a_header_without_markers_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.h").write_text("int f(void);")
    with pytest.raises(ValueError, match="no part between"):
        cgpu_native.build.read_declarations(tmp_path / "x.h")


def test_the_module_needs_the_c_library_only_and_has_no_runpath() -> None:
    image = ELFFile(io.BytesIO(Path(_native.__file__).read_bytes()))
    tags = [(tag.entry.d_tag, tag) for tag in image.get_section_by_name(".dynamic").iter_tags()]
    assert not [name for name, _ in tags if name in ("DT_RUNPATH", "DT_RPATH")]
    needed = {tag.needed for name, tag in tags if name == "DT_NEEDED"}
    assert needed <= {"libc.so.6", "libpthread.so.0"}
    assert _native.__file__.endswith(".abi3.so")


def test_it_is_imported_without_site_packages_set_up() -> None:
    """The hook runs Python isolated, with a search path of its own."""
    native = str(cgpu_native.build.NATIVE)
    root = str(cgpu_native.build.NATIVE.parent)
    packages = str(Path(psutil.__file__).parent.parent)
    program = (
        f"import sys; sys.path[:0] = {[root, native, packages]}; import cgpu_native\n"
        "assert 'typing' not in sys.modules"  # 10 ms on the start path
    )
    subprocess.run([sys.executable, "-I", "-S", "-E", "-c", program], check=True)
