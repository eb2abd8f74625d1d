"""Translation of C statuses to exceptions."""

from __future__ import annotations

import errno
import os

from cgpu_native._native import ffi, lib

LEASED = "a process holds a lease on it"


class NativeError(Exception):
    """A function of ``native/`` returned ``status``, an ``enum cgpu_status``."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class FormatError(NativeError):
    """A file is not ours, or is of another release."""


_SENTENCES = {
    lib.CGPU_EOVERCAP: "the request does not fit under the cap",
    lib.CGPU_EFULL: "no free process slot in the ledger",
    lib.CGPU_EFORMAT: "wrong magic, version or size: not written by this release",
    lib.CGPU_EINVAL: "an argument is out of range",
    lib.CGPU_ENOTFOUND: "no such entry",
}


def check_status(status: int, action: str) -> None:
    """Raise the exception for ``status``. ``action`` says what was tried, and on which file.

    Raises:
        OSError: for ``CGPU_EIO``, with the errno that the C function left.
        NativeError: for every other status but ``CGPU_OK``.
    """
    if status == lib.CGPU_OK:
        return
    if status == lib.CGPU_EIO:
        found = ffi.errno
        raise OSError(found, LEASED if found == errno.EAGAIN else os.strerror(found), action)
    kind = FormatError if status == lib.CGPU_EFORMAT else NativeError
    raise kind(status, f"{action}: {_SENTENCES.get(status, f'status {status}')}")
