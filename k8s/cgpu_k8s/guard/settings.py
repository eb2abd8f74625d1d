"""What the rules of the guard need to know of a cluster."""

from __future__ import annotations

from typing import NamedTuple

from cgpu_k8s import names


class Settings(NamedTuple):
    """What differs between clusters.

    Attributes:
        accounts: the users that write decisions, such as
            ``system:serviceaccount:cgpu-system:cgpu-scheduler``.
        schedulers: the values of ``schedulerName`` whose schedulers ask cgpu.
    """

    accounts: tuple[str, ...]
    schedulers: tuple[str, ...] = names.SCHEDULERS
