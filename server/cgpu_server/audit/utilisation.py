"""The use of GPUs by the driver's own figure. If no arbiter measures, there is no other figure.

A container's figure is an estimate: if the container is alone on the GPU, the GPU's figure, else
the sum of its processes' figures.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from cgpu_node.shares.record import Record
from cgpu_node.view.view import Compute, GpuUse, Use
from cgpu_server.audit.snapshot import Snapshot
from cgpu_server.audit.verdict import Tenant
from cgpu_server.state.limits import is_measured

_NS = 1_000_000_000
_PERCENT = 100


class Utilisation:
    """Sums up ``snapshot`` over time. Other threads may read it; they see complete tables only.

    Attributes:
        busy_ns: how long each GPU was busy while it had containers, by UUID.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._snapshot, self._clock = snapshot, clock
        self._counted_at: float | None = None
        self._estimated_ns: dict[Tenant, int] = {}
        self.busy_ns: dict[str, int] = {}

    def count(self, records: Iterable[Record]) -> None:
        """Add the time since the last call, and forget containers that are gone."""
        now = self._clock()
        passed = 0.0 if self._counted_at is None else now - self._counted_at
        self._counted_at = now
        last, estimated_ns = self._snapshot(), {}
        busy = {u: round(each * passed * _NS / _PERCENT) for u, each in last.utilisation.items()}
        self.busy_ns = {**self.busy_ns, **{u: self.busy_ns.get(u, 0) + n for u, n in busy.items()}}
        gpus = [(r, number, gpu.uuid) for r in records for number, gpu in enumerate(r.gpus)]
        estimates = _estimate_percents(
            last, [((r.directory, number), uuid) for r, number, uuid in gpus]
        )
        for record, number, _ in gpus:
            key = record.directory, number
            estimated_ns[key] = self._estimated_ns.get(key, 0)
            if key in estimates and not is_measured(record, number):
                estimated_ns[key] += round(estimates[key] * passed * _NS / _PERCENT)
        self._estimated_ns = estimated_ns

    def add_estimates(self, uses: Iterable[Use]) -> list[Use]:
        """Return the ``uses`` with an estimate for each container that no arbiter measures."""
        uses = list(uses)
        gpus = [
            ((u.directory, number), gpu.uuid) for u in uses for number, gpu in enumerate(u.gpus)
        ]
        estimates = _estimate_percents(self._snapshot(), gpus)

        def estimate_compute(directory: str, number: int, gpu: GpuUse) -> Compute | None:
            compute = gpu.compute
            if compute is None:
                return None
            estimate = compute.estimated_percent
            if estimate is None and compute.measured_percent is None:
                estimate = estimates.get((directory, number))
            return compute._replace(
                estimated_percent=None if estimate is None else float(estimate),
                estimated_ns=self._estimated_ns.get((directory, number), 0),
            )

        return [
            use._replace(
                gpus=tuple(
                    gpu._replace(compute=estimate_compute(use.directory, number, gpu))
                    for number, gpu in enumerate(use.gpus)
                )
            )
            for use in uses
        ]


def _estimate_percents(last: Snapshot, gpus: Sequence[tuple[Tenant, str]]) -> dict[Tenant, int]:
    """Return the percent: the GPU's for a container alone on it, else the sum of its processes."""
    containers = Counter(uuid for _, uuid in gpus)
    found = {
        key: last.shares.get(key)
        if last.is_shared(uuid, containers[uuid])
        else last.utilisation.get(uuid)
        for key, uuid in gpus
    }
    return {key: percent for key, percent in found.items() if percent is not None}
