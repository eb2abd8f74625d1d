"""The labels and annotations that a pod gets by its ResourcePolicy: pure.

The cost of a pod's deletion is ours only where a second annotation has the same value: a user's own
value is left alone.
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
    """Return the labels and annotations that a pod gets with its binding, by what it was promised.

    None removes a label of another unit, as a binding that failed may have left it. Labels that the
    pod has already are left out.
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
    """Return the annotations for the cost of a pod's deletion; {}: the user has set one."""
    have = pod.annotations.get(DELETION_COST)
    if have is not None and have != pod.annotations.get(OWN_COST):
        return {}
    return {DELETION_COST: str(cost), OWN_COST: str(cost)}
