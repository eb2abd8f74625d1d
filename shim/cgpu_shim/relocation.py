"""Give a copy of a proxy another base directory than ``/dev/cgpu``.

A proxy names its base directory in two places, the DT_NEEDED entry of the real library and the
place of limits and ledger. Both are compiled in with room to spare, ``/dev/cgpu/././.`` and so on,
so that another directory can be written over them without moving anything in the file.
"""

from __future__ import annotations

PADDED = b"/dev/cgpu" + b"/." * 100


def relocate(data: bytes, base: str) -> bytes:
    """The proxy ``data`` with ``base`` as its base directory.

    Raises:
        ValueError: ``base`` is not absolute or too long, or ``data`` is no proxy.
    """
    directory = base.encode().rstrip(b"/")
    if not directory.startswith(b"/") or b"\0" in directory:
        raise ValueError(f"base directory {base!r}: expected an absolute path")
    if len(directory) > len(PADDED):
        raise ValueError(f"base directory {base}: longer than {len(PADDED)} bytes")
    head, *others = data.split(PADDED)
    if not others:
        raise ValueError("no base directory to replace: not a proxy of cgpu")
    return head + b"".join(_replaced(other, directory) for other in others)


def _replaced(other: bytes, directory: bytes) -> bytes:
    """``directory`` and the rest of its string, then zeros, then what follows the string."""
    rest, _, behind = other.partition(b"\0")
    room = len(PADDED) - len(directory)
    return directory + rest + b"\0" * room + b"\0" + behind
