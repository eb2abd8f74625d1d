"""The keeper of a session: waits for its end, detached from the caller, and gives the share back.

The program replaces our process, so another process has to wait for it. That process is forked
twice, so that the program is not its parent. If the keeper is killed, the server or the next
admission removes the session. The keeper also starts the server if there is none, so that the
program has no child that it does not know.
"""

from __future__ import annotations

import os
import time

from cgpu_env.errors import CgpuError
from cgpu_node import code_bundle, server
from cgpu_node.shares import record
from cgpu_node.shares.liveness import is_alive
from cgpu_node.shares.registry import Registry

_POLL_SECONDS = 0.5  # only while the program has ended and left processes behind
_STANDARD_FDS = 3


def start(state_dir: str, directory: str, driver_dir: str) -> int:
    """Fork the keeper of the session in ``directory``, whose owner is this process.

    Returns:
        A child that ends at once. Wait for it, so that the program does not find it.
    """
    owner = os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _keep_session(state_dir, directory, owner, driver_dir)
        finally:
            os._exit(0)
    os.close(owner)
    return child


def _keep_session(state_dir: str, directory: str, owner: int, driver_dir: str) -> None:
    import _signal  # type: ignore[import-not-found]  # built in; the program does not wait for it
    import select

    _detach_from_caller(owner)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # the server may be our child and end first
    server.wake_server(state_dir, driver_dir)
    code_bundle.keep_modules()
    poll = select.poll()
    poll.register(_STANDARD_FDS, select.POLLIN)
    poll.poll()
    while _is_session_alive(directory):
        time.sleep(_POLL_SECONDS)
    try:
        Registry(state_dir).remove(os.path.basename(directory))
        server.notify_server(state_dir)
    except CgpuError:
        return  # the server removes it, or the next admission


def _is_session_alive(directory: str) -> bool:
    """Whether anything of the session lives; true if that cannot be seen now."""
    try:
        entry = record.read(directory)
        return entry is not None and is_alive(entry)
    except CgpuError:
        return True


def _detach_from_caller(owner: int) -> None:
    """Close all that the caller has open except ``owner``: terminal, pipes, files, directory."""
    os.chdir("/")
    os.dup2(owner, _STANDARD_FDS)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(_STANDARD_FDS):
        os.dup2(null, fd)
    os.closerange(_STANDARD_FDS + 1, os.sysconf("SC_OPEN_MAX"))
