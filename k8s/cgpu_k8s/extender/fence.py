"""Whether our scheduler leads: no binding is sent for one that another may have replaced.

Renewals are timed by our own clock, when we see them: clocks of two machines may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.objects.fields import member

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json

PATIENCE = 10.0  # seconds; less than the leaseDuration after which others may take the lease


class Fence:
    """What is known of a scheduler's lease.

    Args:
        host: the host name of our scheduler: holders are called by it, ``_`` and a random UUID.

    Attributes:
        holder: who has the lease; "": nobody, or it is not known.
    """

    def __init__(self, host: str) -> None:
        self.holder = ""
        self._host = host
        self._renewal: object = None
        self._seen: float | None = None

    def lease(self, lease: Json, now: float) -> bool:
        """The lease was read; whether our scheduler leads since, and did not before."""
        spec = member(lease, "spec", dict)
        led, renewal = self.leads, (member(spec, "holderIdentity", str), spec.get("renewTime"))
        if self._renewal is not None and renewal != self._renewal:
            self._seen = now  # the first one may be old
        self._renewal, self.holder = renewal, renewal[0]
        return self.leads and not led

    def gone(self) -> None:
        """There is no lease."""
        self.holder, self._renewal, self._seen = "", ("", None), None

    @property
    def leads(self) -> bool:
        """Whether our scheduler had the lease when it was last seen."""
        return self.holder.startswith(f"{self._host}_")

    @property
    def begins(self) -> bool:
        """Whether our scheduler leads, and its first renewal is still to come: in seconds."""
        return self.leads and self._seen is None

    def problem(self, now: float) -> str:
        """Why nothing may be bound now; "": it may."""
        if not self.leads:
            return f"the scheduler on {self._host} does not lead, {self.holder or 'nobody'} does"
        if self._seen is None:
            return f"no renewal of the lease of {self.holder} has been seen yet"
        if now - self._seen > PATIENCE:
            return f"{self.holder} has not renewed its lease for {now - self._seen:.0f} s"
        return ""
