"""The cache of glibc's loader, ``/etc/ld.so.cache``, in both of its formats.

It comes from an image, so only the paths in it are used, and an offset outside the file is ignored.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_OLD, _NEW = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_OLD_HEAD, _NEW_HEAD = struct.Struct("<12sI"), struct.Struct("<20sII20x")
_OLD_ENTRY, _NEW_ENTRY = struct.Struct("<III"), struct.Struct("<III12x")  # flags, key, value
_LONGEST = 4096


def find_by_stems(data: bytes, stems: tuple[str, ...]) -> list[str]:
    """Return the files that the loader finds under names that begin with one of ``stems``."""
    keys = {at for stem in stems for at in _find_occurrences(data, stem.encode())}
    if not keys:
        return []
    found = {
        value: None
        for base, entries in _read_tables(data)
        for _, key, value in entries
        if key + base in keys
        for value in [value + base]
    }
    return list(dict.fromkeys(filter(None, (_read_path(data, at) for at in found))))


def find_by_names(data: bytes, names: set[str]) -> list[str]:
    """Return the files that the loader finds under exactly these names, in one pass."""
    wanted = {os.fsencode(name) for name in names}
    if not any(name in data for name in wanted):
        return []
    longest = max(map(len, wanted)) + 1
    found = {
        value + base: None
        for base, entries in _read_tables(data)
        for _, key, value in entries
        if data[key + base : key + base + longest].partition(b"\0")[0] in wanted
    }
    return list(dict.fromkeys(filter(None, (_read_path(data, at) for at in found))))


def _find_occurrences(data: bytes, text: bytes) -> Iterator[int]:
    at = data.find(text)
    while at >= 0:
        yield at
        at = data.find(text, at + 1)


def _read_tables(data: bytes) -> Iterator[tuple[int, Iterator[tuple[int, int, int]]]]:
    """Yield each table: the base of its string offsets, and its entries.

    The old format, which older loaders read, may precede the new one; then both tables are yielded.
    """
    if data.startswith(_OLD) and len(data) >= _OLD_HEAD.size:
        count = _OLD_HEAD.unpack_from(data)[1]
        end = _OLD_HEAD.size + count * _OLD_ENTRY.size
        if end <= len(data):
            yield end, _OLD_ENTRY.iter_unpack(data[_OLD_HEAD.size : end])
    start = data.find(_NEW)
    if start >= 0 and start + _NEW_HEAD.size <= len(data):
        count = _NEW_HEAD.unpack_from(data, start)[1]
        first = start + _NEW_HEAD.size
        end = first + count * _NEW_ENTRY.size
        if end <= len(data):
            yield start, _NEW_ENTRY.iter_unpack(data[first:end])


def _read_path(data: bytes, at: int) -> str:
    """Return the absolute path that begins at ``at``; empty if there is none."""
    end = data.find(b"\0", at, at + _LONGEST)
    return os.fsdecode(data[at:end]) if end > at and data[at : at + 1] == b"/" else ""
