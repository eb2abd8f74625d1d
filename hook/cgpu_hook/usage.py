"""Who uses the node's GPUs now: what ``cgpu-smi`` shows and ``cgpud`` measures."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import cgpu_native
from cgpu_hook import processes, rules
from cgpu_hook.admission import free_weight
from cgpu_hook.names import name_of
from cgpu_hook.node import Node, NodeGpu, load_node
from cgpu_hook.paths import open_state
from cgpu_hook.processes import Holding
from cgpu_hook.record import Record
from cgpu_hook.registry import Registry
from cgpu_hook.rules import Rules
from cgpu_native import policies

_PPM_OF_A_PERCENT = 10_000
_STALE_NS = 1_000_000_000  # an arbiter gives a sign twenty times a second


class Compute(NamedTuple):
    """What one container may have and has of one GPU's time.

    Attributes:
        limit_percent: at most, while others compete; prio_ratio for high priority, the policy's
            ceiling, or its part by weight of what high-priority containers leave.
        measured_percent: in the last second; None where nobody measures.
        charged_ns: GPU time since the arbiter took the container on.
        arbitrated: whether an arbiter lives.
        share_percent: its own part while none does.
        waits: how often it began to wait for its turn.
        throttled_ns: for how long it waited, one thread or many.
        heartbeat_age_ns: since the arbiter's last sign; None where there was none.
    """

    limit_percent: float
    measured_percent: float | None
    charged_ns: int
    arbitrated: bool
    share_percent: float
    waits: int
    throttled_ns: int
    heartbeat_age_ns: int | None


class GpuUse(NamedTuple):
    """What one container holds on one GPU. Bytes.

    Attributes:
        index: of the GPU on this node.
        uuid: of the GPU.
        memory_bytes: the container's cap.
        used_bytes: what its processes hold, whether its ledger knows of it or not.
        processes: those that hold memory there.
        compute: None where the limits page cannot be read, for the container has just ended.
        refused: requests for memory that did not fit.
        readable: whether the ledger could be read.
        outside_bytes: how much of ``used_bytes`` the ledger does not know of.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    memory_bytes: int
    used_bytes: int
    processes: tuple[Holding, ...]
    compute: Compute | None = None
    refused: int = 0
    readable: bool = True
    outside_bytes: int = 0


class Use(NamedTuple):
    """A container or session, and what it holds on each of its GPUs."""

    record: Record
    gpus: tuple[GpuUse, ...]


class Usage(NamedTuple):
    """A node with its containers and sessions, and what was changed in its GPUs' rules."""

    node: Node
    uses: tuple[Use, ...]
    changes: rules.Changes

    def rules(self, uuid: str) -> Rules:
        """The rules in force on one GPU."""
        defaults = rules.configured(self.node)
        return rules.of(uuid, self.changes, defaults, inhabited=bool(self.on(uuid)))

    def on(self, uuid: str) -> list[tuple[Record, GpuUse]]:
        """The containers on one GPU."""
        return [(use.record, gpu) for use in self.uses for gpu in use.gpus if gpu.uuid == uuid]

    def as_json(self) -> dict[str, Any]:
        """What ``cgpu-smi --json`` prints."""
        return {
            "driver_version": self.node.driver_version,
            "gpus": [self._gpu(gpu) for gpu in self.node.gpus],
            "containers": [_container(use) for use in self.uses],
        }

    def _gpu(self, gpu: NodeGpu) -> dict[str, Any]:
        beside, its = self.on(gpu.uuid), self.rules(gpu.uuid)
        return {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "promised_bytes": sum(use.memory_bytes for _, use in beside),
            "used_bytes": sum(use.used_bytes for _, use in beside),
            "max_inst": its.max_inst,
            "free_weight": free_weight([record for record, _ in beside], its.max_inst),
            "policy": its.policy,
            "policy_name": policies.POLICIES[its.policy],
            "prio_ratio": its.prio_ratio,
            "measured_percent": measured([use for _, use in beside]),
        }


def read_usage(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Look at the node and at the ledgers of all that live.

    Raises:
        CgpuError: no state directory or no driver.
    """
    state = open_state(state_dir)
    records = Registry(state).records()
    node = load_node(state, driver_dir)
    return Usage(node, _located([*map(use_of, records)]), rules.read(state))


def measured(uses: list[GpuUse]) -> float | None:
    """What containers had of a GPU together, in percent; None where that of one is not known."""
    found = [use.compute and use.compute.measured_percent for use in uses]
    known = [percent for percent in found if percent is not None]
    return round(sum(known), 2) if uses and len(known) == len(found) else None


def _located(uses: list[Use]) -> tuple[Use, ...]:
    """With the processes' ids on the host, by one look at all that there are."""
    held = [(use.record, gpu.processes) for use in uses for gpu in use.gpus]
    found = iter(processes.locate(held))
    return tuple(
        use._replace(gpus=tuple(gpu._replace(processes=next(found)) for gpu in use.gpus))
        for use in uses
    )


def use_of(record: Record) -> Use:
    """What one container holds, as its own files say: its processes' ids on the host are not."""
    pages, now = _pages(record), time.monotonic_ns()
    compute = [None if page is None else _compute(page, now) for page in pages]
    # The record has more than the cap where that was lowered while the container held more.
    shares = [
        share if page is None else share._replace(memory_bytes=page.cap_bytes)
        for share, page in zip(record.gpus, pages, strict=True)
    ]
    try:
        with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
            gpus = [
                GpuUse(*share, *_held(ledger, place), compute[place], ledger.refused(place))
                for place, share in enumerate(shares)
            ]
    except (OSError, cgpu_native.NativeError):  # it ended meanwhile, or ruined its own ledger
        gpus = [
            GpuUse(*share, 0, (), its, readable=False)
            for share, its in zip(shares, compute, strict=True)
        ]
    outside = [0 if page is None else page.outside_bytes for page in pages]
    return Use(record, tuple(map(_with_outside, gpus, outside)))


def _with_outside(use: GpuUse, outside: int) -> GpuUse:
    return use._replace(used_bytes=use.used_bytes + outside, outside_bytes=outside)


def _pages(record: Record) -> list[cgpu_native.LimitsGpu | None]:
    """What the limits page says of each of the container's GPUs."""
    try:
        return [*cgpu_native.read_limits(f"{record.directory}/limits").gpus]
    except (OSError, cgpu_native.NativeError):  # it ended meanwhile
        return [None] * len(record.gpus)


def _compute(gpu: cgpu_native.LimitsGpu, now: int) -> Compute:
    arbitrated = now - gpu.heartbeat_ns < _STALE_NS
    measured_percent = gpu.measured_ppm / _PPM_OF_A_PERCENT
    return Compute(
        gpu.limit_ppm / _PPM_OF_A_PERCENT,
        measured_percent if arbitrated and gpu.metered else None,
        gpu.charged_ns,
        arbitrated,
        gpu.share_ppm / _PPM_OF_A_PERCENT,
        gpu.waits,
        gpu.throttled_ns,
        max(0, now - gpu.heartbeat_ns) if gpu.heartbeat_ns else None,
    )


def _held(ledger: cgpu_native.Ledger, place: int) -> tuple[int, tuple[Holding, ...]]:
    found = processes.said(ledger, place)
    return sum(each.used_bytes for each in found), found


def _container(use: Use) -> dict[str, Any]:
    record = use.record
    return {
        "id": record.id,
        "name": name_of(record),
        "kind": record.kind,
        "command": list(record.command),
        "weight": record.weight,
        "high_priority": record.high_priority,
        "policy": record.policy,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "memory_bytes": gpu.memory_bytes,
                "used_bytes": gpu.used_bytes,
                "outside_bytes": gpu.outside_bytes,
                "refused": gpu.refused,
                "processes": [each._asdict() for each in gpu.processes],
                **(gpu.compute._asdict() if gpu.compute else dict.fromkeys(Compute._fields)),
            }
            for gpu in use.gpus
        ],
    }
