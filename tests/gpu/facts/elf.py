"""What a driver library exports and what it calls through its own procedure linkage table."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from gpu.check import NotRunError

_JUMP_SLOTS = {"EM_X86_64": (6, 7), "EM_AARCH64": (1025, 1026)}  # with GLOB_DAT


def path_of(library: ctypes.CDLL, symbol: str) -> Path:
    """The file from which ``symbol`` of a loaded library comes."""

    class Info(ctypes.Structure):
        _fields_ = (
            ("path", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    info = Info()
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
    if ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) == 0 or not info.path:
        raise NotRunError(f"the file of {symbol} is not to be found")
    return Path(info.path.decode()).resolve()


def _elf(file: Any) -> Any:
    try:
        from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - may be missing
    except ImportError:
        raise NotRunError("no pyelftools") from None
    return ELFFile(file)


def exported(library: Path) -> set[str]:
    """Names of the functions that ``library`` defines for others."""
    try:
        from lab.driver import symbols  # noqa: PLC0415 - pyelftools may be missing
    except ImportError:
        raise NotRunError("no pyelftools") from None
    return symbols.exported(library)


def own_calls(library: Path) -> set[str]:
    """Exports of ``library`` that it reaches itself by a relocation another library can answer."""
    own = exported(library)
    found: set[str] = set()
    with library.open("rb") as file:
        elf = _elf(file)
        symbols = elf.get_section_by_name(".dynsym")
        kinds = _JUMP_SLOTS.get(elf["e_machine"])
        if kinds is None:
            raise NotRunError(f"relocations of {elf['e_machine']} are not known here")
        for name in (".rela.plt", ".rela.dyn"):
            section = elf.get_section_by_name(name)
            if section is not None:
                for entry in section.iter_relocations():
                    if entry["r_info_type"] in kinds:
                        found.add(symbols.get_symbol(entry["r_info_sym"]).name)
    return found & own
