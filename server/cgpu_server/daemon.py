"""The server's loop: refreshes what the server knows of the node, and answers requests.

A program that admits a container connects to the socket, and so makes the server refresh at once.
Other changes are found by polling: four times a second whether the folder of containers has
changed, and once a second which containers live. Design: docs/design/server.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from cgpu_env import CgpuError
from cgpu_node.settings import rules
from cgpu_server.audit.auditor import Audit
from cgpu_server.control.connections import Control
from cgpu_server.control.requests import Requests
from cgpu_server.control.server_lock import ServerLock
from cgpu_server.journal import log
from cgpu_server.service import is_service, notify_systemd
from cgpu_server.state.account import AccountKeeper
from cgpu_server.state.container_warnings import ContainerWarnings
from cgpu_server.state.libraries import OpenLibraries
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.filesystem import ControlTree
from cgpu_server.tree.nodes import Tree

POLL_SECONDS = 0.25
LIFE_SECONDS = 1.0
_WRITE_SECONDS = 10.0  # another process may hold the registry's lock
_REST_SECONDS = 0.01  # connections without end must not make it refresh without end
_ANSWER_SECONDS = 1.0  # for programs that use the control tree when the server ends


class Daemon:
    """Serves ``state`` until it is stopped, or has been idle for ``idle_exit`` seconds.

    Attributes:
        restarts: whether a server of the installed release follows at once.
    """

    def __init__(
        self,
        state: ServerState,
        lock: ServerLock,
        audit: Audit,
        *,
        idle_exit: float | None = None,
        tree: str | None = None,
    ) -> None:
        self.restarts = False
        self._state, self._lock, self._idle_exit = state, lock, idle_exit
        nodes = Tree(state, self.restart)
        self._tree = ControlTree(nodes, tree, self._write_node) if tree else None
        self._nodes = nodes
        requests = Requests(state, audit, nodes, self._tree, self.stop)
        self._woken = asyncio.Event()
        self._control = Control(requests.answer, self._woken.set)
        self._servers: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._warnings = ContainerWarnings()
        self._account = AccountKeeper(state.registry.state_dir)
        self._libraries = OpenLibraries()

    async def run(self) -> None:
        """Serve until stopped, or idle for long enough.

        Raises:
            CgpuError: the state directory cannot be used.
        """
        self._state.refresh()
        if rules.is_foreign(self._state.registry.state_dir):
            log.warning("rules_foreign", path=rules.FILE, do="set again what cgpu set had changed")
        self._servers = [self._control.listen(each) for each in self._lock.listeners]
        notify_systemd(b"READY=1")
        self._loop = asyncio.get_running_loop()
        # A service cannot mount; a helper that runs as root outside does (tree/mounter.py).
        if self._tree and not is_service():
            self._tree.start()
        refreshed = time.monotonic()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), POLL_SECONDS)
            if self._stopping:
                break
            woken, now = self._woken.is_set(), time.monotonic()
            self._woken.clear()
            if woken or self._state.has_changed() or now - refreshed >= LIFE_SECONDS:
                refreshed = now
                self._refresh()
                await asyncio.sleep(_REST_SECONDS)
        self._state.arbiters.close()
        if self._tree:  # a program that wrote to the tree to end this server gets its answer first
            await asyncio.to_thread(self._tree.join, _ANSWER_SECONDS)

    def restart(self) -> None:
        """End soon, so that a server of the installed release follows.

        Containers continue meanwhile.
        """
        self.restarts = True
        self.stop()

    def stop(self) -> None:
        """End soon, so that another server may serve the state directory."""
        if not self._stopping:
            try:
                with self._state.registry.lock():
                    self._stop_serving()
            except CgpuError:  # the state directory is gone
                self._stop_serving()

    def _stop_serving(self) -> None:
        self._stopping = True
        for each in self._servers:
            each.cancel()
        if self._tree:
            self._tree.close()  # before the next server mounts its tree there
        self._lock.release()
        self._woken.set()

    def _write_node(self, path: str, text: str) -> None:
        """Write to the tree in the server's thread, when the file system's thread asks for it."""
        assert self._loop is not None  # noqa: S101 (the tree is served while it runs)

        async def write() -> None:
            self._nodes.write(path, text)

        future = asyncio.run_coroutine_threadsafe(write(), self._loop)
        try:
            future.result(_WRITE_SECONDS)
        finally:
            future.cancel()

    def _refresh(self) -> None:
        notify_systemd(b"WATCHDOG=1")
        log.flush()
        state = self._state
        if not self._lock.is_held():
            log.warning(
                "state_gone",
                path=state.registry.state_dir,
                do="nothing: this server ends, and the next container starts one",
            )
            self._stop_serving()
            return
        try:
            state.refresh()
            self._warnings.log(state.records)
            driver = state.own_driver() if state.records else None
            self._libraries.update(driver)
            self._account.update(driver)
            if not state.records and self._idle_exit is not None:
                self._stop_if_idle(self._idle_exit)
        except CgpuError as error:
            log.error(
                "look_fails",
                error=error,
                do="mend what the error names; it is tried again each second",
            )

    def _stop_if_idle(self, seconds: float) -> None:
        if time.monotonic() - self._state.inhabited_at < seconds:
            return
        registry = self._state.registry
        with registry.lock(create=True):  # nobody is admitted between the check and the end
            if not registry.list_records():
                log.info("idle", seconds=seconds)
                self._stop_serving()
