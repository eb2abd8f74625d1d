"""The same under the names and labels of NVIDIA's exporter (DCGM), for dashboards that ask for it.

As there, a GPU with containers has a sample for each of them, and any other GPU has one. A
container's has what that container holds and may hold, and its part of the GPU's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_env.values import MIB
from cgpu_server.metrics.table import Metric, label, pod_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cgpu_node.view.view import GpuTotals, GpuUse
    from cgpu_server.metrics.table import MetricsView, Sample

_LABELS = ("gpu", "UUID", "modelName", "Hostname", "namespace", "pod", "container")


def _metric(
    name: str,
    text: str,
    of_container: Callable[[GpuUse], float | None],
    of_gpu: Callable[[MetricsView, GpuTotals], float | None],
) -> Metric:
    def samples(view: MetricsView) -> Iterable[Sample]:
        for gpu in view.usage.gpus:
            which = (str(gpu.index), gpu.uuid, label(gpu.name), label(view.host))
            uses = view.usage.on(gpu.uuid)
            found = [(pod_labels(view, use), of_container(its)) for use, its in uses]
            for names, value in found if uses else [(("", "", ""), of_gpu(view, gpu))]:
                if value is not None:
                    yield (*which, *names), value

    return Metric(f"DCGM_FI_DEV_{name}", "gauge", _LABELS, text, samples)


def _percent(its: GpuUse) -> float | None:
    compute = its.compute
    if compute is None or compute.measured_percent is not None:
        return compute and compute.measured_percent
    return compute.estimated_percent


def _used(view: MetricsView, gpu: GpuTotals) -> float | None:
    used = view.audit.used_bytes.get(gpu.uuid)
    return None if used is None else used / MIB


def _free(view: MetricsView, gpu: GpuTotals) -> float | None:
    used = _used(view, gpu)
    return None if used is None else gpu.total_bytes / MIB - used


DCGM: tuple[Metric, ...] = (
    _metric("FB_USED", "Memory used (in MiB).", lambda its: its.used_bytes / MIB, _used),
    _metric("FB_FREE", "Memory free (in MiB).", lambda its: its.free_bytes / MIB, _free),
    _metric(
        "GPU_UTIL",
        "Utilisation of the GPU (in %).",
        _percent,
        lambda _, gpu: gpu.utilisation_percent,
    ),
)
