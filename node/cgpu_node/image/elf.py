"""The SONAME of a shared library: the name by which others need it, whatever its file is called.

The file comes from an image, so an offset outside of it is as good as none.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_IDENT = b"\x7fELF\x02\x01"  # 64 bits, little-endian: all that has a driver of ours
_HEAD = struct.Struct("<32xQ14xHH")  # where the segments' table is, an entry's size, how many
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")  # type, offset, address, bytes in the file
_ENTRY = struct.Struct("<QQ")  # of the dynamic segment: tag, value
_LOAD, _DYNAMIC = 1, 2
_NULL, _STRTAB, _SONAME = 0, 5, 14
_LONGEST = 256


def soname(data: bytes) -> str:
    """The SONAME in a file; empty if it is no library with one."""
    segments = list(_segments(data))
    for kind, start, _, size in segments:
        if kind == _DYNAMIC:
            tags = dict(_dynamic(data[start : start + size]))
            if _SONAME in tags and _STRTAB in tags:
                return _string(data, segments, tags[_STRTAB] + tags[_SONAME])
    return ""


def _segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    if not data.startswith(_IDENT) or len(data) < _HEAD.size:
        return
    table, size, count = _HEAD.unpack_from(data)
    for number in range(count):
        at = table + number * size
        if at + _SEGMENT.size <= len(data):
            yield _SEGMENT.unpack_from(data, at)


def _dynamic(table: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in _ENTRY.iter_unpack(table[: len(table) // _ENTRY.size * _ENTRY.size]):
        if tag == _NULL:
            return
        yield tag, value


def _string(data: bytes, segments: list[tuple[int, int, int, int]], address: int) -> str:
    for kind, start, begins, size in segments:
        if kind == _LOAD and begins <= address < begins + size:
            at = start + address - begins
            end = data.find(b"\0", at, at + _LONGEST)
            return os.fsdecode(data[at:end]) if end > at else ""
    return ""
