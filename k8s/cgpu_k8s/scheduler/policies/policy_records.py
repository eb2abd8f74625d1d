"""Records of the policies' cache: a policy, a pod that was promised a node, one that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_k8s.objects.pod_resources import sum_requests
from cgpu_k8s.scheduler.units import PolicyPod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.pods import Pod
    from cgpu_k8s.objects.policies import NodeUnit, ResourcePolicy


class KnownPolicy(NamedTuple):
    """A ResourcePolicy as the API server has it.

    Attributes:
        namespace: its namespace.
        name: its name there.
        uid: its UID.
        policy: what it says; None: it cannot be followed.
        problem: why it cannot be followed; one sentence.
        status: as somebody wrote it last.
    """

    namespace: str
    name: str
    uid: str
    policy: ResourcePolicy | None
    problem: str
    status: Mapping[str, Any]


class Promise(NamedTuple):
    """A pod that was promised a node, and is not seen there yet.

    Attributes:
        pod: as it was then.
        node: the name of the node; until the pod's binding, one of those that it may get.
        sent: whether its binding was sent.
        unit: of its policy; None: outside all units.
    """

    pod: Pod
    node: str
    sent: bool
    unit: NodeUnit | None = None


class UnitWait(NamedTuple):
    """The time for which a pod has lacked room.

    Attributes:
        pod: the pod.
        policy: the policy under which it does.
        units: since when, by the numbers of units.
        held: the number of the unit whose room it waits for; None: no unit has any.
        again: when it has to be tried again, if nothing else happens; None: only after a change.
    """

    pod: Pod
    policy: ResourcePolicy
    units: Mapping[int, float]
    held: int | None = None
    again: float | None = None


def make_policy_pod(pod: Pod, policy: ResourcePolicy, unit: NodeUnit | None = None) -> PolicyPod:
    """Return a pod as its policy counts it, in a unit that gives it labels and annotations."""
    limited = {name for each in policy.units for name in each.most_resources}
    return PolicyPod(
        pod.uid,
        pod.namespace,
        {**pod.labels, **unit.labels} if unit else pod.labels,
        {**pod.annotations, **unit.annotations} if unit else pod.annotations,
        sum_requests(pod, limited) if limited else {},
        pod.created,
        pod.terminating,
    )
