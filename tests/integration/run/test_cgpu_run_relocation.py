"""The built proxies, relocated: the loader reads the new base directory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from cgpu_shim import library
from cgpu_shim.relocation import relocate

pytestmark = pytest.mark.integration

SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


def dynamic_strings(data: bytes) -> dict[str, list[str]]:
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    found: dict[str, list[str]] = {}
    for tag in section.iter_tags():
        for name in ("needed", "soname", "rpath", "runpath"):
            if hasattr(tag, name):
                found.setdefault(name, []).append(getattr(tag, name))
    return found


def symbols(data: bytes) -> list[tuple[str, int]]:
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".dynsym")
    return [(symbol.name, symbol["st_value"]) for symbol in table.iter_symbols()]


@pytest.mark.parametrize("soname", SONAMES)
def test_dt_needed_names_the_real_library_in_the_new_base(soname: str) -> None:
    built = Path(library(soname)).read_bytes()
    before = dynamic_strings(built)
    after = dynamic_strings(relocate(built, "/run/user/1000/cgpu"))
    assert after["needed"][0] == f"/run/user/1000/cgpu/real/{soname}"
    assert after["needed"][1:] == before["needed"][1:]
    assert after["soname"] == [soname]
    assert set(after) == {"needed", "soname"}


@pytest.mark.parametrize("soname", SONAMES)
def test_no_symbol_changes(soname: str) -> None:
    built = Path(library(soname)).read_bytes()
    assert symbols(relocate(built, "/run/user/1000/cgpu")) == symbols(built)


@pytest.mark.parametrize("soname", SONAMES)
def test_nothing_of_the_old_base_is_left(soname: str) -> None:
    moved = relocate(Path(library(soname)).read_bytes(), "/run/user/1000/cgpu")
    assert b"/dev/cgpu" not in moved
