"""Another base directory is written into a proxy without moving anything in the file."""

from __future__ import annotations

import pytest

from cgpu_shim.relocation import PADDED, relocate

pytestmark = pytest.mark.unit

PROXY = b"\x7fELF\0\0" + PADDED + b"/real/libcuda.so.1\0libc.so.6\0" + PADDED + b"\0\x01\x02" * 9


def test_each_place_gets_the_base_and_the_rest_of_its_string() -> None:
    moved = relocate(PROXY, "/run/cgpu")
    assert len(moved) == len(PROXY)
    strings = [text for text in moved.split(b"\0") if text.startswith(b"/")]
    assert strings == [b"/run/cgpu/real/libcuda.so.1", b"/run/cgpu"]


def test_everything_else_stays_where_it_is() -> None:
    moved = relocate(PROXY, "/run/cgpu")
    for piece in (b"\x7fELF\0\0", b"libc.so.6\0", b"\0\x01\x02" * 9):
        assert moved.index(piece) == PROXY.index(piece)
    assert b"/dev/cgpu" not in moved


def test_a_trailing_slash_is_not_doubled() -> None:
    assert relocate(PROXY, "/run/cgpu/") == relocate(PROXY, "/run/cgpu")


def test_a_base_need_not_be_text() -> None:
    assert b"\0/run/\xff/real/libcuda.so.1\0" in relocate(PROXY, "/run/\udcff")


def test_the_longest_base_fits_exactly() -> None:
    base = "/" + "x" * (len(PADDED) - 1)
    assert f"{base}/real/libcuda.so.1\0libc.so.6\0".encode() in relocate(PROXY, base)
    with pytest.raises(ValueError, match="longer than 209 bytes"):
        relocate(PROXY, base + "x")


@pytest.mark.parametrize("base", ["", "run/cgpu", "/", "/run\0/cgpu"])
def test_a_base_that_is_no_absolute_directory_is_refused(base: str) -> None:
    with pytest.raises(ValueError, match="expected an absolute path"):
        relocate(PROXY, base)


def test_a_file_that_is_no_proxy_is_refused() -> None:
    with pytest.raises(ValueError, match="not a proxy"):
        relocate(b"\x7fELF/dev/cgpu/./real\0", "/run/cgpu")
