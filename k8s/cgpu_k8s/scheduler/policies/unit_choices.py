"""Decides by a pod's ResourcePolicy where it may go, be bound and evict others, without I/O.

A pod that no policy selects costs one look-up of its namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.objects.policies import BEFORE_NEXT, MAX_ONLY
from cgpu_k8s.scheduler.allocation import Refusal
from cgpu_k8s.scheduler.policies.policy_records import UnitWait, make_policy_pod
from cgpu_k8s.scheduler.units import Attempt, choose_unit, has_node, read_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.objects.policies import ResourcePolicy
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
    from cgpu_k8s.scheduler.units import UnitChoice

UNIT = "unit"  # the code of a refusal: the policy does not allow the node now
SOON = 1.0  # seconds after which the next unit is tried if no pod could be evicted


def exclude_nodes(
    policies: PolicyCache,
    policy: ResourcePolicy | None,
    pod: Pod,
    names: Collection[str],
    now: float,
) -> dict[str, Refusal]:
    """Return which of the nodes with room for a pod are not in the unit in force, and why.

    Also record since when the pod has lacked room in units. ``now`` is in monotonic seconds.
    """
    if policy is None:
        return {}
    key, problem = read_key(policy, pod.labels)
    if key is None:
        return dict.fromkeys(names, Refusal(UNIT, problem))
    given = make_policy_pod(policies.get_pod(pod), policy)
    fitting = {name: policies.nodes.get(name, {}) for name in names}
    counts = policies.get_counts(policy).count_units(key, without=pod.uid)
    before = get_waits(policies, pod, policy)
    if policy.preempt == BEFORE_NEXT and pod.nominated:
        labels = policies.nodes.get(pod.nominated, {})
        before = {n: since for n, since in before.items() if not has_node(policy.units[n], labels)}
    choice = choose_unit(policy, counts, Attempt(given, now, before), fitting)
    # A call about the nominated node alone does not show that the unit lacks room elsewhere.
    if [*names] != [pod.nominated]:
        keep_wait(policies, pod, policy, choice, now)
    refusal = Refusal(UNIT, _describe_choice(policy, choice))
    return dict.fromkeys(fitting.keys() - set(choice.nodes), refusal)


def get_waits(policies: PolicyCache, pod: Pod, policy: ResourcePolicy) -> dict[int, float]:
    """Return since when a pod has lacked room in units of its policy, by the index of the unit."""
    wait = policies.waits.get(pod.uid)
    return dict(wait.units) if wait and wait.policy == policy else {}


def keep_wait(
    policies: PolicyCache, pod: Pod, policy: ResourcePolicy, choice: UnitChoice, now: float
) -> None:
    """Record in which units a pod lacked room, and when to try it again."""
    if choice.nodes and not choice.waits:
        policies.waits.pop(pod.uid, None)
        return
    held = choice.unit if not choice.nodes and choice.unit < len(policy.units) else None
    again = choice.again
    if held is not None and again is None and policy.preempt == BEFORE_NEXT:
        again = now + SOON
    policies.waits[pod.uid] = UnitWait(pod, policy, choice.waits, held, again)


def _describe_choice(policy: ResourcePolicy, choice: UnitChoice) -> str:
    """Return why nodes outside the unit in force are refused."""
    if not choice.nodes:
        return choice.reason
    outside = choice.unit == len(policy.units)
    which = "nodes outside all units are" if outside else f"unit {choice.unit + 1} is"
    text = choice.reason or f"ResourcePolicy {policy.name}:"
    return f"{text}{';' if choice.reason else ''} {which} in force"


def check_binding(policies: PolicyCache, pod: Pod, node: str) -> str:
    """Return why a pod may not be bound to a node now; "" if it may."""
    policy, promise = policies.find_policy(pod), policies.promised.get(pod.uid)
    if policy is None:
        return ""
    if promise and promise.sent:
        if promise.node == node or pod.asks_for_gpu:
            return ""  # it counts there; for pods with GPUs, the caller checks the node
        return f"the pod's binding to {promise.node} was sent, and its outcome is not known yet"
    if unlisted := policies.find_unlisted(pod.namespace):
        return unlisted
    if node not in policies.nodes:
        return "the node is not known yet"
    found = policies.find_open_unit(policy, pod, node)
    return found if isinstance(found, str) else ""


def list_candidates(
    policies: PolicyCache, pod: Pod, names: Collection[str], now: float
) -> list[str]:
    """Return the nodes that a pod's policy allows once other pods are evicted there."""
    policy = policies.find_policy(pod)
    if policy is None:
        return list(names)
    key, _ = read_key(policy, pod.labels)
    if key is None:
        return []
    labels = {name: policies.nodes.get(name, {}) for name in names}
    wait, before = policies.waits.get(pod.uid), get_waits(policies, pod, policy)
    if wait and wait.policy == policy and wait.held is not None:
        waits_idly = policy.preempt != BEFORE_NEXT and policy.next_policy != MAX_ONLY
        unit = policy.units[wait.held]
        return [] if waits_idly else [name for name in names if has_node(unit, labels[name])]
    counts = policies.get_counts(policy).count_units(key, without=pod.uid)
    given = make_policy_pod(policies.get_pod(pod), policy)
    return [*choose_unit(policy, counts, Attempt(given, now, before), labels).nodes]
