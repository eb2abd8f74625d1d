"""The table of metrics for Prometheus, and how each is computed.

Names follow Prometheus' conventions: base units, ratios from 0 to 1, ``_total`` for counters.
``docs/metrics.md`` has the same table for people; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cgpu_env.version import VERSION
from cgpu_native.arbitration import Figures
from cgpu_node.shares.record import PodContainer
from cgpu_node.view.view import Compute, GpuTotals, GpuUse, Usage, Use
from cgpu_server.audit.snapshot import Snapshot

Sample = tuple[tuple[str, ...], float]

_NS = 1_000_000_000
_PERCENT = 100
_LONGEST_LABEL = 200

_GPU = ("gpu", "uuid")
_CONTAINER = ("id", "namespace", "pod", "container")
_SHARE = (*_CONTAINER, *_GPU)
# The metrics of a container that has whole GPUs, and therefore neither ledger nor arbiter.
_OF_WHOLE = {
    "memory_limit_bytes",
    "memory_used_bytes",
    "compute_limit_ratio",
    "compute_estimated_ratio",
}


class MetricsView(NamedTuple):
    """The figures that are exported.

    Attributes:
        usage: the description of the node; it has no GPUs if the driver does not answer.
        is_readable: whether the driver answers.
        refused: requests for memory that did not fit, by directory and the GPU's number.
        figures: the counters of each arbitration, by UUID.
        refresh_age: seconds since the server last read which containers live.
        audit: the audit's last snapshot.
        busy_ns: how long each GPU was busy, by UUID.
        pods: the pods' containers, by the container's id.
        host: the node's name in its cluster, or its host name.
    """

    usage: Usage
    is_readable: bool
    refused: Mapping[tuple[str, int], int]
    figures: Mapping[str, Figures]
    refresh_age: float
    audit: Snapshot
    busy_ns: Mapping[str, int]
    pods: Mapping[str, PodContainer]
    host: str


class Metric(NamedTuple):
    """A row of the table. ``samples`` returns values, each with the values of its labels."""

    name: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[MetricsView], Iterable[Sample]]

    @property
    def kind(self) -> str:
        """Return ``counter`` if its name says that it only grows; else ``gauge``."""
        return "counter" if self.name.endswith("_total") else "gauge"


def to_label(text: str) -> str:
    """Return ``text`` as a label's value: cut to a maximal length, and valid UTF-8."""
    return text[:_LONGEST_LABEL].encode("utf-8", "backslashreplace").decode()


def pod_labels(view: MetricsView, use: Use) -> tuple[str, ...]:
    """Return namespace, pod and container. If a container has no pod, its id is its name."""
    pod = view.pods.get(use.id)
    return tuple(
        map(to_label, (pod.namespace, pod.pod, pod.container) if pod else ("", "", use.id))
    )


def _container_labels(view: MetricsView, use: Use) -> tuple[str, ...]:
    """Return the values of ``_CONTAINER``."""
    return to_label(use.id), *pod_labels(view, use)


def _select_uses(view: MetricsView, name: str) -> Iterable[Use]:
    """Return the containers for which the metric ``name`` is known."""
    return (use for use in view.usage.uses if use.kind != "exclusive" or name in _OF_WHOLE)


def _node_metric(name: str, text: str, read: Callable[[MetricsView], float]) -> Metric:
    return Metric(f"cgpu_{name}", (), text, lambda view: [((), read(view))])


def _gpu_metric(
    name: str, text: str, read: Callable[[MetricsView, GpuTotals], float | None]
) -> Metric:
    def list_samples(view: MetricsView) -> Iterable[Sample]:
        for gpu in view.usage.gpus:
            value = read(view, gpu)
            if value is not None:
                yield (str(gpu.index), gpu.uuid), value

    return Metric(f"cgpu_gpu_{name}", _GPU, text, list_samples)


def _figure_metric(name: str, text: str, read: Callable[[Figures], float]) -> Metric:
    def read_value(view: MetricsView, gpu: GpuTotals) -> float | None:
        found = view.figures.get(gpu.uuid)
        return read(found) if found else None

    return _gpu_metric(f"arbiter_{name}", text, read_value)


def _container_metric(name: str, text: str, read: Callable[[Use], float]) -> Metric:
    def list_samples(view: MetricsView) -> Iterable[Sample]:
        return ((_container_labels(view, use), read(use)) for use in _select_uses(view, name))

    return Metric(f"cgpu_container_{name}", _CONTAINER, text, list_samples)


def _share_metric(
    name: str, text: str, read: Callable[[MetricsView, Use, int], float | None]
) -> Metric:
    def list_samples(view: MetricsView) -> Iterable[Sample]:
        for use in _select_uses(view, name):
            labels = _container_labels(view, use)
            for number, gpu in enumerate(use.gpus):
                value = read(view, use, number)
                if value is not None:
                    yield (*labels, str(gpu.index), gpu.uuid), value

    return Metric(f"cgpu_container_{name}", _SHARE, text, list_samples)


def _use_metric(name: str, text: str, read: Callable[[GpuUse], float | None]) -> Metric:
    return _share_metric(name, text, lambda _, use, number: read(use.gpus[number]))


def _compute_metric(name: str, text: str, read: Callable[[Compute], float | None]) -> Metric:
    return _use_metric(name, text, lambda its: its.compute and read(its.compute))


def _to_ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / _PERCENT


def _to_seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS


def _gpu_info(view: MetricsView) -> Iterable[Sample]:
    for gpu in view.usage.gpus:
        yield (str(gpu.index), gpu.uuid, to_label(gpu.name), to_label(view.usage.driver_version)), 1


def _container_info(view: MetricsView) -> Iterable[Sample]:
    for use in view.usage.uses:
        yield (*_container_labels(view, use), use.kind, to_label(use.name)), 1


def _list_marks(view: MetricsView) -> Iterable[Sample]:
    for use in view.usage.uses:
        for mark in dict.fromkeys(gpu.mark for gpu in use.gpus if gpu.mark is not None):
            yield (*_container_labels(view, use), mark), 1


METRICS: tuple[Metric, ...] = (
    Metric(
        *("cgpu_build_info", ("version",), "Always 1; which cgpu serves."),
        lambda _: [((VERSION,), 1)],
    ),
    _node_metric(
        "look_age_seconds",
        "Since cgpud last saw which containers live; it looks once a second.",
        lambda view: view.refresh_age,
    ),
    _node_metric(
        "driver_readable",
        "1 if the facts about driver and GPUs are known; else there are no metrics of GPUs.",
        lambda view: view.is_readable,
    ),
    Metric(
        *("cgpu_gpu_info", (*_GPU, "name", "driver_version"), "Always 1; what it is."), _gpu_info
    ),
    _gpu_metric(
        "lost",
        "1 if it does not answer, and is given to no container.",
        lambda _, gpu: gpu.lost is not None,
    ),
    _gpu_metric("memory_bytes", "The GPU's memory.", lambda _, gpu: gpu.total_bytes),
    _gpu_metric(
        "memory_promised_bytes",
        "Memory of the GPU that is promised: caps, or what is held above lowered ones.",
        lambda _, gpu: gpu.promised_bytes,
    ),
    _gpu_metric(
        "memory_used_bytes",
        "What containers hold of the GPU's memory.",
        lambda _, gpu: gpu.used_bytes,
    ),
    _gpu_metric(
        "memory_foreign_bytes",
        "What processes outside containers hold of it; absent if the driver does not report it, or"
        " a pod has the GPU whole.",
        lambda view, gpu: view.audit.foreign_bytes.get(gpu.uuid),
    ),
    _gpu_metric(
        "audit_readable",
        "1 while the driver reports how much each process holds; absent while the audit is off.",
        lambda view, gpu: view.audit.readable.get(gpu.uuid),
    ),
    _gpu_metric(
        "utilisation_ratio",
        "Part of its time in which any kernel ran, as the driver reports.",
        lambda _, gpu: _to_ratio(gpu.utilisation_percent),
    ),
    _gpu_metric(
        "busy_seconds_total",
        "The same, added up while there are containers and the audit asks the driver.",
        lambda view, gpu: _to_seconds(view.busy_ns.get(gpu.uuid)),
    ),
    _gpu_metric("containers", "Containers on the GPU.", lambda _, gpu: gpu.containers),
    _gpu_metric(
        "containers_max",
        "The rule `max_inst`: containers, and the sum of their weights, at most.",
        lambda _, gpu: gpu.max_inst,
    ),
    _gpu_metric(
        "policy", "The rule `policy`: number of the compute policy.", lambda _, gpu: gpu.policy
    ),
    _gpu_metric(
        "priority_ratio",
        "The rule `prio_ratio`: part of the time that high-priority containers may have.",
        lambda _, gpu: gpu.prio_ratio / _PERCENT,
    ),
    _figure_metric("steps_total", "Times that the GPU's arbiter looked.", lambda its: its.steps),
    _figure_metric("turns_total", "Gates that the GPU's arbiter opened.", lambda its: its.turns),
    _figure_metric(
        "expired_turns_total",
        "Turns taken from containers that gave no sign.",
        lambda its: its.expired,
    ),
    _figure_metric(
        "cpu_seconds_total", "CPU time of the arbiter's thread.", lambda its: its.cpu_ns / _NS
    ),
    Metric(
        *("cgpu_container_info", (*_CONTAINER, "kind", "name"), "Always 1; what it is."),
        _container_info,
    ),
    Metric(
        "cgpu_container_marked",
        (*_CONTAINER, "mark"),
        "Always 1; `mark` says what hinders reading its ledger: `locks`, `lease` or `ruined`.",
        _list_marks,
    ),
    _container_metric(
        "weight",
        "Weight among those that compute; 0: it shares what the others leave.",
        lambda use: use.weight,
    ),
    _container_metric("high_priority", "1 if its kernels go first.", lambda use: use.high_priority),
    _use_metric("memory_limit_bytes", "What it may hold: its cap.", lambda its: its.cap_bytes),
    _use_metric("memory_used_bytes", "What its processes hold.", lambda its: its.used_bytes),
    _use_metric(
        "memory_outside_bytes",
        "How much of that is not in its ledger, as the audit found.",
        lambda its: its.outside_bytes,
    ),
    _share_metric(
        "memory_bypasses_total",
        "Times that the audit found memory taken past cgpu.",
        lambda view, use, number: view.audit.bypasses.get((use.directory, number)),
    ),
    _share_metric(
        "memory_refused_total",
        "Requests for memory that did not fit.",
        lambda view, use, number: view.refused.get((use.directory, number)),
    ),
    _use_metric("processes", "Its processes that hold memory.", lambda its: len(its.processes)),
    _use_metric(
        "ledger_readable",
        "0 if its ledger cannot be read (lease, ruined): what it holds is not known.",
        lambda its: its.is_readable,
    ),
    _compute_metric(
        "compute_limit_ratio",
        "Part of the GPU's time that it may have while others compete; by weight it is a part of"
        " what high-priority containers leave.",
        lambda its: _to_ratio(its.limit_percent),
    ),
    _compute_metric(
        "compute_used_ratio",
        "Part that it had in the last second; absent while no arbiter measures or under policy 4.",
        lambda its: _to_ratio(its.measured_percent),
    ),
    _compute_metric(
        "compute_estimated_ratio",
        "Part that it had by an estimate, while no arbiter measures or under policy 4.",
        lambda its: _to_ratio(its.estimated_percent),
    ),
    _compute_metric(
        "compute_share_ratio",
        "Its own part of the time while no arbiter lives.",
        lambda its: _to_ratio(its.share_percent),
    ),
    _compute_metric(
        "compute_seconds_total",
        "GPU time that it used, or by the driver's utilisation while no arbiter measures.",
        lambda its: (its.charged_ns + its.estimated_ns) / _NS,
    ),
    _compute_metric(
        "compute_waits_total", "Times that it began to wait for its turn.", lambda its: its.waits
    ),
    _compute_metric(
        "compute_throttled_seconds_total",
        "Time for which it waited for its turn, with one thread or many.",
        lambda its: its.throttled_ns / _NS,
    ),
    _compute_metric(
        "compute_fallback",
        "1 while no arbiter gives it signs, and it keeps to its own part of the time.",
        lambda its: not its.arbitrated,
    ),
    _compute_metric(
        "arbiter_heartbeat_age_seconds",
        "Since the arbiter's last sign to it; absent if there was none.",
        lambda its: _to_seconds(its.heartbeat_age_ns),
    ),
)
