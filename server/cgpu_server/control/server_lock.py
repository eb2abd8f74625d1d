"""The lock by which one server at a time serves a state directory, and the server's sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_node import client, lockfile, server

if TYPE_CHECKING:
    from typing_extensions import Self

_PATIENCE = 5.0  # seconds for a server that is about to listen, or about to end
_POLL_SECONDS = 0.05


class ServerLock:
    """The lock of the only server of ``state_dir``. Clients connect to ``listeners``."""

    def __init__(self, state_dir: str, lock: int, listeners: list[socket.socket]) -> None:
        self.listeners = listeners
        self._lock, self._state_dir = lock, state_dir
        self._path = f"{state_dir}/{server.LOCK}"

    @classmethod
    def acquire(cls, state_dir: str, *, replace: bool = False) -> Self | None:
        """Take the lock; None if another server has it.

        Args:
            state_dir: the state directory, which exists.
            replace: whether to ask the other server to end.

        Raises:
            CgpuError: the other server does not answer, or files cannot be made.
        """
        deadline = time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < deadline:
                lock = lockfile.try_lock(f"{state_dir}/{server.LOCK}")
                if lock is not None:
                    return cls(state_dir, lock, _open_listeners(state_dir))
                if server.is_listening(state_dir):
                    if not replace:
                        return None
                    if _ask_to_end(state_dir):  # giving up now would leave nobody to serve
                        deadline = time.monotonic() + _PATIENCE
                time.sleep(_POLL_SECONDS)
        except OSError as error:
            raise CgpuError(f"state directory {state_dir}: {error.strerror}") from None
        raise CgpuError(
            f"another cgpud holds {state_dir}/{server.LOCK} and does not answer",
            hint="its process id is in that file",
        )

    def is_held(self) -> bool:
        """Whether the state directory still exists and has our lock."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._lock))
        except OSError:
            return False

    def release(self) -> None:
        """Let another server take over.

        The registry's lock is held meanwhile, so that nothing is admitted.
        """
        for listener in self.listeners:
            listener.close()
        if self.is_held():
            with contextlib.suppress(OSError):
                _remove_sockets(self._state_dir)
        os.close(self._lock)


def _ask_to_end(state_dir: str) -> bool:
    """Ask the other server to end. True: it has just ended, or will; a busy one takes its time."""
    try:
        client.send_request(state_dir, {"request": "stop"})
    except client.AbsentError:
        return True
    except CgpuError:  # it is stopped, or refuses
        return False
    return True


def _remove_sockets(state_dir: str) -> None:
    for name in (server.SOCKET, server.ROOT_SOCKET):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{state_dir}/{name}")


def _open_listeners(state_dir: str) -> list[socket.socket]:
    """Listen. All users may connect to root's server, which has a second socket for root alone.

    The caller holds the lock, so existing sockets were left by a killed server.
    """
    _remove_sockets(state_dir)
    if os.geteuid() != 0:
        return [_bind_socket(state_dir, server.SOCKET, 0o177)]
    os.chmod(state_dir, 0o711)  # noqa: S103 (all may reach the socket and their own session)
    # the common one last, so that a client that finds it finds the other one too
    return [
        _bind_socket(state_dir, server.ROOT_SOCKET, 0o177),
        _bind_socket(state_dir, server.SOCKET, 0o111),
    ]


def _bind_socket(state_dir: str, name: str, mask: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    try:
        umask = os.umask(mask)
        listener.bind(server.socket_address(folder, name))
        os.umask(umask)
    finally:
        os.close(folder)
    listener.listen()  # more can wait as soon as it is served
    listener.settimeout(0)
    return listener
