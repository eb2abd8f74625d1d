"""Counts the pods in the units of a policy, without I/O.

The pods of each key are counted one after the other, by creation time. Counts are updated in place
if a new pod is the youngest, or if removing a pod leaves the units of all others as they were. This
is nearly always so. Otherwise, all pods of the key are counted anew.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.objects.policies import match_labels
from cgpu_k8s.scheduler.units import COST_STEP, UnitCount, find_limit, has_node, read_key

if TYPE_CHECKING:
    from cgpu_k8s.objects.policies import ResourcePolicy
    from cgpu_k8s.scheduler.units import Key, Labels, PolicyPod


class _Counted(NamedTuple):
    pod: PolicyPod
    units: tuple[int, ...]  # indices of the units that its node and its labels allow
    counts: bool  # False if it is counted only as terminating


class _Tally:
    """The units of the pods of one key, and how many each unit has.

    Attributes:
        units: the index of each pod's unit, by UID; ``len(counts)`` if it is in no unit.
        counts: the count of each unit.
        outside: how many pods are in no unit.
    """

    def __init__(self, policy: ResourcePolicy) -> None:
        self.units: dict[str, int] = {}
        self.counts = [UnitCount() for _ in policy.units]
        self.outside = 0
        self._policy = policy
        self._last = ("", "")
        self._passed: set[int] = set()  # units that had no room for a pod on their nodes

    def append_pod(self, counted: _Counted) -> bool:
        """Count a pod if it is the youngest; return False if it is not."""
        order = _order_pod(counted)
        if order < self._last:
            return False
        self._last = order
        units, outside = self._policy.units, len(self._policy.units)
        number = first = counted.units[0] if counted.units else outside
        for unit in counted.units if counted.counts else ():
            if not find_limit(units[unit], self.counts[unit], counted.pod.requests):
                number = unit
                break
            self._passed.add(unit)
        else:
            number = first
        self.units[counted.pod.uid] = number
        if number < outside:
            self.counts[number] = _add_pod(self.counts[number], counted, 1)
        self.outside += number == outside
        return True

    def remove_pod(self, counted: _Counted) -> bool:
        """Stop counting a pod; return False if that could change the units of others."""
        left = self.count_without(counted)
        if left is None:
            return False
        number = self.units.pop(counted.pod.uid)
        self.outside -= number == len(self.counts)
        self.counts = left
        return True

    def count_without(self, counted: _Counted) -> list[UnitCount] | None:
        """Return the counts without a pod, or None if that could change the units of others."""
        number, counts = self.units[counted.pod.uid], [*self.counts]
        if number in self._passed:
            return None
        if number < len(counts):
            counts[number] = _add_pod(counts[number], counted, -1)
        return counts


def _order_pod(counted: _Counted) -> tuple[str, str]:
    return counted.pod.created, counted.pod.uid


class UnitCounts:
    """The pods of one policy that have a node or were promised one, and their units."""

    def __init__(self, policy: ResourcePolicy) -> None:
        self.policy = policy
        self._pods: dict[Key, dict[str, _Counted]] = {}
        self._keys: dict[str, Key] = {}
        self._tallies: dict[Key, _Tally] = {}  # created on demand

    def update_pod(self, pod: PolicyPod, node: Labels) -> None:
        """Add or replace a pod, which is on a node with these labels."""
        policy = self.policy
        key, _ = read_key(policy, pod.labels)
        if (
            key is None
            or pod.namespace != policy.namespace
            or not match_labels(policy.selector, pod.labels)
            or (policy.ignores_previous and pod.created < policy.created)
        ):
            self.remove_pod(pod.uid)
            return
        units = tuple(
            number
            for number, unit in enumerate(policy.units)
            if has_node(unit, node)
            and unit.labels.items() <= pod.labels.items()
            and unit.annotations.items() <= pod.annotations.items()
        )
        counts = not (pod.terminating and policy.ignores_terminating)
        counted = _Counted(pod, units, counts)
        if self._pods.get(key, {}).get(pod.uid) == counted:
            return
        self.remove_pod(pod.uid)
        self._keys[pod.uid] = key
        self._pods.setdefault(key, {})[pod.uid] = counted
        if key in self._tallies and not self._tallies[key].append_pod(counted):
            del self._tallies[key]

    def remove_pod(self, uid: str) -> None:
        """Remove a pod, if it is counted."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        counted = self._pods[key].pop(uid)
        if key in self._tallies and not self._tallies[key].remove_pod(counted):
            del self._tallies[key]
        if not self._pods[key]:
            del self._pods[key]

    def assign_units(self, key: Key) -> dict[str, int]:
        """Return the index of the unit of each pod of a key, by UID.

        The index is the number of units if the pod is in none.
        """
        return self._get_tally(key).units

    def count_units(self, key: Key, without: str = "") -> tuple[UnitCount, ...]:
        """Return the count of each unit for the pods of a key, without the pod ``without``."""
        tally, counted = self._get_tally(key), self._pods.get(key, {}).get(without)
        if counted is None:
            return tuple(tally.counts)
        return tuple(tally.count_without(counted) or self._make_tally(key, without).counts)

    def list_costs(self) -> dict[str, int]:
        """Return the deletion cost of each pod, by UID.

        The cost falls from unit to unit, and is 0 outside all. A controller that scales in deletes
        the pods with the least cost first.
        """
        last = len(self.policy.units)
        return {
            uid: COST_STEP * (last - unit)
            for key in self._pods
            for uid, unit in self.assign_units(key).items()
        }

    def sum_units(self) -> list[int]:
        """Return the number of pods in each unit, over all keys, and then of those outside."""
        sums = [0] * (len(self.policy.units) + 1)
        for key in self._pods:
            tally = self._get_tally(key)
            for number, count in enumerate(tally.counts):
                sums[number] += count.pods
            sums[-1] += tally.outside
        return sums

    def _get_tally(self, key: Key) -> _Tally:
        if key not in self._pods:
            return _Tally(self.policy)
        if key not in self._tallies:
            self._tallies[key] = self._make_tally(key)
        return self._tallies[key]

    def _make_tally(self, key: Key, without: str = "") -> _Tally:
        tally = _Tally(self.policy)
        pods = [each for uid, each in self._pods.get(key, {}).items() if uid != without]
        for each in sorted(pods, key=_order_pod):
            tally.append_pod(each)
        return tally


def _add_pod(count: UnitCount, counted: _Counted, sign: int) -> UnitCount:
    """Return a count with one pod more (``sign`` 1) or less (-1)."""
    gone = count.terminating + sign * counted.pod.terminating
    if not counted.counts:
        return count._replace(terminating=gone)
    sums = dict(count.resources)
    for name, amount in counted.pod.requests.items():
        sums[name] = sums.get(name, Decimal(0)) + sign * amount
    used = {name: amount for name, amount in sums.items() if amount}
    return UnitCount(count.pods + sign, used, gone)
