"""The settings of the guard's rules."""

from __future__ import annotations

from typing import NamedTuple

from cgpu_k8s import names


class Settings(NamedTuple):
    """Settings that differ between clusters.

    Attributes:
        accounts: the users that write decisions, such as
            ``system:serviceaccount:cgpu-system:cgpu-scheduler``.
        agent: the service account of the agents of all nodes.
        schedulers: the values of ``schedulerName`` whose schedulers ask cgpu's extender. Pods that
            name none get the first.
        runtime_class: the ``runtimeClassName`` that pods without one get; "" if they get none.
    """

    accounts: tuple[str, ...]
    agent: str
    schedulers: tuple[str, ...] = names.SCHEDULERS
    runtime_class: str = ""
