"""The cache of the cluster's ResourcePolicies, and of the pods that they count.

Like the scheduler's cache, which passes its events on, the cache is pure: its state follows from
events. Only pods of namespaces that have a policy are kept. A pod counts in its unit as soon as an
answer promises it a node, so the next answer takes it into account. Design:
docs/design/coscheduling.md.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from cgpu_k8s.objects.policies import match_labels
from cgpu_k8s.scheduler.policies.policy_records import Promise, make_policy_pod
from cgpu_k8s.scheduler.policies.unit_counts import UnitCounts
from cgpu_k8s.scheduler.units import find_open_unit, read_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.objects.policies import ResourcePolicy
    from cgpu_k8s.scheduler.policies.policy_records import KnownPolicy, UnitWait

    Labels = Mapping[str, str]


class PolicyCache:
    """The policies and their pods.

    Args:
        report_room: is called when pods that were refused may have room.

    Attributes:
        report_room: as above.
        known: the policies, by namespace and name.
        nodes: the labels of nodes, by the node's name.
        pods: the pods of namespaces with policies that have not ended, by namespace and UID.
        promised: the pods that were promised a node, by UID.
        waits: the pods that lack room, by UID.
        changed: the namespaces with policies in which something has changed. The reader removes
            them.
        leads_all: whether kube-scheduler also asks about pods without GPUs.
    """

    def __init__(self, report_room: Callable[[], None] = lambda: None) -> None:
        self.known: dict[str, dict[str, KnownPolicy]] = {}
        self.nodes: dict[str, Labels] = {}
        self.pods: dict[str, dict[str, Pod]] = {}
        self.promised: dict[str, Promise] = {}
        self.waits: dict[str, UnitWait] = {}
        self.changed: set[str] = set()
        self.leads_all = True
        self.report_room = report_room
        # The valid policies of a namespace, and those of them that select a pod, by UID. The oldest
        # is the first, and is the one that counts the pod.
        self._ordered: dict[str, list[ResourcePolicy]] = {}
        self._selecting: dict[str, list[ResourcePolicy]] = {}
        self._namespaces: dict[str, str] = {}  # of pods, by UID
        self._counts: dict[tuple[str, str], UnitCounts] = {}  # created on demand
        # Namespaces whose pods are yet to be listed, and the UIDs of pods removed meanwhile.
        self._unlisted: dict[str, set[str]] = {}

    def is_led(self, pod: Pod) -> bool:
        """Return whether kube-scheduler asks the extender about a pod of its profiles."""
        return self.leads_all or pod.request is not None or bool(pod.refusal)

    def update_policy(self, policy: KnownPolicy) -> None:
        """Add or update a policy."""
        namespace = policy.namespace
        if namespace not in self.known:
            self.known[namespace], self.pods[namespace] = {}, {}
            self._unlisted[namespace] = set()
        before = self.known[namespace].get(policy.name)
        if before and (before.policy, before.problem) == (policy.policy, policy.problem):
            # Only the status is new. Keep the old content, which counts refer to by identity.
            self.known[namespace][policy.name] = policy._replace(policy=before.policy)
            return
        self.known[namespace][policy.name] = policy
        self._exchange_policies(namespace, before and before.policy, policy.policy)

    def remove_policy(self, namespace: str, name: str) -> None:
        """Remove a policy, and forget the pods of its namespace if it was the last one there."""
        removed = self.known.get(namespace, {}).pop(name, None)
        if removed is None:
            return
        self._exchange_policies(namespace, removed.policy, None)
        if not self.known[namespace]:
            for uid in [*self.pods[namespace], *self._list_promised(namespace)]:
                for kept in (self._selecting, self._namespaces, self.promised):
                    kept.pop(uid, None)
            del self.known[namespace], self.pods[namespace], self._ordered[namespace]
            self._unlisted.pop(namespace, None)
            self.changed.discard(namespace)

    def replace_policies(self, policies: Iterable[KnownPolicy]) -> None:
        """Replace all policies by these."""
        found = {(each.namespace, each.name): each for each in policies}
        for each in [each for names in self.known.values() for each in names.values()]:
            if (each.namespace, each.name) not in found:
                self.remove_policy(each.namespace, each.name)
        for each in found.values():
            self.update_policy(each)
        self.changed |= self.known.keys()

    def _exchange_policies(
        self, namespace: str, before: ResourcePolicy | None, after: ResourcePolicy | None
    ) -> None:
        """Replace a policy by another one, and retry the pods that wait.

        Only this policy is matched anew: a namespace may have many policies and many pods.
        """
        self._counts = {key: each for key, each in self._counts.items() if key[0] != namespace}
        valid = (each.policy for each in self.known[namespace].values() if each.policy)
        self._ordered[namespace] = sorted(valid, key=_order_policy)
        promised = {uid: self.promised[uid].pod for uid in self._list_promised(namespace)}
        for uid, pod in {**promised, **self.pods[namespace]}.items():
            found = [each for each in self._selecting.get(uid, ()) if each is not before]
            if after and match_labels(after.selector, pod.labels):
                insort(found, after, key=_order_policy)
            self._selecting[uid] = found
        for uid, wait in self.waits.items():
            if wait.pod.namespace == namespace:
                self.waits[uid] = wait._replace(again=0.0)
        self.changed.add(namespace)
        self.report_room()

    def find_overlaps(self, namespace: str) -> set[tuple[str, ...]]:
        """Return the names of the policies that select the same pod, for each such set of them."""
        selecting = (self._selecting.get(uid, ()) for uid in self.pods.get(namespace, {}))
        return {tuple(each.name for each in found) for found in selecting if len(found) > 1}

    def _list_promised(self, namespace: str) -> list[str]:
        return [uid for uid, each in self.promised.items() if each.pod.namespace == namespace]

    def find_policy(self, pod: Pod) -> ResourcePolicy | None:
        """Return the policy that counts a pod, or None if no policy selects it."""
        ordered = self._ordered.get(pod.namespace, ())
        return next((each for each in ordered if match_labels(each.selector, pod.labels)), None)

    def _list_selecting(self, pod: Pod) -> list[ResourcePolicy]:
        ordered = self._ordered.get(pod.namespace, ())
        return [each for each in ordered if match_labels(each.selector, pod.labels)]

    def find_counted(self, uid: str) -> tuple[Pod | None, ResourcePolicy | None]:
        """Return a pod that was seen and the policy that counts it; each may be None."""
        pod = self.pods.get(self._namespaces.get(uid, ""), {}).get(uid)
        return pod, self._find_first(uid)

    def _find_first(self, uid: str) -> ResourcePolicy | None:
        return next(iter(self._selecting.get(uid, ())), None)

    def list_policies(self) -> list[ResourcePolicy]:
        """Return the valid policies."""
        known = (each for names in self.known.values() for each in names.values())
        return [each.policy for each in known if each.policy]

    def count_waiting(self, policy: ResourcePolicy) -> int:
        """Return how many pods of a policy lack room."""
        waiting = (wait.policy for uid, wait in self.waits.items() if uid not in self.promised)
        return sum(each[:2] == policy[:2] for each in waiting)

    def get_counts(self, policy: ResourcePolicy) -> UnitCounts:
        """Return the counts of a policy's units."""
        key = (policy.namespace, policy.name)
        if key not in self._counts:
            counts = self._counts[key] = UnitCounts(policy)
            known = self.pods.get(policy.namespace, {})
            for uid in {*known, *self._list_promised(policy.namespace)}:
                self._count_in(counts, uid)
        return self._counts[key]

    def _count_pod(self, uid: str) -> None:
        """Count a pod on the node that it has or was promised."""
        for counts in self._list_counts(self._namespaces.get(uid, "")):
            self._count_in(counts, uid)

    def _count_in(self, counts: UnitCounts, uid: str) -> None:
        policy, promise = counts.policy, self.promised.get(uid)
        pod = self.pods.get(policy.namespace, {}).get(uid)
        if policy is not self._find_first(uid):
            counts.remove_pod(uid)
        elif pod and pod.node:
            counts.update_pod(make_policy_pod(pod, policy), self.nodes.get(pod.node, {}))
        elif promise:
            given = make_policy_pod(pod or promise.pod, policy, promise.unit)
            counts.update_pod(given, self.nodes.get(promise.node, {}))
        else:
            counts.remove_pod(uid)

    def _list_counts(self, namespace: str) -> list[UnitCounts]:
        keys = ((namespace, name) for name in self.known.get(namespace, {}))
        return [self._counts[key] for key in keys if key in self._counts]

    def find_open_unit(self, policy: ResourcePolicy, pod: Pod, node: str) -> int | str:
        """Return the index of the unit that takes a pod on a node, or why none does."""
        key, problem = read_key(policy, pod.labels)
        if key is None:
            return problem
        counts = self.get_counts(policy).count_units(key, without=pod.uid)
        given = make_policy_pod(self.get_pod(pod), policy)
        return find_open_unit(policy, counts, given, self.nodes.get(node, {}))

    def get_pod(self, pod: Pod) -> Pod:
        """Return a pod with all its fields, as it was seen last."""
        promise = self.promised.get(pod.uid)
        known = self.pods.get(pod.namespace, {}).get(pod.uid)
        return known or (promise.pod if promise else pod)

    def has_pod(self, uid: str) -> bool:
        """Return whether a pod of a namespace with policies was seen."""
        return uid in self.pods.get(self._namespaces.get(uid, ""), {})

    def update_node(self, name: str, labels: Labels) -> None:
        """Add or update a node."""
        if self.nodes.get(name) != labels:
            self.nodes[name] = labels
            self._count_anew()

    def remove_node(self, name: str) -> None:
        """Remove a node. Pods on it are then in no unit."""
        if self.nodes.pop(name, None) is not None:
            self._count_anew()

    def _count_anew(self) -> None:
        self._counts.clear()
        self.changed |= self.known.keys()
        self.report_room()

    def update_pod(self, pod: Pod) -> None:
        """Add or update a pod. Pods of namespaces without policies are ignored."""
        uid, known = pod.uid, self.pods.get(pod.namespace)
        if known is None:
            return
        if pod.final:
            self.remove_pod(uid)
            return
        before = known.get(uid)
        if before and before.node and not pod.node:
            return  # a stale event: the pod is known to be bound
        known[uid] = pod._replace(allocation_annotation="")
        self._namespaces[uid] = pod.namespace
        if pod.node:
            self.promised.pop(uid, None)
            self.waits.pop(uid, None)
        if before and _list_counted(before) == _list_counted(pod):
            return
        self._selecting[uid] = self._list_selecting(pod)
        self._count_pod(uid)
        self.changed.add(pod.namespace)
        if before and before.node:  # it may have left room in its unit
            self.report_room()

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that was deleted or is final."""
        for removed in self._unlisted.values():
            removed.add(uid)
        namespace = self._namespaces.pop(uid, "")
        self.waits.pop(uid, None)
        if not namespace:
            return
        self.pods.get(namespace, {}).pop(uid, None)
        self.promised.pop(uid, None)
        self._selecting.pop(uid, None)
        for counts in self._list_counts(namespace):
            counts.remove_pod(uid)
        self.changed.add(namespace)
        self.report_room()

    def begin_list(self, uids: Collection[str]) -> set[str]:
        """Prepare for a list with these pods. Return the UIDs of known pods that it lacks."""
        for uid in self.waits.keys() - uids:
            del self.waits[uid]
        self._unlisted.clear()
        return {uid for known in self.pods.values() for uid in known}.difference(uids)

    def list_unlisted(self) -> list[str]:
        """Return the namespaces whose pods have to be listed, because their first policy is new."""
        return [*self._unlisted]

    def find_unlisted(self, namespace: str) -> str:
        """Return why the pods of a namespace cannot be counted yet; "" if they can."""
        if namespace not in self._unlisted:
            return ""
        return f"the API server has not listed the pods of namespace {namespace} yet"

    def take_namespace(self, namespace: str, pods: Iterable[Pod]) -> None:
        """Add the pods of a namespace from a list that was begun after its first policy was added.

        Events that arrived meanwhile are newer: pods that they removed or showed as bound stay so.
        """
        removed = self._unlisted.pop(namespace, None)
        if removed is None:
            return
        for pod in pods:
            before = self.pods[namespace].get(pod.uid)
            if pod.uid not in removed and not (before and before.node):
                self.update_pod(pod)

    def update_promise(self, uid: str, promise: Promise | None) -> None:
        """Count a pod on the node that it was promised; None withdraws an earlier promise."""
        if promise is None:
            self._forget_promise(uid)
            return
        pod, selecting = self.get_pod(promise.pod), self._list_selecting(promise.pod)
        if not selecting:
            return
        policy = selecting[0]
        number = self.find_open_unit(policy, pod, promise.node)
        inside = isinstance(number, int) and number < len(policy.units)
        unit = policy.units[number] if inside and isinstance(number, int) else None
        self.promised[uid] = promise._replace(pod=pod, unit=unit)
        self._selecting[uid], self._namespaces[uid] = selecting, pod.namespace
        self._count_pod(uid)
        self.changed.add(pod.namespace)

    def _forget_promise(self, uid: str) -> None:
        promise = self.promised.pop(uid, None)
        if promise is None:
            return
        self._count_pod(uid)
        if uid not in self.pods.get(promise.pod.namespace, {}):
            self._namespaces.pop(uid, None)
            self._selecting.pop(uid, None)
        self.changed.add(promise.pod.namespace)
        self.report_room()


def _order_policy(policy: ResourcePolicy) -> tuple[str, str]:
    return policy.created, policy.name


def _list_counted(pod: Pod) -> tuple[object, ...]:
    """Return the fields of a pod that affect its counts, or what is written to it."""
    return (
        *(pod.node, pod.terminating, pod.labels, pod.annotations, pod.resources),
        pod.unschedulable,
    )
