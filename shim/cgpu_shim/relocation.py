"""Give a copy of a proxy another base directory than ``/dev/cgpu``.

A proxy contains its base directory twice: in the DT_NEEDED entry of the real library, and where it
looks for limits and ledger. Both are compiled in with room to spare, as ``/dev/cgpu/././.`` and so
on. So another directory can be written over them, and nothing moves in the file.
"""

from __future__ import annotations

from os import fsencode

PADDED = b"/dev/cgpu" + b"/." * 100


def relocate(data: bytes, base: str) -> bytes:
    """Return the proxy ``data`` with ``base`` as its base directory.

    Raises:
        ValueError: ``base`` is not absolute or too long, or ``data`` is no proxy.
    """
    directory = fsencode(base).rstrip(b"/")
    if not directory.startswith(b"/") or b"\0" in directory:
        raise ValueError(f"base directory {base!r}: expected an absolute path")
    if len(directory) > len(PADDED):
        raise ValueError(f"base directory {base}: longer than {len(PADDED)} bytes")
    copy = bytearray(data)
    at = copy.find(PADDED)
    if at < 0:
        raise ValueError("no base directory to replace: not a proxy of cgpu")
    while at >= 0:
        end = copy.index(0, at)
        string = directory + copy[at + len(PADDED) : end]
        copy[at:end] = string.ljust(end - at, b"\0")
        at = copy.find(PADDED, end)
    return bytes(copy)
