"""The lock that lets one server at a time serve a state directory, and the socket it listens on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_node import client, server

if TYPE_CHECKING:
    from typing_extensions import Self

_PATIENCE = 5.0  # seconds for a server that is about to listen, or about to end
_POLL_SECONDS = 0.05
_BACKLOG = 64


class ServerLock:
    """Held by the one server of ``state_dir``; clients connect to ``listener``."""

    def __init__(self, state_dir: str, lock: int, listener: socket.socket) -> None:
        self.listener = listener
        self._lock = lock
        self._path = f"{state_dir}/{server.LOCK}"
        self._socket = f"{state_dir}/{server.SOCKET}"

    @classmethod
    def acquire(cls, state_dir: str, *, replace: bool = False) -> Self | None:
        """Take the lock; None where another server has it.

        Args:
            state_dir: the state directory, which exists.
            replace: ask the other server to end.

        Raises:
            CgpuError: the other server does not answer, or files cannot be made.
        """
        deadline = time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < deadline:
                lock = _locked(f"{state_dir}/{server.LOCK}")
                if lock is not None:
                    return cls(state_dir, lock, _listen(state_dir))
                if server.is_listening(state_dir):
                    if not replace:
                        return None
                    with contextlib.suppress(CgpuError):  # it may be ending already
                        client.ask(state_dir, {"request": "stop"})
                time.sleep(_POLL_SECONDS)
        except OSError as error:
            raise CgpuError(f"state directory {state_dir}: {error.strerror}") from None
        raise CgpuError(
            f"another cgpud holds {state_dir}/{server.LOCK} and does not answer",
            hint="its process id is in that file",
        )

    def is_held(self) -> bool:
        """Whether the state directory is still there, with our lock in it."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._lock))
        except OSError:
            return False

    def release(self) -> None:
        """Let another server take over; under the registry's lock, nobody is admitted meanwhile."""
        self.listener.close()
        if self.is_held():
            with contextlib.suppress(OSError):
                os.unlink(self._socket)
        os.close(self._lock)


def _locked(path: str) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _listen(state_dir: str) -> socket.socket:
    """The socket; all users may connect to root's.

    We hold the lock, so a socket that is there is a killed server's.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{state_dir}/{server.SOCKET}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    if os.geteuid() == 0:
        os.chmod(state_dir, 0o711)  # noqa: S103 (all may reach the socket and their own session)
    try:
        umask = os.umask(0o111 if os.geteuid() == 0 else 0o177)
        listener.bind(server.address(folder))
        os.umask(umask)
    finally:
        os.close(folder)
    listener.listen(_BACKLOG)
    listener.settimeout(0)
    return listener
