"""Locks between programs of one user, by files that no other user can open, and so none can lock.

Anybody can lock a folder, or a file that others can read.
"""

from __future__ import annotations

import os
from fcntl import LOCK_EX, LOCK_NB, flock
from time import monotonic, sleep

from cgpu_env.errors import CgpuError

_POLL_SECONDS = 0.002
_LONGEST_PID = 32
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def try_lock(path: str) -> int | None:
    """Take a lock until the returned descriptor is closed; None: another program has it.

    Raises:
        OSError: it cannot be made, or the holder's process id cannot be written to it.
    """
    fd = os.open(path, os.O_CREAT | _FLAGS, 0o600)
    try:
        flock(fd, LOCK_EX | LOCK_NB)
        _write_pid(fd)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_pid(fd: int) -> None:
    """Write the holder's process id: to read the kernel's list of locks may take any time."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


class LockFile:
    """Waits for a lock, up to a limit: ``with LockFile(path, "state directory ..."):``.

    It is a class because ``contextlib`` takes 2 ms to import.

    Args:
        path: the file, which is made if it is missing.
        subject: what is locked, as error messages begin.
        patience: the seconds to wait for a holder, which may be stopped or hang.
        create: whether the file may be made.
        temporary: whether the file is removed in the end.
    """

    def __init__(
        self,
        path: str,
        subject: str,
        *,
        patience: float,
        create: bool = True,
        temporary: bool = False,
    ) -> None:
        self._path, self._subject, self._patience = path, subject, patience
        self._flags = os.O_CREAT if create else 0
        self._temporary = temporary
        self._fd = -1

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            CgpuError: the lock cannot be made, or its holder keeps it for longer than ``patience``.
        """
        try:
            self._wait_for_lock()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise self.to_cgpu_error(error) from None
            raise

    def _wait_for_lock(self) -> None:
        deadline = monotonic() + self._patience
        while not self._try_take():
            if self._fd >= 0 and monotonic() > deadline:
                raise self._make_timeout_error()
            sleep(_POLL_SECONDS)

    def _try_take(self) -> bool:
        if self._fd < 0:
            self._fd = os.open(self._path, self._flags | _FLAGS, 0o600)
            os.fchmod(self._fd, 0o600)  # release 0.1 let others read some
        try:
            flock(self._fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        if self._temporary and not self._is_there():
            self._close()  # its last holder has removed it
            return False
        try:  # noqa: SIM105 (as the class says of contextlib)
            _write_pid(self._fd)
        except OSError:  # a full disk must not keep anybody from removing files
            pass
        return True

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _make_timeout_error(self) -> CgpuError:
        """Return the error after waiting for too long: who holds the lock, and what to do."""
        pid = os.pread(self._fd, _LONGEST_PID, 0).decode("ascii", "replace").strip()
        known = pid.isdecimal() and os.path.exists(f"/proc/{pid}")
        holder = f"process {pid}" if known else "another process"
        return CgpuError(
            f"{self._subject}: {holder} has held its lock for {self._patience:g} seconds",
            hint="wait, or let it go on if it was stopped; if it hangs, kill -9 it: nothing is"
            " lost",
        )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Give the lock back."""
        if self._temporary and self._is_there():
            os.unlink(self._path)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def to_cgpu_error(self, error: OSError) -> CgpuError:
        """Return an error for users from an error of the file system."""
        return CgpuError(f"{self._subject}: {error.strerror}")
