"""Symbol tables of shared libraries, read with pyelftools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection


def exported(library: Path) -> set[str]:
    """Names of the functions that programs find in ``library``."""
    with library.open("rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".dynsym")
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_value"] != 0
            and symbol["st_info"]["type"] == "STT_FUNC"
            and symbol["st_other"]["visibility"] in {"STV_DEFAULT", "STV_PROTECTED"}
        }


def dynamic(library: Path, tag: str) -> list[str]:
    """Strings of the dynamic entries ``tag`` (``DT_NEEDED``, ``DT_RUNPATH``, ...)."""
    attribute = tag.removeprefix("DT_").lower()
    with library.open("rb") as file:
        sections = [s for s in ELFFile(file).iter_sections() if isinstance(s, DynamicSection)]
        return [
            str(getattr(entry, attribute, ""))
            for section in sections
            for entry in section.iter_tags(tag)
        ]


def versions_needed(library: Path) -> set[str]:
    """Symbol versions that ``library`` needs of others, such as ``GLIBC_2.2.5``."""
    with library.open("rb") as file:
        sections = [s for s in ELFFile(file).iter_sections() if isinstance(s, GNUVerNeedSection)]
        needed: list[Any] = [
            aux for s in sections for _, auxes in s.iter_versions() for aux in auxes
        ]
        return {aux.name for aux in needed}


def machine(library: Path) -> str:
    """The processor that ``library`` is for, such as ``x64`` or ``AArch64``."""
    with library.open("rb") as file:
        return str(ELFFile(file).get_machine_arch())
