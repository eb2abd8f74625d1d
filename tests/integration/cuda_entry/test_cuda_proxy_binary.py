"""The built libcuda proxy as a file: what it exports, needs and imports."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile

import cgpu_shim
from lab.driver import entry_points, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.exact]

ROOT = entry_points.ROOT
BASE = "/dev/cgpu" + "/." * 100
LIBC = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}

# Nothing here allocates, prints, exits, installs a signal handler or changes the process's state.
IMPORTS = {
    "__errno_location", "__fxstat", "__register_atfork", "clock_gettime", "close", "dladdr",
    "dlopen", "dlsym", "fallocate", "fchmod", "fcntl", "fstat", "fstatfs", "ftruncate",
    "getpid", "madvise", "memchr", "memcmp", "memcpy", "memmove", "memset", "mmap", "mremap",
    "munmap", "nanosleep", "open", "openat", "poll", "pread", "pthread_mutex_lock",
    "pthread_mutex_unlock", "pwrite", "secure_getenv", "sigaddset", "sigemptyset", "sigismember",
    "sigpending", "sigprocmask", "sigtimedwait", "strcmp", "strlen", "strncmp", "strstr", "syscall",
    "unlinkat", "write",
    # The helper thread of processes that launch, and how it ends (monitor.c).
    "__cxa_atexit", "prctl", "pthread_attr_destroy", "pthread_attr_init",
    "pthread_attr_setstacksize", "pthread_create", "pthread_detach", "pthread_setaffinity_np",
    "pthread_setschedparam", "pthread_sigmask", "sched_getaffinity", "sigfillset",
    # The offset of a time namespace (host_clock.c), once, when the process attaches.
    "bcmp", "read", "readlink", "strtoll",
    # The library's own names (own_names.c), when it is loaded.
    "mprotect", "sysconf",
    # Not while a thread waits at the gate (launch_state.h).
    "pthread_setcancelstate",
}  # fmt: skip


def _cross_build(machine: str, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CGPU_BUILD_MACHINE", machine)
        patch.setattr(sys, "argv", ["setup.py", "--quiet", "--name"])
        setup = runpy.run_path(str(ROOT / "setup.py"))
    binary = next(b for b in setup["BINARIES"] if b.path == "shim/cgpu_shim/_lib/libcuda.so.1")
    target = folder / "libcuda.so.1"
    setup["build_binary"](binary, target)
    return target


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed proxy, and one built for the other architecture."""
    machine: str = request.param
    built = Path(cgpu_shim.library("libcuda.so.1"))
    with built.open("rb") as file:
        same = ELFFile(file).get_machine_arch() == {"x86_64": "x64", "aarch64": "AArch64"}[machine]
    return built if same else _cross_build(machine, tmp_path_factory.mktemp(machine))


@pytest.fixture
def elf(proxy: Path) -> Iterator[ELFFile]:
    with proxy.open("rb") as file:
        yield ELFFile(file)


def _dynamic(elf: ELFFile, tag: str) -> list[str]:
    names = {"DT_NEEDED": "needed", "DT_SONAME": "soname"}
    section = elf.get_section_by_name(".dynamic")
    return [
        getattr(entry, names[tag]) if tag in names else tag
        for entry in section.iter_tags()
        if entry.entry.d_tag == tag
    ]


def _imports(elf: ELFFile) -> dict[str, str]:
    """Undefined symbols and the version of the C library that they ask for."""
    table = elf.get_section_by_name(".dynsym")
    versions = elf.get_section_by_name(".gnu.version")
    needed = elf.get_section_by_name(".gnu.version_r")
    found = {}
    for index, symbol in enumerate(table.iter_symbols()):
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
            number = versions.get_symbol(index)["ndx"]
            version = needed.get_version(number)[1].name if isinstance(number, int) else ""
            found[symbol.name] = version
    return found


def test_it_exports_exactly_the_rows_of_hooks_def(proxy: Path) -> None:
    rows = set(entry_points.hooks("HOOK")) | set(entry_points.hooks("REJECT"))
    assert symbols.exported(proxy) == rows


def test_it_is_libcuda_and_needs_the_real_one_by_absolute_path(elf: ELFFile) -> None:
    assert _dynamic(elf, "DT_SONAME") == ["libcuda.so.1"]
    first, *others = _dynamic(elf, "DT_NEEDED")
    assert first == f"{BASE}/real/libcuda.so.1"
    assert set(others) <= LIBC


@pytest.mark.parametrize("tag", ["DT_RPATH", "DT_RUNPATH", "DT_TEXTREL"])
def test_it_carries_no_search_path_and_no_text_relocation(elf: ELFFile, tag: str) -> None:
    assert _dynamic(elf, tag) == []


def test_it_imports_only_what_a_hook_may_call(elf: ELFFile) -> None:
    """The shim never exits, aborts, prints by default, installs handlers or allocates in a hook."""
    weak = {"__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable"}
    weak |= {"_ITM_registerTMCloneTable"}
    assert set(_imports(elf)) - IMPORTS - weak == set()


def test_its_names_can_be_made_writable_and_are_apart_from_code(elf: ELFFile) -> None:
    """What own_names.c relies on: a table of all names, which is read-only and not executable."""
    assert _dynamic(elf, "DT_HASH") == ["DT_HASH"]
    at = elf.get_section_by_name(".dynsym")["sh_addr"]
    loads = [s for s in elf.iter_segments("PT_LOAD") if s["p_vaddr"] <= at]
    assert loads[-1]["p_flags"] == 4  # PF_R


def test_it_runs_on_glibc_2_17(elf: ELFFile) -> None:
    asked = {v for v in _imports(elf).values() if v}
    assert all(version.startswith("GLIBC_2.") for version in asked)
    assert max(int(v.split(".")[1]) for v in asked) <= 17


def test_its_thread_local_storage_fits_into_what_dlopen_has_to_spare(elf: ELFFile) -> None:
    sizes = [s["p_memsz"] for s in elf.iter_segments() if s["p_type"] == "PT_TLS"]
    assert sum(sizes) <= 64


def test_it_is_never_unloaded(elf: ELFFile) -> None:
    section = elf.get_section_by_name(".dynamic")
    flags = [e.entry.d_val for e in section.iter_tags() if e.entry.d_tag == "DT_FLAGS_1"]
    assert flags
    assert flags[0] & 0x8
