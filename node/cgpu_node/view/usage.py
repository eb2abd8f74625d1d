"""Look at who uses the node's GPUs now, and describe it (``view``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import cgpu_native
from cgpu_node.facts.node import Node, load_node
from cgpu_node.paths import open_state
from cgpu_node.settings import rules
from cgpu_node.shares.admission import free_weight, on_gpu, still_promised
from cgpu_node.shares.names import name_of
from cgpu_node.shares.registry import Registry
from cgpu_node.view import marks, processes
from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Others, Usage, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cgpu_node.facts.node import NodeGpu
    from cgpu_node.settings.rules import Rules
    from cgpu_node.shares.record import Record

_PPM_OF_A_PERCENT = 10_000
_STALE_NS = 1_000_000_000  # an arbiter gives a sign twenty times a second


def read_usage(state_dir: str | None, driver_dir: str | None) -> Usage:
    """Look at the node and at the ledgers of all that live, without a server.

    Raises:
        CgpuError: no state directory or no driver.
    """
    state = open_state(state_dir)
    records = Registry(state).records()
    node = load_node(state, driver_dir)
    changes, defaults = rules.read(state), rules.configured(node, node.gpus)

    def rules_of(uuid: str) -> Rules:
        return rules.of(uuid, changes, defaults, inhabited=bool(on_gpu(records, uuid)))

    return usage_of(node, located([*map(use_of, records)]), rules_of)


def usage_of(
    node: Node,
    uses: Sequence[Use],
    rules_of: Callable[[str], Rules],
    visible: Collection[str] | None = None,
    utilisation: Mapping[str, float] | None = None,
) -> Usage:
    """The description of a node with these containers.

    Args:
        node: the facts about it.
        uses: all its containers and sessions.
        rules_of: the rules in force on a GPU, by UUID.
        visible: the ids of those that are shown one by one; None: all.
        utilisation: percent of a GPU's time, by UUID, as the driver says it.
    """
    busy = utilisation or {}
    shown = tuple(use for use in uses if visible is None or use.id in visible)
    gpus = tuple(_totals(gpu, uses, rules_of(gpu.uuid), visible, busy) for gpu in node.gpus)
    return Usage(node.driver_version, node.driver_dir, gpus, shown, node.notes)


def _totals(
    gpu: NodeGpu,
    uses: Sequence[Use],
    its: Rules,
    visible: Collection[str] | None,
    utilisation: Mapping[str, float],
) -> GpuTotals:
    beside = [(use, each) for use in uses for each in use.gpus if each.uuid == gpu.uuid]
    hidden = [(use, each) for use, each in beside if visible is not None and use.id not in visible]
    weight = sum(use.weight for use, _ in beside)
    return GpuTotals(
        gpu.index,
        gpu.uuid,
        gpu.name,
        gpu.memory_bytes,
        sum(each.promised_bytes for _, each in beside),
        sum(min(each.used_bytes, gpu.memory_bytes) for _, each in beside),  # they write ledgers
        its.max_inst,
        free_weight((use.weight for use, _ in beside), its.max_inst),
        its.policy,
        its.prio_ratio,
        _measured([each for _, each in beside]),
        len(beside),
        weight,
        _together(hidden) if hidden else None,
        utilisation.get(gpu.uuid),
    )


def _together(hidden: list[tuple[Use, GpuUse]]) -> Others:
    return Others(
        len(hidden),
        sum(use.weight for use, _ in hidden),
        sum(each.memory_bytes for _, each in hidden),
        sum(each.used_bytes for _, each in hidden),
        _measured([each for _, each in hidden]),
    )


def _measured(uses: list[GpuUse]) -> float | None:
    """What containers had of a GPU together, in percent; None where that of one is not known."""
    found = [use.compute and use.compute.measured_percent for use in uses]
    known = [percent for percent in found if percent is not None]
    return round(sum(known), 2) if uses and len(known) == len(found) else None


def located(uses: Sequence[Use]) -> list[Use]:
    """The same with the processes' ids on the host, by one look at all that there are."""
    held = [(use.directory, gpu.processes) for use in uses for gpu in use.gpus]
    found = iter(processes.locate(held))
    return [
        use._replace(gpus=tuple(gpu._replace(processes=next(found)) for gpu in use.gpus))
        for use in uses
    ]


def use_of(record: Record) -> Use:
    """What one container holds, as its own files say: its processes' ids on the host are not."""
    (pages, closed), now = _pages(record), time.monotonic_ns()
    said = processes.said(record)
    mark = said.mark or closed
    gpus = tuple(
        _gpu_use(record, place, page, said, now)._replace(mark=mark)
        for place, page in enumerate(pages)
    )
    return Use(
        record.id,
        record.kind,
        name_of(record),
        record.command,
        record.weight,
        record.high_priority,
        record.policy,
        gpus,
        record.directory,
    )


def _gpu_use(
    record: Record,
    place: int,
    page: cgpu_native.LimitsGpu | None,
    said: processes.Said,
    now: int,
) -> GpuUse:
    share, held = record.gpus[place], said.gpus[place]
    charged = sum(each.used_bytes for each in held)
    around = page.outside_bytes if page else 0
    # The record has more than the cap where that was lowered while the container held more.
    cap = page.cap_bytes if page else share.memory_bytes
    known = said.mark in {None, marks.LOCKS}
    return GpuUse(
        share.index,
        share.uuid,
        cap,
        charged + around,
        held,
        _compute(page, now) if page else None,
        said.refused[place],
        around,
        promised_bytes=still_promised(share.memory_bytes, cap, charged if known else None),
    )


def _pages(record: Record) -> tuple[Sequence[cgpu_native.LimitsGpu | None], str | None]:
    """What the limits page says of each of the container's GPUs; and a mark if it is unreadable."""
    try:
        return cgpu_native.read_limits(f"{record.directory}/limits").gpus, None
    except BlockingIOError as error:
        return [None] * len(record.gpus), marks.of(error)
    except (OSError, cgpu_native.NativeError):  # it ended meanwhile, or is another release's
        return [None] * len(record.gpus), None


def _compute(gpu: cgpu_native.LimitsGpu, now: int) -> Compute:
    arbitrated = now - gpu.heartbeat_ns < _STALE_NS
    percent = gpu.measured_ppm / _PPM_OF_A_PERCENT if arbitrated and gpu.metered else None
    return Compute(
        gpu.limit_ppm / _PPM_OF_A_PERCENT,
        None if gpu.is_rough else percent,
        gpu.charged_ns,
        arbitrated,
        gpu.share_ppm / _PPM_OF_A_PERCENT,
        gpu.waits,
        gpu.throttled_ns,
        max(0, now - gpu.heartbeat_ns) if gpu.heartbeat_ns else None,
        gpu.heartbeat_ns,
        percent if gpu.is_rough else None,
    )
