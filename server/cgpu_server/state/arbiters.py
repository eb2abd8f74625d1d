"""Reconciles the arbiters of all GPUs with the running containers and the rules.

The GPUs of one container take turns together, and so do groups that share a GPU. If an arbiter
cannot take a container on, because it is ending or has ruined its ledger, each later call tries
again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import cgpu_native
from cgpu_env.version import VERSION
from cgpu_native.arbitration import Arbitration, Figures
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.record import Record
from cgpu_server.journal import log


class _Tenant(NamedTuple):
    """A container on one GPU. A later container of the same name has another ``inode``."""

    name: str
    inode: int
    number: int
    directory: str


class _Terms(NamedTuple):
    weight: int
    high_priority: bool


class _Gpu:
    """One GPU's arbitration, its rules, and the containers that the arbitration has taken on."""

    def __init__(self, arbitration: Arbitration, rules: Rules) -> None:
        self.arbitration = arbitration
        self.rules = rules
        self.begun = False
        self.tenants: dict[_Tenant, tuple[int, _Terms]] = {}
        self.foreign: set[_Tenant] = set()
        self.together: frozenset[str] = frozenset()  # the GPUs that it takes turns with


class Arbiters:
    """The arbitrations of a node, by the GPU's UUID.

    Args:
        start: makes an arbitration, with the rules of a GPU as keyword arguments.
        join: makes the given arbitrations take turns together, and with no other.
    """

    def __init__(
        self,
        start: Callable[..., Arbitration],
        join: Callable[[Sequence[Arbitration]], None],
    ) -> None:
        self._start = start
        self._join = join
        self._gpus: dict[str, _Gpu] = {}
        self._lock = threading.Lock()  # the metrics' thread reads figures

    def reconcile(self, records: Sequence[Record], rules: Mapping[str, Rules]) -> None:
        """Arbitrate between these containers only, by the rules of their GPUs."""
        wanted = _group_by_gpu(records)
        with self._lock:
            self._reconcile_all(wanted, rules)

    def _reconcile_all(
        self, wanted: dict[str, dict[_Tenant, _Terms]], rules: Mapping[str, Rules]
    ) -> None:
        for uuid in self._gpus.keys() - wanted.keys():
            gpu = self._gpus.pop(uuid)
            gpu.arbitration.close()
            for tenant in gpu.tenants:
                log.info("container_leaves", container=tenant.name, gpu=uuid)
            log.info("arbitration_ends", gpu=uuid)
        for uuid, tenants in wanted.items():
            with _log_errors(uuid):
                self._reconcile_gpu(uuid, rules[uuid], tenants)
        for uuids in _group_gpus(wanted):
            with _log_errors(*uuids):
                self._reconcile_group(frozenset(uuids & self._gpus.keys()))
        for gpu in self._gpus.values():
            if not gpu.begun:
                gpu.arbitration.begin()
                gpu.begun = True

    def read_figures(self) -> dict[str, Figures]:
        """Return the counters of each arbitration, by UUID."""
        with self._lock:
            return {uuid: gpu.arbitration.read_figures() for uuid, gpu in self._gpus.items()}

    def close(self) -> None:
        """End all arbitrations. From then on, each container keeps to its own part of the time."""
        with self._lock:
            for gpu in self._gpus.values():
                gpu.arbitration.close()
            self._gpus.clear()

    def _reconcile_group(self, uuids: frozenset[str]) -> None:
        gpus = [self._gpus[uuid] for uuid in sorted(uuids)]
        if all(gpu.together == uuids for gpu in gpus):
            return
        if len(gpus) > 1 or len(gpus[0].together) > 1:
            self._join([gpu.arbitration for gpu in gpus])
            log.info("gpus_together", gpus=",".join(sorted(uuids)))
        for gpu in gpus:
            gpu.together = uuids

    def _reconcile_gpu(self, uuid: str, rules: Rules, tenants: dict[_Tenant, _Terms]) -> None:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = _Gpu(self._start(**rules._asdict()), rules)
            log.info("arbitration_begins", gpu=uuid, **rules._asdict())
        elif gpu.rules != rules:
            gpu.arbitration.set_rules(**rules._asdict())
            gpu.rules = rules
            log.info("rules_change", gpu=uuid, **rules._asdict())
        gpu.foreign &= tenants.keys()
        for tenant in gpu.tenants.keys() - tenants.keys():
            gpu.arbitration.remove(gpu.tenants.pop(tenant)[0])
            log.info("container_leaves", container=tenant.name, gpu=uuid)
        for tenant, terms in tenants.items():
            if tenant not in gpu.tenants:
                _take_on(gpu, uuid, tenant, terms)
            elif gpu.tenants[tenant][1] != terms:
                key = gpu.tenants[tenant][0]
                gpu.arbitration.set_tenant(key, **terms._asdict())
                gpu.tenants[tenant] = key, terms
                log.info("container_changes", container=tenant.name, gpu=uuid, **terms._asdict())


@contextlib.contextmanager
def _log_errors(*uuids: str) -> Iterator[None]:
    """Log an error of these GPUs, and continue with the others."""
    try:
        yield
    except (OSError, cgpu_native.NativeError) as error:
        log.error(
            "arbitration_fails",
            gpu=",".join(uuids),
            error=error,
            do="nothing now: containers keep to their own parts of the time, and it is"
            " tried again each second; if it stays, restart cgpud",
        )


def _group_gpus(wanted: Mapping[str, Mapping[_Tenant, _Terms]]) -> list[set[str]]:
    """Return the GPUs in groups: all GPUs of a container are in the same group."""
    groups: list[set[str]] = []
    owners: dict[str, set[str]] = {}
    for uuid, tenants in wanted.items():
        for tenant in tenants:
            owners.setdefault(tenant.directory, set()).add(uuid)
    for uuids in owners.values():
        apart = [group for group in groups if not group & uuids]
        groups = [*apart, uuids.union(*(group for group in groups if group & uuids))]
    return groups


def _take_on(gpu: _Gpu, uuid: str, tenant: _Tenant, terms: _Terms) -> None:
    limits, ledger = f"{tenant.directory}/limits", f"{tenant.directory}/ledger"
    try:
        key = gpu.arbitration.add(limits, ledger, number=tenant.number, **terms._asdict())
    except (OSError, cgpu_native.NativeError) as error:
        release = _read_foreign_release(tenant.directory)
        if release is not None:
            _skip_foreign(gpu, tenant, release)
            return
        log.warning(
            "container_not_taken_on",
            container=tenant.name,
            gpu=uuid,
            error=error,
            do="nothing if it is ending; else it has ruined its own ledger or holds a lease on it:"
            " remove it",
        )
        return
    gpu.tenants[tenant] = key, terms
    log.info("container_comes", container=tenant.name, gpu=uuid, **terms._asdict())


def _read_foreign_release(directory: str) -> str | None:
    """Return the other release whose files these are; None if they are ours, or gone or ruined."""
    limits = cgpu_native.read_head(f"{directory}/limits")
    ledger = cgpu_native.read_head(f"{directory}/ledger")
    if limits is None or ledger is None:
        return None
    versions = cgpu_native.LIMITS_VERSION, cgpu_native.LEDGER_VERSION
    ours = limits.release == VERSION or (limits.version, ledger.version) == versions
    return None if ours else limits.release


def _skip_foreign(gpu: _Gpu, tenant: _Tenant, release: str) -> None:
    """Log once that another release made the container."""
    if tenant in gpu.foreign:
        return
    gpu.foreign.add(tenant)
    log.warning(
        "container_foreign",
        container=tenant.name,
        release=release,
        do="nothing: its caps hold and it keeps its fixed part of the time; start it anew to have"
        " it arbitrated",
    )


def _group_by_gpu(records: Sequence[Record]) -> dict[str, dict[_Tenant, _Terms]]:
    wanted: dict[str, dict[_Tenant, _Terms]] = {}
    for record in records:
        try:
            inode = os.stat(f"{record.directory}/limits").st_ino
        except OSError:  # it ends just now
            continue
        terms = _Terms(record.weight, record.high_priority)
        for number, gpu in enumerate(record.gpus):
            tenant = _Tenant(record.id, inode, number, record.directory)
            wanted.setdefault(gpu.uuid, {})[tenant] = terms
    return wanted
