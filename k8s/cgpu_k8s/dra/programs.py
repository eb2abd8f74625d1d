"""The files of a folder with all that a claim's hook needs: programs, libraries, and this Python.

Whoever installs the folder runs in cgpu's image, and the folder has the image's Python and C
library. So a node needs neither, and what it has of them does not matter: ``bin/python3`` is
``cgpu-python``, which starts ``lib/python`` by the loader ``lib/cgpu-loader``. The folder may be
anywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_env.version import VERSION
from cgpu_node import code_bundle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOADER = "lib/cgpu-loader"
PACKAGES = ("cgpu_env", "cgpu_native", "cgpu_node", "cgpu_shim", "cgpu_hook", "cgpu_server")
# What these import beside the standard library; a Python from 3.11 on needs no tomli.
OTHERS = ("_cffi_backend", "mfusepy", "prometheus_client", "tomli")
# Of the standard library, what neither hook nor server imports: two thirds of its size.
_LEFT_OUT = re.compile(
    r"(config-.*|.*-packages|test|tests|idlelib|tkinter|turtle.*|ensurepip|venv|lib2to3|pydoc.*"
    r"|distutils|unittest|sqlite3|dbm|curses|wsgiref|xmlrpc|email/test|__phello__.*|__pycache__"
    r"|(_test|_xx|xx|_ctypes_test|_tkinter|_sqlite3|_curses|_dbm|_gdbm|readline|_ssl|_hashlib|nis"
    r"|ossaudiodev|_codecs_(cn|hk|jp|kr|tw|iso2022)|_lzma|_bz2|_zstd).*\.so)"
)
# Of the C library: the driver's libraries name these, also where libc.so.6 has all that they had.
_OF_LIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
_LOADER = re.compile(r"/\S*/ld-linux\S*\.so\.\d+")
_LISTED = re.compile(r"^\s*([^\s/]+) => (/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_ID_DIGITS = 12


class ProgramFiles(NamedTuple):
    """The content of a folder.

    Attributes:
        name: of the folder: the release, and what tells it from any other content.
        files: the source of each file, by path in the folder.
    """

    name: str
    files: dict[str, Path]


def collect_programs() -> ProgramFiles:
    """Return the files, from where this process has them, and the folder's name.

    Raises:
        CgpuError: this Python is not linked to glibc, or a package is missing.
        OSError: a file cannot be read.
    """
    loader = _find_loader()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    programs = Path(code_bundle.find_programs_folder())
    files = {
        "bin/python3": programs / "cgpu-python",
        "lib/python": Path("/proc/self/exe").readlink(),
        LOADER: loader,
    }
    standard = Path(sysconfig.get_path("stdlib"))
    files |= {f"lib/{version}/{name}": standard / name for name in _walk(standard, _LEFT_OUT)}
    for name in (*PACKAGES, *OTHERS):
        files |= {f"lib/{version}/site-packages/{part}": path for part, path in _find_package(name)}
    native = [path for path in files.values() if ".so" in path.name and path != loader]
    files |= {f"lib/{name}": path for name, path in _find_libraries(loader, files, native)}
    return ProgramFiles(f"{VERSION}-{_hash_files(files)}", files)


def _find_loader() -> Path:
    """Return the loader that has started this Python."""
    found = _LOADER.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
    if found is None:
        raise CgpuError("cgpu's programs cannot be copied: their image's Python has no glibc")
    return Path(found[0])


def _walk(folder: Path, left_out: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield the paths in ``folder`` of what is imported, loaded or started."""
    for where, folders, names in os.walk(folder):
        part = "" if where == str(folder) else f"{os.path.relpath(where, folder)}/"
        folders[:] = [each for each in folders if not (left_out or _CACHE).fullmatch(each)]
        for name in names:
            is_code = name.endswith((".py", ".so", "LICENSE.txt")) or ".so." in name
            if (is_code or part.startswith("_bin/")) and not (left_out or _CACHE).fullmatch(name):
                yield f"{part}{name}"


_CACHE = re.compile("__pycache__")


def _find_package(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the path in ``site-packages`` and the source of each file of a package or module."""
    for folder in map(Path, code_bundle.import_path()):
        package = folder / name
        if (package / "__init__.py").exists():
            yield from ((f"{name}/{part}", package / part) for part in _walk(package))
            return
        for module in (*folder.glob(f"{name}.py"), *folder.glob(f"{name}.*.so")):
            yield module.name, module
            return
    if name in PACKAGES:
        raise CgpuError(f"cgpu is not complete: {name} is missing")


def _find_libraries(
    loader: Path, files: dict[str, Path], native: Iterable[Path]
) -> Iterator[tuple[str, Path]]:
    """Yield the SONAME and the file of each library that Python and its modules need."""
    found: dict[str, Path] = {}
    for path in (files["lib/python"], *native):
        if path.parent.name not in ("_bin", "_lib"):  # which are static, and for containers
            command = [str(loader), "--list", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found |= {each[1]: Path(each[2]) for each in _LISTED.finditer(done.stdout)}
    beside = found["libc.so.6"].parent
    yield from found.items()
    for name in _OF_LIBC:
        if name not in found and (beside / name).exists():
            yield name, beside / name


def _hash_files(files: dict[str, Path]) -> str:
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return whole.hexdigest()[:_ID_DIGITS]
