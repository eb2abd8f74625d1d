"""The exports of a shared library, and the symbol versions that it needs of other libraries."""

from __future__ import annotations

import re
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")


def list_exports(path: str) -> set[str]:
    """Return the names of the functions that the library at ``path`` exports."""
    with open(path, "rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".dynsym")
        return {
            symbol.name
            for symbol in (table.iter_symbols() if table else ())
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }


def glibc_needed(path: str) -> tuple[int, int]:
    """Return the oldest glibc with which the file can be loaded; 0.0 if it needs none."""
    with open(path, "rb") as file:
        sections = [s for s in ELFFile(file).iter_sections() if isinstance(s, GNUVerNeedSection)]
        names = [
            version.name for s in sections for _, more in s.iter_versions() for version in more
        ]
    found = [match for name in names if (match := _GLIBC.fullmatch(name))]
    return max(((int(m[1]), int(m[2])) for m in found), default=(0, 0))
