"""Finds room for groups of pods in the units of their ResourcePolicies, without I/O.

The pods of a group that one policy counts under one key go to one unit: the first whose ``max`` and
nodes have room for all of them. No pod is evicted for a group, so a group does not wait for
evictions in each unit.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.policies import AFTER_ALL
from cgpu_k8s.scheduler.gangs import place_members
from cgpu_k8s.scheduler.policies.policy_records import make_policy_pod
from cgpu_k8s.scheduler.policies.unit_choices import get_waits, keep_wait
from cgpu_k8s.scheduler.units import Attempt, choose_unit, read_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.objects.policies import ResourcePolicy
    from cgpu_k8s.scheduler.gangs import Member, Room, Spot
    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
    from cgpu_k8s.scheduler.units import Key, UnitChoice


class _Together(NamedTuple):
    """Pods of a group that one policy counts under one key, the oldest first."""

    policy: ResourcePolicy
    key: Key
    pods: list[Pod]
    members: list[Member]

    def narrow(self, nodes: Sequence[str]) -> list[Member]:
        """Return the members, restricted to those of their nodes that are in ``nodes``."""
        sets = {each.nodes for each in self.members}
        narrowed = {every: every.intersection(nodes) for every in sets}
        return [each._replace(nodes=narrowed[each.nodes]) for each in self.members]


def place_in_units(
    policies: PolicyCache, members: Sequence[Member], rooms: Sequence[Room], now: float
) -> dict[str, Spot] | str:
    """Find room for all pods of a group together, each in a unit of its policy.

    Args:
        policies: the policies of the cluster.
        members: the pods, the oldest first.
        rooms: the room that each node has.
        now: the time in monotonic seconds.

    Returns:
        Each pod's node and GPUs, by the pod's UID, or a sentence on why there is no room.
    """
    led: list[Member] = []
    counted: dict[tuple[str, Key], _Together] = {}
    for member in members:
        pod, policy = policies.find_counted(member.uid)
        if pod is None or policy is None:
            led.append(member)
            continue
        key, problem = read_key(policy, pod.labels)
        if key is None:
            return problem
        together = counted.setdefault((policy.name, key), _Together(policy, key, [], []))
        together.pods.append(pod)
        together.members.append(member)
    for each in counted.values():
        choice = _choose_unit(policies, each, partial(_have_room, rooms, [*led], each), now)
        if not choice.nodes:
            return choice.reason
        led += each.narrow(choice.nodes)
    return place_members(led, rooms)


def _have_room(
    rooms: Sequence[Room], led: Sequence[Member], together: _Together, nodes: Sequence[str]
) -> bool:
    """Return whether ``together`` has room on these nodes, besides the members in ``led``."""
    return not isinstance(place_members([*led, *together.narrow(nodes)], rooms), str)


def _choose_unit(
    policies: PolicyCache, together: _Together, fits: Callable[[Sequence[str]], bool], now: float
) -> UnitChoice:
    policy, first = together.policy._replace(preempt=AFTER_ALL), together.pods[0]
    given = [make_policy_pod(pod, policy) for pod in together.pods]
    sums: dict[str, Decimal] = {}
    for name, amount in (item for each in given for item in each.requests.items()):
        sums[name] = sums.get(name, Decimal(0)) + amount
    waits = get_waits(policies, first, policy)
    attempt = Attempt(given[0]._replace(requests=sums), now, waits, len(given), fits)
    allowed = frozenset[str]().union(*{each.nodes for each in together.members})
    fitting = {name: policies.nodes.get(name, {}) for name in allowed}
    counts = policies.get_counts(together.policy).count_units(together.key)
    choice = choose_unit(policy, counts, attempt, fitting)
    keep_wait(policies, first, policy, choice, now)
    return choice
