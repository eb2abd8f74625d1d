"""The server itself: looks at the state directory and keeps arbitration in line with it.

Whoever admits a container connects to the socket, which makes the server look at once. Everything
else is found by looking again: at the folder's time of change four times a second, at who lives
once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_node.facts.node import driver_folder, load_node
from cgpu_node.settings import rules
from cgpu_node.settings.config import CONFIG_PATH, Config, load_config
from cgpu_server.audit.utilisation import Utilisation
from cgpu_server.control.connections import Control
from cgpu_server.control.requests import Requests
from cgpu_server.journal import log
from cgpu_server.service import is_service, say_alive
from cgpu_server.state.arbiters import Conductor, Demand
from cgpu_server.state.container_warnings import Marking
from cgpu_server.tree.filesystem import ControlTree
from cgpu_server.tree.nodes import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cgpu_env import GpuShare
    from cgpu_node.facts.node import NodeGpu
    from cgpu_node.settings.rules import Rules
    from cgpu_node.shares.record import Record
    from cgpu_node.shares.registry import Registry
    from cgpu_server.control.server_lock import Seat

LOOK_SECONDS = 0.25
LIFE_SECONDS = 1.0
_WRITE_SECONDS = 10.0  # somebody may hold the registry's lock
_REST_SECONDS = 0.01  # whoever connects without end does not keep it looking without end
# Two changes within one tick of the kernel's clock leave the same time of change.
_COARSE_NS = 50_000_000


class Daemon:
    """Serves the containers of ``registry``.

    Attributes:
        registry: of the state directory.
        conductor: the arbitrations.
        driver_dir: of the driver, where it was named.
        records: the containers and sessions that live, as last seen.
        tree: the control tree, where there is to be one.
        config: what the administrator decided.
        defaults: the rules of a GPU that nobody has changed, as ``config`` has them.
        looked: time.monotonic() when it last saw who lives.
        refreshed: called after every such look.
        audited: whether the audit sees who holds memory, by the UUID of each GPU that it looked at.
        utilisation: how busy the GPUs are by the driver's own figure.
        restarts: whether another server is to follow at once, of what is installed then.
    """

    def __init__(  # noqa: PLR0913 (what the command line says)
        self,
        registry: Registry,
        seat: Seat,
        conductor: Conductor,
        *,
        driver_dir: str | None = None,
        idle_exit: float | None = None,
        tree: str | None = None,
    ) -> None:
        self.registry, self.conductor, self.driver_dir = registry, conductor, driver_dir
        self.records: tuple[Record, ...] = ()
        self.config, self.defaults = Config(), rules.Defaults()
        self.looked = time.monotonic()
        self.refreshed: Callable[[], None] = lambda: None
        self.audited: Callable[[], Mapping[str, bool]] = dict
        self.utilisation = Utilisation()
        self.restarts = False
        self._seat, self._idle_exit = seat, idle_exit
        self._table: dict[str, Rules] = {}
        self._server: asyncio.Server | None = None
        self.tree = ControlTree(Tree(self), tree, self._write) if tree else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        self._folder_time: int | None = None
        self._configured: object = ()
        self._followed: object = None
        self._inhabited = time.monotonic()
        self._marking = Marking()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop, or idle for long enough; ``ready`` is called when it serves.

        Raises:
            CgpuError: the state directory cannot be used.
        """
        self.refresh()
        if rules.is_foreign(self.registry.state_dir):
            log.warning("rules_foreign", path=rules.FILE, do="set again what cgpu set had changed")
        control = Control(Requests(self).handle, self._woken.set)
        self._server = await control.listen(self._seat.listener)
        ready()
        self._loop = asyncio.get_running_loop()
        if (
            self.tree and not is_service()
        ):  # which has it mounted by its root outside: tree/mounter.py
            self.tree.start()
        life = time.monotonic()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LOOK_SECONDS)
            if self._stopping:
                break
            woken, now = self._woken.is_set(), time.monotonic()
            self._woken.clear()
            if woken or self._has_changed() or now - life >= LIFE_SECONDS:
                life = now
                self._look()
                await asyncio.sleep(_REST_SECONDS)
        self.conductor.close()

    def restart(self) -> None:
        """End soon, for a server of what is installed now; containers do without meanwhile."""
        self.restarts = True
        self.stop()

    def stop(self) -> None:
        """End soon: another server may take the seat from now on."""
        if not self._stopping:
            try:
                with self.registry.locked():
                    self._leave()
            except CgpuError:  # the state directory is gone
                self._leave()

    def _leave(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self.tree:
            self.tree.close()  # before the next server mounts its own there
        self._seat.leave()
        self._woken.set()

    def refresh(self) -> None:
        """See who lives and which rules hold, and let the arbitrations follow.

        Raises:
            CgpuError: the state directory cannot be used.
        """
        self._configure()
        with self.registry.locked(make=True):
            self._folder_time = self._time_of_change()
            self.records = tuple(self.registry.reap())
            changes = rules.read(self.registry.state_dir)
        self._follow_configuration()
        inhabited = {share.uuid for record in self.records for share in record.gpus}
        self._table = {
            uuid: rules.of(uuid, changes, self.defaults, inhabited=uuid in inhabited)
            for uuid in inhabited | changes.keys()
        }
        self.conductor.apply(Demand(self.records, self._table))
        self.utilisation.count(self.records)
        self.looked = time.monotonic()
        self.refreshed()

    def _write(self, path: str, text: str) -> None:
        """Set a value of the tree, for another thread; whoever changes anything does it in ours."""
        assert self._loop is not None  # noqa: S101 (the tree is served while it runs)

        async def write() -> None:
            Tree(self).write(path, text)

        future = asyncio.run_coroutine_threadsafe(write(), self._loop)
        try:
            future.result(_WRITE_SECONDS)
        finally:
            future.cancel()

    def rules_of(self, uuid: str) -> Rules:
        """The rules in force on a GPU."""
        return self._table.get(uuid) or self.defaults.of(uuid)

    def gpus(self) -> list[GpuShare | NodeGpu]:
        """The node's GPUs; where the driver does not answer, those that containers have."""
        found: dict[str, GpuShare | NodeGpu] = {}
        with contextlib.suppress(CgpuError):
            node = load_node(self.registry.state_dir, self.driver_dir)
            found = {gpu.uuid: gpu for gpu in node.gpus}
        for record in self.records:
            for share in record.gpus:
                found.setdefault(share.uuid, share)
        return sorted(found.values(), key=lambda gpu: gpu.index)

    def own_driver(self) -> str | None:
        """The folder of the driver whose GPUs are shared, answering or not; None: not found."""
        with contextlib.suppress(CgpuError):
            return os.path.realpath(driver_folder(self.driver_dir, self.config))
        return None

    def adopt_driver(self, folder: str) -> None:
        """Use the driver in ``folder``, if none was named so far and none is found.

        Raises:
            CgpuError: there is none in ``folder``, or it does not answer.
        """
        if self.driver_dir is None and not self._has_driver():
            load_node(self.registry.state_dir, folder)
            self.driver_dir = folder
            log.info("driver_named", path=folder)

    def _has_driver(self) -> bool:
        try:
            load_node(self.registry.state_dir)
        except CgpuError:
            return False
        return True

    def _look(self) -> None:
        say_alive()
        log.settle()
        if not self._seat.is_ours():
            log.warning(
                "state_gone",
                path=self.registry.state_dir,
                do="nothing: this server ends, and the next container starts one",
            )
            self._leave()
            return
        try:
            self.refresh()
            self._marking.tell(self.records)
            if self.records:
                self._inhabited = time.monotonic()
            elif self._idle_exit is not None:
                self._leave_if_idle(self._idle_exit)
        except CgpuError as error:
            log.error(
                "look_fails",
                error=error,
                do="mend what the error names; it is tried again each second",
            )

    def _leave_if_idle(self, seconds: float) -> None:
        if time.monotonic() - self._inhabited < seconds:
            return
        with self.registry.locked(make=True):  # nobody is admitted between the look and the end
            if not self.registry.records():
                log.info("idle", seconds=seconds)
                self._leave()

    def _has_changed(self) -> bool:
        return self._time_of_change() != self._folder_time

    def _time_of_change(self) -> int | None:
        """Of the containers' folder; None, which equals nothing later, where it is too fresh."""
        try:
            changed = os.stat(f"{self.registry.state_dir}/containers").st_mtime_ns
        except OSError:
            return 0
        return changed if time.time_ns() - changed > _COARSE_NS else None

    def _follow_configuration(self) -> None:
        """The rules of each GPU by the configuration. The driver may hang: it is asked seldom."""
        inhabited = frozenset(gpu.uuid for record in self.records for gpu in record.gpus)
        followed = self.config, self.driver_dir, inhabited
        if followed != self._followed:
            self._followed = followed
            self.defaults = rules.configured(self.config, self.gpus() if self.config.gpu else ())

    def _configure(self) -> None:
        """Read the configuration where it is new; a wrong one is not followed."""
        try:
            facts = os.stat(CONFIG_PATH)
            seen: object = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        except OSError:
            seen = None
        if seen != self._configured:
            is_first = self._configured == ()
            self._configured = seen
            try:
                self.config = load_config(CONFIG_PATH)
            except CgpuError as error:
                log.error(
                    "configuration_refused",
                    error=error,
                    do="mend it; what was read before holds until then",
                )
            else:
                if not is_first:
                    log.info("configuration_read", path=CONFIG_PATH)
