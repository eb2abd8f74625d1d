"""Finds nodes for pods without GPUs that a ResourcePolicy selects: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.scheduler.allocation import Refusal
from cgpu_k8s.scheduler.placing import NOT_KNOWN, SENT, FeasibleNodes
from cgpu_k8s.scheduler.policies.unit_choices import exclude_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache


def find_unit_nodes(
    policies: PolicyCache, pod: Pod, names: Iterable[str], now: float
) -> FeasibleNodes:
    """Find the nodes of the unit in force, and count the pod in it; none of them is preferred.

    Args:
        policies: of which one selects the pod.
        pod: the pod.
        names: the nodes that have room for it.
        now: the time, by a clock in seconds that never goes back.
    """
    promise = policies.promised.get(pod.uid)
    if promise and promise.sent:  # its binding may have been carried out
        named = [*names]
        here = [name for name in named if name == promise.node]
        text = f"the pod's binding to {promise.node} was sent, and its outcome is not known yet"
        refused = {name: Refusal(SENT, text) for name in named if name != promise.node}
        return FeasibleNodes(here, refused, "")
    policies.forget_pod(pod.uid)
    open_to, refused = list[str](), dict[str, Refusal]()
    for name in names:
        if name in policies.nodes:
            open_to.append(name)
        else:
            refused[name] = NOT_KNOWN
    refused.update(exclude_nodes(policies, pod, open_to, now))
    fitting = [name for name in open_to if name not in refused]
    if fitting:
        policies.assume_pod(pod, fitting[0], now)
    return FeasibleNodes(fitting, refused, "")
