"""Which tests count the lines of ours that they run, if ``tests/lines`` starts pytest.

It starts pytest in a mount namespace in which our Python notes its lines. Tests that measure time,
starve the machine, start engines or need the programs as they are built run outside it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

import cgpu_shim

OUTSIDE = "CGPU_LINES_OUTSIDE"  # a mount namespace where nothing is recorded
PROXIES = "CGPU_LINES_PROXIES"  # the folder of proxies that record theirs
_NOT = ("alone", "exact", "starves", "system")
_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000


class _Counting:
    """Whether this process, and what it starts, counts; it does at first."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        paths = (os.environ[OUTSIDE], "/proc/self/ns/mnt")
        self._namespaces = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        self._proxies = os.environ[PROXIES]
        self._is_on = True

    def set(self, *, on: bool) -> None:
        """Count from now on, or do not."""
        if on == self._is_on:
            return
        folder = Path.cwd()
        # Else other threads would have to come along, such as those that gRPC has not ended yet.
        self._check(self._libc.unshare(_CLONE_FS))
        self._check(self._libc.setns(self._namespaces[on], _CLONE_NEWNS))
        os.chdir(folder)  # it is the root of the namespace now
        if on:
            os.environ[PROXIES] = self._proxies
        else:
            del os.environ[PROXIES]
        self._is_on = on

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_COUNTING = pytest.StashKey[_Counting]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before anything is made for a test that is not counted, leave the namespace."""
    stash = item.config.stash
    if _COUNTING not in stash and PROXIES in os.environ:
        stash[_COUNTING] = _Counting()
    if _COUNTING in stash:
        stash[_COUNTING].set(on=not any(item.get_closest_marker(name) for name in _NOT))


def proxy(soname: str) -> Path:
    """The proxy that a test relocates and loads: one that counts, or the one that was built."""
    folder = os.environ.get(PROXIES)
    return Path(folder, soname) if folder else Path(cgpu_shim.library(soname))
