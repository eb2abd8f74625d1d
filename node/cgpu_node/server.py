"""The node's server, cgpud, as a container's start uses it: inform it of a change, or start it.

Nothing here waits for the server, and no container or program fails without it: while no arbiter
runs, each keeps to its own part of the time.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as _socket

SOCKET, LOCK, LOG = "cgpud.sock", "cgpud.lock", "cgpud.log"
ROOT_SOCKET = "cgpud-root.sock"  # of root's server, beside the one that all users can connect to
IDLE_SECONDS = 60  # a server that was started here ends after no container has lived for so long
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_STANDARD_FDS = 3
# SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGCHLD: reset to what a service would have.
_SIGNALS = (1, 2, 3, 13, 15, 17)


def wake_server(state_dir: str, driver_dir: str | None = None) -> None:
    """Make the server of ``state_dir`` refresh its containers; start it if there is none."""
    try:
        if not is_listening(state_dir):
            _start_server(state_dir, driver_dir)
    except OSError:
        return  # the next admission tries again


def notify_server(state_dir: str) -> None:
    """Make the server of ``state_dir`` refresh its view of containers, if there is one."""
    try:
        is_listening(state_dir)
    except OSError:
        return  # it refreshes by itself, a little later


def is_listening(state_dir: str) -> bool:
    """Whether a server answers; a connection makes it refresh.

    Raises:
        OSError: that cannot be found out.
    """
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, socket

    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)  # no import of 5 ms
    try:
        connect(end, folder)
    except BlockingIOError:  # its queue is full
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        end.close()
        os.close(folder)
    return True


def connect(end: _socket, folder: int) -> None:
    """Connect to the server of an open state directory. Root uses a socket of its own.

    On that socket no users queue.

    Raises:
        BlockingIOError: too many others are waiting.
        OSError: no server listens.
    """
    if os.geteuid() == 0:
        try:
            end.connect(socket_address(folder, ROOT_SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):  # a user's server, or release 0.1's
            pass
        else:
            return
    end.connect(socket_address(folder))


def socket_address(folder: int, name: str = SOCKET) -> str:
    """Return a socket's address below an open state directory; its path may be too long for one."""
    return f"/proc/self/fd/{folder}/{name}"


def _start_server(state_dir: str, driver_dir: str | None) -> None:
    bootstrap = os.path.join(os.path.dirname(os.path.realpath(__file__)), "bootstrap.py")
    words = [sys.executable, "-I", "-S", "-E", bootstrap]
    words += ["cgpu_server.main", "--state-dir", state_dir, "--idle-exit", str(IDLE_SECONDS)]
    words += ["--log", f"{state_dir}/{LOG}"]
    if driver_dir:
        words += ["--driver-dir", os.path.abspath(driver_dir)]
    null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in range(_STANDARD_FDS)]
    environment = dict(_ENVIRONMENT)
    if os.geteuid() != 0 and "XDG_RUNTIME_DIR" in os.environ:  # where a user's control tree goes
        environment["XDG_RUNTIME_DIR"] = os.environ["XDG_RUNTIME_DIR"]
    os.posix_spawn(
        sys.executable, words, environment, file_actions=null, setsigmask=(), setsigdef=_SIGNALS
    )
