"""The SONAME of a shared library: the name by which programs ask for it, whatever its file's name.

The file comes from an image, so an offset outside it is ignored, and little of it is read.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes]  # from where, and how many bytes at most

_IDENT = b"\x7fELF\x02\x01"  # 64-bit, little-endian, as is every driver that cgpu covers
_HEAD = struct.Struct("<32xQ14xHH4x")  # where the segments' table is, an entry's size, how many
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")  # type, offset, address, bytes in the file
_ENTRY = struct.Struct("<QQ")  # of the dynamic segment: tag, value
_LOAD, _DYNAMIC = 1, 2
_NULL, _STRTAB, _SONAME = 0, 5, 14
_MOST_SEGMENTS, _MOST_DYNAMIC, _LONGEST = 128, 1 << 16, 256


def read_soname(read: Read) -> str:
    """Return the SONAME of a file; empty if it is no library, or has none."""
    head = read(0, _HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_IDENT):
        return ""
    start, size, count = _HEAD.unpack(head)
    if size != _SEGMENT.size or count > _MOST_SEGMENTS:  # a linker makes about a dozen
        return ""
    table = read(start, count * size)
    segments = list(_SEGMENT.iter_unpack(table[: len(table) // size * size]))
    # The last one counts, as in glibc's loader.
    dynamic = next((each for each in reversed(segments) if each[0] == _DYNAMIC), None)
    if dynamic is None:
        return ""
    tags = _parse_tags(read(dynamic[1], min(dynamic[3], _MOST_DYNAMIC)))
    if _SONAME not in tags or _STRTAB not in tags:
        return ""
    address = tags[_STRTAB] + tags[_SONAME]
    for kind, offset, begins, length in segments:
        if kind == _LOAD and begins <= address < begins + length:
            return os.fsdecode(read(offset + address - begins, _LONGEST).partition(b"\0")[0])
    return ""


def _parse_tags(table: bytes) -> dict[int, int]:
    found = {}
    for tag, value in _ENTRY.iter_unpack(table[: len(table) // _ENTRY.size * _ENTRY.size]):
        if tag == _NULL:
            break
        found[tag] = value
    return found
