"""Reads who uses the node's GPUs now, and describes it (``view``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import cgpu_native
from cgpu_env.devices import format_lost_gpu
from cgpu_env.errors import CgpuError
from cgpu_node.facts.node import Node, NodeGpu, load_node
from cgpu_node.paths import open_state
from cgpu_node.settings import rules
from cgpu_node.settings.config import Config, load_config, make_defaults
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.admission import free_weight, records_on_gpu, still_promised
from cgpu_node.shares.claimants import list_containers
from cgpu_node.shares.names import name_of
from cgpu_node.shares.record import CLAIM, Record
from cgpu_node.shares.registry import Registry
from cgpu_node.view import marks, processes
from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

_PPM_OF_A_PERCENT = 10_000
_STALE_NS = 1_000_000_000  # an arbiter gives a sign twenty times a second


def read_usage(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Read the node and the ledgers of all living containers, without a server.

    Raises:
        CgpuError: there is no state directory or no driver.
    """
    state = open_state(state_dir)
    records = Registry(state).list_records()
    node = _load_node_leniently(state, driver_dir)
    changes, defaults = rules.read_changes(state), make_defaults(node.config, node.gpus)

    def rules_of(uuid: str) -> Rules:
        return rules.resolve(uuid, changes, defaults, inhabited=bool(records_on_gpu(records, uuid)))

    return usage_of(node, locate_processes([*map(use_of, records)]), rules_of)


def _load_node_leniently(state: str, driver_dir: str | None) -> Node:
    """Return the facts. If the configuration is wrong, use the defaults.

    Even then, it is worth it to show what containers hold.
    """
    try:
        config = load_config()
    except CgpuError as error:
        node = load_node(state, driver_dir, config=Config())
        return node._replace(notes=(*node.notes, f"{error}; the defaults are shown"))
    return load_node(state, driver_dir, config=config)


def usage_of(
    node: Node | None,
    uses: Sequence[Use],
    rules_of: Callable[[str], Rules],
    visible: Collection[str] | None = None,
    utilisation: Mapping[str, float] | None = None,
) -> Usage:
    """Return the description of a node with these containers.

    Args:
        node: the facts about it; None: the driver does not answer, and no GPU is shown.
        uses: all its containers and sessions.
        rules_of: returns the rules in force on a GPU, by UUID.
        visible: the ids of those that are shown one by one; None: all.
        utilisation: percent of each GPU's time, by UUID, as the driver reports it.
    """
    if node is None:
        return Usage("", "", (), _select_visible(uses, visible))
    totals = {gpu.uuid: gpu.total_bytes for gpu in node.gpus if gpu.total_bytes}
    bounded = [_bound_use(use, totals) for use in uses]
    busy = utilisation or {}
    gpus = tuple(
        _build_totals(gpu, bounded, rules_of(gpu.uuid), visible, busy) for gpu in node.gpus
    )
    notes = (*node.notes, *(format_lost_gpu(gpu.as_gpu) for gpu in node.lost_gpus))
    return Usage(
        node.driver_version, node.driver_dir, gpus, _select_visible(bounded, visible), notes
    )


def _select_visible(uses: Sequence[Use], visible: Collection[str] | None) -> tuple[Use, ...]:
    return tuple(use for use in uses if visible is None or use.id in visible)


def _bound_use(use: Use, totals: Mapping[str, int]) -> Use:
    """Return the use, limited to what each GPU has: a ledger may contain any number."""
    gpus = (
        gpu._replace(used_bytes=min(gpu.used_bytes, totals.get(gpu.uuid, gpu.used_bytes)))
        for gpu in use.gpus
    )
    return use._replace(gpus=tuple(gpus))


def _build_totals(
    gpu: NodeGpu,
    uses: Sequence[Use],
    its: Rules,
    visible: Collection[str] | None,
    utilisation: Mapping[str, float],
) -> GpuTotals:
    beside = [(use, each) for use in uses for each in use.gpus if each.uuid == gpu.uuid]
    hidden = [(use, each) for use, each in beside if visible is not None and use.id not in visible]
    return GpuTotals(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        promised_bytes=sum(each.promised_bytes for _, each in beside),
        used_bytes=sum(each.used_bytes for _, each in beside),
        max_inst=its.max_inst,
        free_weight=free_weight((use.weight for use, _ in beside), its.max_inst),
        policy=its.policy,
        prio_ratio=its.prio_ratio,
        measured_percent=_sum_measured([each for _, each in beside]),
        containers=len(beside),
        weight=sum(use.weight for use, _ in beside),
        others=_sum_hidden(hidden) if hidden else None,
        utilisation_percent=utilisation.get(gpu.uuid),
        lost=gpu.lost or None,
    )


def _sum_hidden(hidden: list[tuple[Use, GpuUse]]) -> Others:
    return Others(
        containers=len(hidden),
        weight=sum(use.weight for use, _ in hidden),
        cap_bytes=sum(each.cap_bytes for _, each in hidden),
        used_bytes=sum(each.used_bytes for _, each in hidden),
        measured_percent=_sum_measured([each for _, each in hidden]),
    )


def _sum_measured(uses: list[GpuUse]) -> float | None:
    """Return the sum of the containers' shares of a GPU, in percent; None if one is unknown."""
    found = [use.compute and use.compute.measured_percent for use in uses]
    known = [percent for percent in found if percent is not None]
    return round(sum(known), 2) if uses and len(known) == len(found) else None


def locate_processes(uses: Sequence[Use]) -> list[Use]:
    """Add the processes' pids on the host, by one pass over all processes."""
    held = [(use.directory, gpu.processes) for use in uses for gpu in use.gpus]
    found = iter(processes.locate_holdings(held))
    return [
        use._replace(gpus=tuple(gpu._replace(processes=next(found)) for gpu in use.gpus))
        for use in uses
    ]


def use_of(record: Record) -> Use:
    """Return a container's use by its own files, which contain no pids of the host."""
    (limits, closed), now = _read_limits(record), time.monotonic_ns()
    ledger = processes.read_ledger(record)
    mark = ledger.mark or closed
    return Use(
        id=record.id,
        kind=record.kind,
        name=name_of(record),
        command=record.command,
        weight=record.weight,
        high_priority=record.high_priority,
        policy=record.policy,
        gpus=tuple(
            _gpu_use(record, number, gpu, ledger, now)._replace(mark=mark)
            for number, gpu in enumerate(limits)
        ),
        directory=record.directory,
        pods=_list_pods(record) if record.kind == CLAIM else (),
    )


def _list_pods(record: Record) -> tuple[str, ...]:
    containers = list_containers(record.directory)
    return tuple(f"{each.namespace}/{each.pod}/{each.container}" for each in containers)


def _gpu_use(
    record: Record,
    number: int,
    limits: cgpu_native.LimitsGpu | None,
    ledger: processes.LedgerView,
    now: int,
) -> GpuUse:
    share, held = record.gpus[number], ledger.gpus[number]
    charged = sum(each.used_bytes for each in held)
    outside = limits.outside_bytes if limits else 0
    # If the cap was lowered while the container held more, the record has more than the cap.
    cap = limits.cap_bytes if limits else share.cap_bytes
    known = ledger.mark in {None, marks.LOCKS}
    return GpuUse(
        index=share.index,
        uuid=share.uuid,
        cap_bytes=cap,
        used_bytes=charged + outside,
        processes=held,
        compute=_build_compute(limits, now) if limits else None,
        refused=ledger.refused[number],
        outside_bytes=outside,
        promised_bytes=still_promised(share.cap_bytes, cap, charged if known else None),
    )


def _read_limits(record: Record) -> tuple[Sequence[cgpu_native.LimitsGpu | None], str | None]:
    """Return the limits on each of the container's GPUs, and a mark if they cannot be read."""
    try:
        return cgpu_native.read_limits(f"{record.directory}/limits").gpus, None
    except BlockingIOError as error:
        return [None] * len(record.gpus), marks.from_error(error)
    except (OSError, cgpu_native.NativeError):  # it ended meanwhile, or is another release's
        return [None] * len(record.gpus), None


def _build_compute(gpu: cgpu_native.LimitsGpu, now: int) -> Compute:
    arbitrated = now - gpu.heartbeat_ns < _STALE_NS
    percent = gpu.measured_ppm / _PPM_OF_A_PERCENT if arbitrated and gpu.metered else None
    return Compute(
        limit_percent=gpu.limit_ppm / _PPM_OF_A_PERCENT,
        measured_percent=None if gpu.is_rough else percent,
        charged_ns=gpu.charged_ns,
        arbitrated=arbitrated,
        share_percent=gpu.share_ppm / _PPM_OF_A_PERCENT,
        waits=gpu.waits,
        throttled_ns=gpu.throttled_ns,
        heartbeat_age_ns=max(0, now - gpu.heartbeat_ns) if gpu.heartbeat_ns else None,
        heartbeat_ns=gpu.heartbeat_ns,
        estimated_percent=percent if gpu.is_rough else None,
    )
