"""Metrics under the names and labels of NVIDIA's exporter (DCGM), which some dashboards need.

As there, a GPU with containers has a sample for each container, and any other GPU has one sample. A
container's samples show what it holds and may hold, and its part of the GPU's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cgpu_env.values import MIB
from cgpu_node.view.view import GpuTotals, GpuUse
from cgpu_server.metrics.table import Metric, MetricsView, Sample, pod_labels, to_label

_LABELS = ("gpu", "UUID", "modelName", "Hostname", "namespace", "pod", "container")


def _make_metric(
    name: str,
    text: str,
    of_container: Callable[[GpuUse], float | None],
    of_gpu: Callable[[MetricsView, GpuTotals], float | None],
) -> Metric:
    def list_samples(view: MetricsView) -> Iterable[Sample]:
        for gpu in view.usage.gpus:
            which = (str(gpu.index), gpu.uuid, to_label(gpu.name), to_label(view.host))
            uses = view.usage.uses_on_gpu(gpu.uuid)
            found = [(pod_labels(view, use), of_container(its)) for use, its in uses]
            for names, value in found if uses else [(("", "", ""), of_gpu(view, gpu))]:
                if value is not None:
                    yield (*which, *names), value

    return Metric(f"DCGM_FI_DEV_{name}", _LABELS, text, list_samples)


def _read_percent(its: GpuUse) -> float | None:
    compute = its.compute
    if compute is None or compute.measured_percent is not None:
        return compute and compute.measured_percent
    return compute.estimated_percent


def _read_used(view: MetricsView, gpu: GpuTotals) -> float | None:
    used = view.audit.used_bytes.get(gpu.uuid)
    return None if used is None else used / MIB


def _read_free(view: MetricsView, gpu: GpuTotals) -> float | None:
    used = _read_used(view, gpu)
    return None if used is None else gpu.total_bytes / MIB - used


DCGM: tuple[Metric, ...] = (
    _make_metric("FB_USED", "Memory used (in MiB).", lambda its: its.used_bytes / MIB, _read_used),
    _make_metric("FB_FREE", "Memory free (in MiB).", lambda its: its.free_bytes / MIB, _read_free),
    _make_metric(
        "GPU_UTIL",
        "Utilisation of the GPU (in %).",
        _read_percent,
        lambda _, gpu: gpu.utilisation_percent,
    ),
)
