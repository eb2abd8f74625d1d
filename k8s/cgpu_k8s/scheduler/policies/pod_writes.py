"""Pure functions that return the labels and annotations that a pod gets by its ResourcePolicy.

A second annotation repeats the deletion cost that cgpu writes. If the two differ, the user has set
the cost, and it is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.names import DELETION_COST, OWN_COST
from cgpu_k8s.scheduler.units import COST_STEP

if TYPE_CHECKING:
    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache


def list_unit_writes(
    policies: PolicyCache, uid: str
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the labels and annotations that a pod gets with its binding, according to its promise.

    None as a value removes a label of another unit, which a failed binding may have left. Labels
    that the pod already has are left out.
    """
    promise = policies.promised.get(uid)
    policy = policies.find_policy(promise.pod) if promise else None
    if promise is None or policy is None:
        return {}, {}
    pod, unit = policies.get_pod(promise.pod), promise.unit
    others = {item for each in policy.units for item in each.labels.items()}
    labels: dict[str, str | None] = {
        name: None for name, value in others if pod.labels.get(name) == value
    }
    labels.update(unit.labels if unit else {})
    number = policy.units.index(unit) if unit in policy.units else len(policy.units)
    cost = write_cost(pod, COST_STEP * (len(policy.units) - number))
    return (
        {name: value for name, value in labels.items() if pod.labels.get(name) != value},
        {**(unit.annotations if unit else {}), **cost},
    )


def write_cost(pod: Pod, cost: int) -> dict[str, str]:
    """Return the annotations for a pod's deletion cost; {} if the user has set one."""
    have = pod.annotations.get(DELETION_COST)
    if have is not None and have != pod.annotations.get(OWN_COST):
        return {}
    return {DELETION_COST: str(cost), OWN_COST: str(cost)}
