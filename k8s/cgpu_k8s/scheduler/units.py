"""Chooses the unit of a ResourcePolicy for a pod: pure functions of counts and nodes.

A pod counts in the first unit that takes it. A unit takes a pod if the pod's node is in the unit,
the pod has the unit's labels and annotations, and older pods leave room by ``max``. So two units
may have nodes in common, and the counts do not depend on the order of events.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.policies import (
    BEFORE_NEXT,
    ECS,
    LACK_AND_NO_TERMINATING,
    MAX_ONLY,
    PREFER,
    TIMEOUT_OR_MAX,
    match_labels,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cgpu_k8s.objects.policies import NodeUnit, ResourcePolicy

    Labels = Mapping[str, str]
    Key = tuple[str, ...]  # values of the labels in matchLabelKeys; each key is counted separately

VIRTUAL_NODE = ("type", "virtual-kubelet")  # a label that virtual nodes have
COST_STEP = 100  # difference between the deletion costs of two adjacent units
# In place of a time: the unit's pods are ending, or have ended so lately that kube-scheduler may
# not know of it and so offer no node of theirs.
ENDING = float("inf")
_PODS = "pods"


class PolicyPod(NamedTuple):
    """A pod as policies see it.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        labels: its labels, including those that its unit adds at its binding.
        annotations: its annotations, including those that its unit adds.
        requests: its requests, by resource.
        created: its creation time, as text that sorts by time.
        terminating: whether it is being deleted.
    """

    uid: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = {}
    requests: Mapping[str, Decimal] = {}
    created: str = ""
    terminating: bool = False


class UnitCount(NamedTuple):
    """The pods of one unit: how many count, what they request, and how many are being deleted."""

    pods: int = 0
    resources: Mapping[str, Decimal] = {}
    terminating: int = 0


class UnitChoice(NamedTuple):
    """The unit in force for a pod.

    Attributes:
        unit: the index of the unit; ``len(policy.units)`` for the nodes outside all units.
        nodes: the nodes of the unit that have room; () if the pod has to wait.
        reason: why earlier units, or all, were skipped, in one sentence.
        waits: since when the pod has lacked room in units, by the index of the unit; or ENDING.
        again: when to try the pod again even if nothing changes; None to try only after a change.
    """

    unit: int
    nodes: tuple[str, ...]
    reason: str
    waits: Mapping[int, float]
    again: float | None = None


class Attempt(NamedTuple):
    """An attempt to find nodes for a pod, or for several pods of a group together.

    Attributes:
        pod: the pod before its binding; of several pods the first, with the sum of their requests.
        now: the time in monotonic seconds.
        waits: the ``waits`` of the previous choice; {} if there was none.
        pods: the number of pods.
        fits: returns whether all pods together have room on nodes that each have room for one.
    """

    pod: PolicyPod
    now: float = 0.0
    waits: Mapping[int, float] = {}
    pods: int = 1
    fits: Callable[[Sequence[str]], bool] = bool


def has_node(unit: NodeUnit, labels: Labels) -> bool:
    """Return whether a node with these labels is in a unit."""
    name, value = VIRTUAL_NODE
    virtual = labels.get(name) == value
    return virtual == (unit.resource != ECS) and unit.nodes.items() <= labels.items()


def describe_overlap(names: Sequence[str]) -> str:
    """Return a sentence about the policies with these names, which select the same pod."""
    first, *others = names
    return f"ResourcePolicy {first} counts, and {', '.join(others)} select the same pod"


def read_key(policy: ResourcePolicy, labels: Labels) -> tuple[Key | None, str]:
    """Return the key under which a pod is counted, or None and a sentence if it lacks a label."""
    missing = [each for each in policy.keys if each not in labels]
    if missing:
        return None, (
            f"ResourcePolicy {policy.name}: matchLabelKeys has {missing[0]}, and the pod has no"
            " such label"
        )
    return tuple(labels[each] for each in policy.keys), ""


def find_limit(
    unit: NodeUnit, count: UnitCount, requests: Mapping[str, Decimal], pods: int = 1
) -> str:
    """Return the limit that more pods would exceed, "pods" or a resource; "" if they have room.

    ``requests`` is the sum of their requests.
    """
    if unit.most is not None and count.pods + pods > unit.most:
        return _PODS
    for name, most in sorted(unit.most_resources.items()):
        if name in requests and count.resources.get(name, Decimal(0)) + requests[name] > most:
            return name
    return ""


def choose_unit(
    policy: ResourcePolicy,
    counts: Sequence[UnitCount],
    attempt: Attempt,
    fitting: Mapping[str, Labels],
) -> UnitChoice:
    """Choose the unit that a pod goes to, or waits for.

    Args:
        policy: the policy that selects the pod.
        counts: the pods of each unit, for the pod's key and without the pod.
        attempt: the pod, and the time.
        fitting: the labels of the nodes that have room for the pod, by name.
    """
    pod, now, waits, reasons = attempt.pod, attempt.now, dict(attempt.waits), list[str]()
    several = attempt.pods > 1
    for number, unit in enumerate(policy.units):
        limit = find_limit(unit, counts[number], pod.requests, attempt.pods)
        if limit:
            more = f", and {attempt.pods} more are to come" * several
            reasons.append(_describe_limit(number, unit, counts[number], limit) + more)
            continue
        nodes = tuple(name for name, labels in fitting.items() if has_node(unit, labels))
        if nodes and attempt.fits(nodes):
            return UnitChoice(number, nodes, _join_reasons(policy, reasons), waits)
        is_first = number not in waits
        if policy.next_policy == LACK_AND_NO_TERMINATING and counts[number].terminating:
            waits[number] = ENDING
        since = waits.setdefault(number, now)
        held = _explain_hold(policy, unit, counts[number], now - since, is_first=is_first)
        lack = f"no room for all {attempt.pods}" if several else "no node with room"
        reasons.append(f"unit {number + 1} has {lack}" + held)
        if held:
            again = since + policy.timeout if policy.next_policy == TIMEOUT_OR_MAX else None
            if since == ENDING and not counts[number].terminating:
                again = now
            return UnitChoice(number, (), _join_reasons(policy, reasons), waits, again)
    rest = tuple(
        name
        for name, labels in fitting.items()
        if policy.strategy == PREFER and not any(has_node(unit, labels) for unit in policy.units)
    )
    if not (rest and attempt.fits(rest)):
        rest = ()
        outside = "no node outside has room" if policy.strategy == PREFER else "no other node may"
        reasons.append(outside)
    return UnitChoice(len(policy.units), rest, _join_reasons(policy, reasons), waits)


def find_open_unit(
    policy: ResourcePolicy, counts: Sequence[UnitCount], pod: PolicyPod, node: Labels
) -> int | str:
    """Return the index of the unit that takes a pod on a node, or why none does.

    Args:
        policy: the policy that selects the pod.
        counts: the pods of each unit, for the pod's key and without the pod.
        pod: the pod.
        node: the labels of the node.

    Returns:
        The index, ``len(policy.units)`` if the node is outside all units and the policy allows
            that, or a sentence.
    """
    reasons = []
    for number, unit in enumerate(policy.units):
        if has_node(unit, node):
            limit = find_limit(unit, counts[number], pod.requests)
            if not limit:
                return number
            reasons.append(_describe_limit(number, unit, counts[number], limit))
    if reasons or policy.strategy != PREFER:
        return _join_reasons(policy, reasons or ["the node is of no unit"])
    return len(policy.units)


def _explain_hold(
    policy: ResourcePolicy, unit: NodeUnit, count: UnitCount, waited: float, *, is_first: bool
) -> str:
    """Return why a pod waits for a unit without room; "" if it tries the next unit."""
    if policy.next_policy == MAX_ONLY and unit.is_limited:
        return ", and only its max leads on"
    if policy.next_policy == TIMEOUT_OR_MAX and waited < policy.timeout:
        return f", and the pod waits up to {policy.timeout:g} s for one"
    if waited == -ENDING:
        ending = f"{count.terminating} of its pods are ending"
        return f", and {ending if count.terminating else 'its last pod has just ended'}"
    if policy.preempt == BEFORE_NEXT and is_first:
        return ", and pods of lower priority are evicted first"
    return ""


def _describe_limit(number: int, unit: NodeUnit, count: UnitCount, limit: str) -> str:
    if limit == _PODS:
        return f"unit {number + 1} has {count.pods} of its {unit.most} pods"
    have, most = count.resources.get(limit, Decimal(0)), unit.most_resources[limit]
    return f"unit {number + 1} has {have:f} of its {most:f} of {limit}"


def _join_reasons(policy: ResourcePolicy, reasons: Sequence[str]) -> str:
    return f"ResourcePolicy {policy.name}: {'; '.join(reasons)}" if reasons else ""


def describe_unused(
    policy: ResourcePolicy, nodes: Iterable[Labels], pods: Iterable[Labels]
) -> list[str]:
    """Return a sentence for each unit without nodes, and one if the policy selects no pod."""
    known = list(nodes)
    found = [
        f"spec.units[{number}]: no node matches it"
        for number, unit in enumerate(policy.units)
        if not any(has_node(unit, labels) for labels in known)
    ]
    if not any(match_labels(policy.selector, labels) for labels in pods):
        found.append("spec.selector: it selects no pod of the namespace")
    return found
