"""How busy GPUs are by the driver's own figure: all there is where nobody measures.

It is the GPU's, not a container's: of one that has the GPU to itself it is an estimate.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cgpu_server.pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cgpu_hook.record import Record
    from cgpu_hook.view import Compute, GpuUse, Use
    from cgpu_server.audit import Look

    Place = tuple[str, int]  # a container's directory, and which of its GPUs

_NS = 1_000_000_000
_PERCENT = 100


class Utilisation:
    """Adds up what ``look`` says; read by other threads, which see whole tables only.

    Attributes:
        busy_ns: for how long each GPU was busy while it had containers, by UUID.
    """

    def __init__(
        self, look: Callable[[], Look] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._counted: float | None = None
        self._alone_ns: dict[Place, int] = {}
        self.busy_ns: dict[str, int] = {}

    def percent(self) -> Mapping[str, int]:
        """Of each GPU's time, by UUID, as the audit last saw it."""
        look = self._seen()
        return look.utilisation if look else {}

    def count(self, records: Iterable[Record]) -> None:
        """Add what has passed since the last call; a container that is gone is forgotten."""
        now = self._clock()
        passed = 0.0 if self._counted is None else now - self._counted
        self._counted = now
        look, alone_ns = self._seen(), {}
        percent = look.utilisation if look else {}
        busy = {uuid: round(each * passed * _NS / _PERCENT) for uuid, each in percent.items()}
        self.busy_ns = {**self.busy_ns, **{u: self.busy_ns.get(u, 0) + n for u, n in busy.items()}}
        places = [(r, place, gpu.uuid) for r in records for place, gpu in enumerate(r.gpus)]
        alone = _alone(look, (uuid for _, _, uuid in places))
        for record, place, uuid in places:
            key = record.directory, place
            alone_ns[key] = self._alone_ns.get(key, 0)
            if uuid in alone and not _is_measured(record, place):
                alone_ns[key] += busy[uuid]
        self._alone_ns = alone_ns

    def estimated(self, uses: Iterable[Use]) -> list[Use]:
        """All containers of the node, with estimates for those that have a GPU to themselves."""
        uses, look = list(uses), self._seen()
        alone = _alone(look, (gpu.uuid for use in uses for gpu in use.gpus))

        def of(directory: str, place: int, gpu: GpuUse) -> Compute | None:
            its = gpu.compute
            if its is None:
                return None
            estimate = its.estimated_percent
            if estimate is None and its.measured_percent is None:
                estimate = alone.get(gpu.uuid)
            return its._replace(
                estimated_percent=None if estimate is None else float(estimate),
                estimated_ns=self._alone_ns.get((directory, place), 0),
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

    def _seen(self) -> Look | None:
        """What the audit saw last; the next call may give what it has seen since."""
        return self._look() if self._look else None


def _alone(look: Look | None, uuids: Iterable[str]) -> dict[str, int]:
    """Percent of the GPUs that have one container, and are known to have nobody else's process."""
    if look is None:
        return {}
    there = list(uuids)
    return {
        uuid: percent
        for uuid, percent in look.utilisation.items()
        if there.count(uuid) == 1 and look.told.get(uuid) and not look.foreign_bytes.get(uuid)
    }


def _is_measured(record: Record, place: int) -> bool:
    pages, _ = pages_of(record)
    return place < len(pages) and bool(pages[place].metered)
