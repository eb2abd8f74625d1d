"""How busy GPUs are by the driver's own figure: all there is where nobody measures.

A container's is an estimate: the GPU's, if it has that to itself, else what its processes had.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from cgpu_server.state.limits import is_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cgpu_node.shares.record import Record
    from cgpu_node.view.view import Compute, GpuUse, Use
    from cgpu_server.audit.snapshot import Look

    Place = tuple[str, int]  # a container's directory, and which of its GPUs

_NS = 1_000_000_000
_PERCENT = 100


class Utilisation:
    """Adds up what ``look`` says; read by other threads, which see whole tables only.

    Attributes:
        busy_ns: for how long each GPU was busy while it had containers, by UUID.
    """

    def __init__(
        self, look: Callable[[], Look], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._counted: float | None = None
        self._estimated_ns: dict[Place, int] = {}
        self.busy_ns: dict[str, int] = {}

    def percent(self) -> Mapping[str, int]:
        """Of each GPU's time, by UUID, as the audit last saw it."""
        return self._look().utilisation

    def count(self, records: Iterable[Record]) -> None:
        """Add what has passed since the last call; a container that is gone is forgotten."""
        now = self._clock()
        passed = 0.0 if self._counted is None else now - self._counted
        self._counted = now
        look, estimated_ns = self._look(), {}
        busy = {u: round(each * passed * _NS / _PERCENT) for u, each in look.utilisation.items()}
        self.busy_ns = {**self.busy_ns, **{u: self.busy_ns.get(u, 0) + n for u, n in busy.items()}}
        places = [(r, place, gpu.uuid) for r in records for place, gpu in enumerate(r.gpus)]
        estimates = _estimates(look, [((r.directory, place), uuid) for r, place, uuid in places])
        for record, place, _ in places:
            key = record.directory, place
            estimated_ns[key] = self._estimated_ns.get(key, 0)
            if key in estimates and not is_measured(record, place):
                estimated_ns[key] += round(estimates[key] * passed * _NS / _PERCENT)
        self._estimated_ns = estimated_ns

    def estimated(self, uses: Iterable[Use]) -> list[Use]:
        """All containers of the node, with estimates for those that nobody measures."""
        uses = list(uses)
        there = [((u.directory, i), gpu.uuid) for u in uses for i, gpu in enumerate(u.gpus)]
        estimates = _estimates(self._look(), there)

        def of(directory: str, place: int, gpu: GpuUse) -> Compute | None:
            its = gpu.compute
            if its is None:
                return None
            estimate = its.estimated_percent
            if estimate is None and its.measured_percent is None:
                estimate = estimates.get((directory, place))
            return its._replace(
                estimated_percent=None if estimate is None else float(estimate),
                estimated_ns=self._estimated_ns.get((directory, place), 0),
            )

        return [
            use._replace(
                gpus=tuple(
                    gpu._replace(compute=of(use.directory, place, gpu))
                    for place, gpu in enumerate(use.gpus)
                )
            )
            for use in uses
        ]


def _estimates(look: Look, there: Sequence[tuple[Place, str]]) -> dict[Place, int]:
    """Percent by container and place: the GPU's of one alone, else what its processes had."""
    counts = Counter(uuid for _, uuid in there)
    found = {
        key: look.shares.get(key)
        if look.is_shared(uuid, counts[uuid])
        else look.utilisation.get(uuid)
        for key, uuid in there
    }
    return {key: percent for key, percent in found.items() if percent is not None}
