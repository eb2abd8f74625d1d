"""The containers, rules and configuration of the node, as the server last read them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection

from cgpu_env import CgpuError, GpuShare
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive
from cgpu_node.facts.node import Node, NodeGpu, driver_folder, load_node, read_facts
from cgpu_node.settings import rules
from cgpu_node.settings.config import (
    CONFIG_PATH,
    Config,
    identify_config,
    load_config,
    make_defaults,
)
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.record import Record
from cgpu_node.shares.registry import Registry
from cgpu_server.journal import log
from cgpu_server.state.arbiters import Arbiters

# Two changes within one tick of the kernel's clock show the same time of change.
_COARSE_NS = 50_000_000


class ServerState:
    """The facts about containers and rules in ``registry``; arbiters are reconciled with them.

    Attributes:
        registry: the registry of the state directory.
        arbiters: the arbiters of all GPUs.
        driver_dir: the driver's directory, if it was named.
        records: the containers and sessions that lived at the last refresh.
        exclusive: the containers of pods that have whole GPUs, by the GPU's UUID. None of
            ``records`` is on these GPUs.
        config: the node's configuration.
        defaults: the rules of a GPU by ``config``, before any change.
        refreshed_at: time.monotonic() of the last refresh.
        inhabited_at: time.monotonic() of the last refresh that found a container, or that a
            container had come and gone; before that, of the start.
        refreshed: called after every refresh.
    """

    def __init__(
        self, registry: Registry, arbiters: Arbiters, driver_dir: str | None = None
    ) -> None:
        self.registry, self.arbiters, self.driver_dir = registry, arbiters, driver_dir
        self.records: tuple[Record, ...] = ()
        self.exclusive: dict[str, Exclusive] = {}
        self.config, self.defaults = Config(), rules.Defaults()
        self.refreshed_at = self.inhabited_at = time.monotonic()
        self.refreshed: Callable[[], None] = lambda: None
        self._table: dict[str, Rules] = {}
        self._folder_time: int | None = None
        self._configured: object = ()
        self._followed: object = None

    def refresh(self, change: Callable[[list[Record]], list[Record]] | None = None) -> None:
        """Read which containers live and which rules are in force, and reconcile the arbiters.

        Args:
            change: called with the living containers, which ``records`` has then, while nothing is
                admitted. It returns them as changed. Even if it refuses, all else is done.

        Raises:
            CgpuError: the state directory cannot be used, or ``change`` refuses.
        """
        self._read_configuration()
        self._follow_configuration()  # a change needs the rules; the driver may be slow to answer
        refusal, gone, before = None, self.registry.find_gone(), self._folder_time
        with self.registry.lock(create=True):
            self._folder_time = self._time_of_change()
            living = self.registry.reap(gone)
            self.records = tuple(living)
            try:
                self.records = tuple(change(living) if change else living)
            except CgpuError as error:
                refusal = error
            changes = rules.read_changes(self.registry.state_dir)
        if self.records or before not in {None, self._folder_time}:
            self.inhabited_at = time.monotonic()
        self._apply_changes(changes)
        if refusal:
            raise refusal

    def _apply_changes(self, changes: rules.Changes) -> None:
        self._follow_configuration()
        inhabited = {share.uuid for record in self.records for share in record.gpus}
        self._table = {
            uuid: rules.resolve(uuid, changes, self.defaults, inhabited=uuid in inhabited)
            for uuid in inhabited | changes.keys()
        }
        self.exclusive = self._find_exclusive(inhabited)
        self.arbiters.reconcile(self.records, self._table)
        self.refreshed_at = time.monotonic()
        self.refreshed()

    def _find_exclusive(self, inhabited: Collection[str]) -> dict[str, Exclusive]:
        found = exclusive.read(self.registry.state_dir)
        # Only facts that are kept: the driver may hang when it is asked, and this runs each second.
        facts = (read_facts(f"{self.registry.state_dir}/node.json") if found else None) or {}
        ids = {
            id_: gpu["uuid"]
            for gpu in (*facts.get("gpus", ()), *facts.get("lost", ()))
            for id_ in (gpu["uuid"], str(gpu["index"]))
        }
        having: dict[str, list[Exclusive]] = {}
        for each in found:
            for uuid in filter(None, map(ids.get, each.devices)):
                having.setdefault(uuid, []).append(each)
        return {
            uuid: its[0] for uuid, its in having.items() if len(its) == 1 and uuid not in inhabited
        }

    def has_changed(self) -> bool:
        """Whether a container came or went since the last refresh, or may have."""
        return self._time_of_change() != self._folder_time

    def rules_of(self, uuid: str) -> Rules:
        """Return the rules in force on a GPU."""
        return self._table.get(uuid) or self.defaults.for_gpu(uuid)

    def find_node(self) -> Node | None:
        """Return the facts about driver and GPUs; None if the driver does not answer."""
        with contextlib.suppress(CgpuError):
            return self.known_node()
        return None

    def known_node(self, *, refresh: bool = False) -> Node:
        """Return the node's facts by the configuration in force, because the file may be wrong now.

        ``refresh``: ask the driver again, which may hang.

        Raises:
            CgpuError: the driver does not answer.
        """
        state_dir, config = self.registry.state_dir, self.config
        return load_node(state_dir, self.driver_dir, config=config, refresh=refresh)

    def list_gpus(self) -> list[GpuShare | NodeGpu]:
        """Return the GPUs that have a UUID; if the driver does not answer, those of containers."""
        return self.gpus_of(self.find_node())

    def gpus_of(self, node: Node | None) -> list[GpuShare | NodeGpu]:
        """Return the GPUs that have a UUID in the facts ``node``, and those of containers."""
        there = node.gpus if node else ()
        found: dict[str, GpuShare | NodeGpu] = {gpu.uuid: gpu for gpu in there if gpu.uuid}
        for record in self.records:
            for share in record.gpus:
                found.setdefault(share.uuid, share)
        return sorted(found.values(), key=lambda gpu: gpu.index)

    def own_driver(self) -> str | None:
        """Return the folder of the driver in use, even if it does not answer; None: not found."""
        with contextlib.suppress(CgpuError):
            return os.path.realpath(driver_folder(self.driver_dir, self.config))
        return None

    def adopt_driver(self, folder: str) -> None:
        """Use the driver in ``folder`` if none was named before and none is found.

        Raises:
            CgpuError: there is no driver in ``folder``, or it does not answer.
        """
        if self.driver_dir is None and not self._has_driver():
            load_node(self.registry.state_dir, folder, config=self.config)
            self.driver_dir = folder
            log.info("driver_named", path=folder)

    def _has_driver(self) -> bool:
        try:
            load_node(self.registry.state_dir, config=self.config)
        except CgpuError:
            return False
        return True

    def _time_of_change(self) -> int | None:
        """Return when the containers' folder changed; None: just now, which counts as a change."""
        try:
            changed = os.stat(f"{self.registry.state_dir}/containers").st_mtime_ns
        except OSError:
            return 0
        return changed if time.time_ns() - changed > _COARSE_NS else None

    def _follow_configuration(self) -> None:
        """Apply the configuration to each GPU if it changed, and only then: the driver may hang."""
        inhabited = frozenset(gpu.uuid for record in self.records for gpu in record.gpus)
        followed = self.config, self.driver_dir, inhabited
        if followed != self._followed:
            self._followed = followed
            self.defaults = make_defaults(self.config, self.list_gpus() if self.config.gpu else ())

    def _read_configuration(self) -> None:
        """Read the configuration if it is new. If it is wrong, the previous one stays in force."""
        seen = identify_config(CONFIG_PATH)
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
