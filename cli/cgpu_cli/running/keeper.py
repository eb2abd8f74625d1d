"""The keeper of a session: waits, out of the way, for its end and gives the share back.

The program takes over our process, so somebody else has to wait for it: a process of its own,
forked twice so that the program is not its parent. A killed keeper costs nothing: the server, or
whoever is admitted next, removes the session as well. It also starts the server where there is
none, for the program is not to find a child that it does not know.
"""

from __future__ import annotations

import os
import time

from cgpu_env.errors import CgpuError
from cgpu_node import own_code, server
from cgpu_node.shares import record
from cgpu_node.shares.liveness import is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_node.shares.registry import Registry

_POLL_SECONDS = 0.5  # only while the program is gone and left processes behind
_STANDARD_FDS = 3


def start(registry: Registry, name: str, directory: str, driver_dir: str) -> None:
    """Fork the keeper of session ``name`` in ``directory``, whose owner is this process."""
    owner = os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _keep(registry, name, directory, owner, driver_dir)
        finally:
            os._exit(0)
    os.close(owner)
    os.waitpid(child, 0)


def _keep(registry: Registry, name: str, directory: str, owner: int, driver_dir: str) -> None:
    import select  # the program does not wait for these two
    import signal

    _let_go(owner)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server may be our child, and end before us
    server.wake(registry.state_dir, driver_dir)
    own_code.keep()
    entry = record.read(directory)
    poll = select.poll()
    poll.register(_STANDARD_FDS, select.POLLIN)
    poll.poll()
    while entry is not None and is_alive(entry):
        time.sleep(_POLL_SECONDS)
    try:
        registry.remove(name)
        server.tell(registry.state_dir)
    except CgpuError:
        return  # the server removes it, or whoever is admitted next


def _let_go(owner: int) -> None:
    """Keep nothing of the caller's but ``owner``: no terminal, pipe, file or directory."""
    os.chdir("/")
    os.dup2(owner, _STANDARD_FDS)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(_STANDARD_FDS):
        os.dup2(null, fd)
    os.closerange(_STANDARD_FDS + 1, os.sysconf("SC_OPEN_MAX"))
