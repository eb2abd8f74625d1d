"""Changes limits in place, while processes have them mapped."""

from __future__ import annotations

import os

from cgpu_native._native import ffi
from cgpu_native.files import open_file
from cgpu_native.limits import HEAD_SIZE, check_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

_PAGE, _GPU = "struct cgpu_limits", "struct cgpu_limits_gpu"


def set_bytes(path: Path | str, gpu: int, name: str, value: int) -> None:
    """Change an 8-byte field of one GPU in the limits at ``path``.

    Args:
        path: the limits.
        gpu: the GPU's number in them.
        name: the field: ``cap_bytes`` or ``outside_bytes``.
        value: the new value, in bytes.

    Raises:
        OSError: the file cannot be written; ``BlockingIOError`` if a process holds a lease on it.
        FormatError: it is of another release; nothing was changed.
        OverflowError: the value does not fit.
    """
    import mmap  # noqa: PLC0415 (not on the start path)

    start = ffi.offsetof(_PAGE, "gpus", gpu) + ffi.offsetof(_GPU, name)
    fd = open_file(path, os.O_RDWR)
    try:
        check_version(os.pread(fd, HEAD_SIZE, 0))
        page = mmap.mmap(fd, ffi.sizeof(_PAGE))
    finally:
        os.close(fd)
    # One store of 8 bytes. write(2) does not promise that to processes that have the page mapped.
    with page, ffi.from_buffer(page, require_writable=True) as bytes_:
        ffi.cast("uint64_t *", bytes_ + start)[0] = value


def amend_limits(
    path: Path | str,
    own: dict[str, int] | None = None,
    gpus: dict[int, dict[str, int]] | None = None,
) -> None:
    """Overwrite 4-byte fields of the limits at ``path``, each of them in one store.

    Args:
        path: the limits.
        own: fields of ``struct cgpu_limits``, by name.
        gpus: fields of ``struct cgpu_limits_gpu``, by the GPU's number.

    Raises:
        OSError: the file cannot be written; ``BlockingIOError`` if a process holds a lease on it.
        FormatError: it is of another release; nothing was changed.
        OverflowError: a value does not fit.
    """
    fields = [(ffi.offsetof(_PAGE, name), value) for name, value in (own or {}).items()]
    for gpu, changes in (gpus or {}).items():
        start = ffi.offsetof(_PAGE, "gpus", gpu)
        fields += [(start + ffi.offsetof(_GPU, name), v) for name, v in changes.items()]
    fd = open_file(path, os.O_RDWR)
    try:
        check_version(os.pread(fd, HEAD_SIZE, 0))
        for offset, value in fields:
            os.pwrite(fd, bytes(ffi.buffer(ffi.new("uint32_t *", value))), offset)
    finally:
        os.close(fd)
