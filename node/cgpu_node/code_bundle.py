"""Finds our own code, and keeps the modules that a program's start loads in one file.

To find a module, Python searches one folder after another, and it reads a separate file for each: 3
ms for the 50 modules of a container's creation. So their code is kept in one file beside the
``.pyc`` files. Only a user who may write those may write this one, so it is trusted like them. A
module whose source has changed since then is imported in the usual way, and kept anew.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, ExtensionFileLoader, SourceFileLoader
from _imp import source_hash
from marshal import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType
    from typing import Any

    # Path, whether it is a package, time and size of the file, code (None for a library).
    Entry = tuple[str, bool, int, int, CodeType | None]
    MadeFor = tuple[bytes, list[str]]  # the form of the code, and the directories of modules

_PACKAGE = os.path.dirname(os.path.realpath(__file__))
_TREE_FOLDERS = (".", "native", "shim", "node", "hook", "server", "cli")
_OURS = "cgpu_"
_FUTURE = "__future__"  # which nearly every module of ours imports
_SUM_BYTES = 8  # of all that follows, at the beginning of the file


def import_path() -> list[str]:
    """Return the directories to import cgpu from: site-packages, or the parts of a source tree."""
    parent = os.path.dirname(_PACKAGE)
    if os.path.isdir(f"{parent}/cgpu_env"):
        return [parent]
    tree = os.path.dirname(parent)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = [os.path.normpath(f"{tree}/{folder}") for folder in _TREE_FOLDERS]
    return [*folders, f"{tree}/.venv/lib/{version}/site-packages"]  # for _cffi_backend


def find_programs_folder() -> str:
    """Return the folder of the programs that engines start."""
    parent = os.path.dirname(_PACKAGE)
    beside = os.path.isdir(f"{parent}/cgpu_env")
    return f"{parent if beside else os.path.dirname(parent) + '/hook'}/cgpu_hook/_bin"


def file_of(program: str) -> str:
    """Return the path of the file with the modules that ``program`` loads."""
    return f"{_PACKAGE}/__pycache__/{program}.{sys.implementation.cache_tag}.start"


class Finder:
    """Imports the modules that were kept for a program. Python asks it first of all finders."""

    def __init__(self, program: str) -> None:
        self._file = file_of(program)
        self._made_for = (MAGIC_NUMBER, sys.path[:])  # an installation may be moved or copied
        self._before = frozenset(sys.modules)
        self._modules = _read_entries(self._file, self._made_for)
        self._fresh: dict[str, Entry] = {}

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import the module; None if it was not kept, or its source has changed."""
        entry = self._modules.get(name)
        if entry is None or not _is_unchanged(entry):
            return None
        self._fresh[name] = entry
        path, is_package, _, _, code = entry
        loader: Any = ExtensionFileLoader(name, path) if code is None else self
        spec = ModuleSpec(name, loader, origin=path, is_package=is_package)
        spec.has_location = True
        spec.cached = self._file  # or Python would work out the path of a .pyc
        spec.loader_state = code
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(path)]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(module.__spec__.loader_state, module.__dict__)  # type: ignore[union-attr]  # noqa: S102

    def keep(self) -> None:
        """If this start loaded modules that the file lacks, write it anew, unless it is read-only.

        Raises:
            OSError: it cannot be written.
        """
        known = self._before | self._fresh.keys()
        names = [name for name in sys.modules if name not in known and _is_kept(name)]
        if names and os.access(os.path.dirname(self._file), os.W_OK):
            _replace_file(
                self._file,
                lambda: _add_checksum(dumps((self._made_for, self._merge_entries(names)))),
            )

    def _merge_entries(self, names: list[str]) -> dict[str, Entry]:
        """Return the entries that are kept already, and those of the modules ``names``."""
        return {**self._modules, **self._fresh, **{n: _make_entry(sys.modules[n]) for n in names}}


_finder: Finder | None = None


def install_finder(program: str) -> None:
    """From now on, import those modules of ``program`` that its file has from that file."""
    global _finder  # noqa: PLW0603 (one for each process, as sys.meta_path is)
    _finder = Finder(program)
    sys.meta_path.insert(0, _finder)


def keep_modules() -> None:
    """Keep what this start has loaded for the next start. Call this after the program's work."""
    try:
        if _finder is not None:
            _finder.keep()
    except Exception:  # noqa: BLE001 (the start has succeeded, and the next one tries again)
        return


def _add_checksum(content: bytes) -> bytes:
    """Return ``content`` behind its checksum.

    Without one, marshal would read damaged data, and Python would run it.
    """
    return source_hash(0, content) + content


def _read_entries(path: str, expected: MadeFor) -> dict[str, Entry]:
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data != _add_checksum(data[_SUM_BYTES:]):
            return {}
        made_for, modules = loads(data[_SUM_BYTES:])  # noqa: S302 (as Python does a .pyc)
    except (OSError, EOFError, ValueError, TypeError):
        return {}
    return modules if made_for == expected else {}


def _is_unchanged(entry: Entry) -> bool:
    try:
        facts = os.stat(entry[0])
    except OSError:
        return False
    return (facts.st_mtime_ns, facts.st_size) == entry[2:4]


def _is_kept(name: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)  # anything may stand there
    loader = getattr(spec, "loader", None)
    if name.startswith(_OURS) or name == _FUTURE:
        return isinstance(loader, SourceFileLoader | ExtensionFileLoader)
    return isinstance(loader, ExtensionFileLoader)


def _make_entry(module: ModuleType) -> Entry:
    """Return what is kept of a module: its code, because to compile it takes 5 ms."""
    spec = module.__spec__
    assert spec is not None  # noqa: S101 (_is_kept)
    assert spec.origin is not None  # noqa: S101 (likewise)
    facts = os.stat(spec.origin)  # first: if it changes now, the entry is out of date
    loader, code = spec.loader, None
    if isinstance(loader, SourceFileLoader):
        source = loader.get_data(spec.origin)  # docstrings are a seventh of what Python compiles
        code = compile(source, spec.origin, "exec", dont_inherit=True, optimize=2)
    is_package = spec.submodule_search_locations is not None
    return spec.origin, is_package, facts.st_mtime_ns, facts.st_size, code


def _replace_file(path: str, content: Callable[[], bytes]) -> None:
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(content())  # worked out only where it can be written
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
