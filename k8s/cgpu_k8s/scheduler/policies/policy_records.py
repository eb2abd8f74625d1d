"""Records of the policy cache: a policy, a promise of a node to a pod, and a wait for room."""

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
        name: its name in the namespace.
        uid: its UID.
        policy: its content; None if it is invalid.
        problem: why it is invalid, in one sentence; "" if it is valid.
        status: its status in the API server.
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
        pod: the pod as it was then.
        node: the name of the node. Until the binding is sent, the pod may still get another one.
        sent: whether the binding was sent.
        unit: the unit in which the pod counts; None if it is outside all units.
    """

    pod: Pod
    node: str
    sent: bool
    unit: NodeUnit | None = None


class UnitWait(NamedTuple):
    """A pod that has lacked room in units of its policy.

    Attributes:
        pod: the pod.
        policy: the policy of these units.
        units: since when the pod has lacked room, by the index of the unit; or ENDING.
        held: the index of the unit for which it waits; None if it waits for no unit in particular.
        again: when to try the pod again even if nothing changes; None to try only after a change.
    """

    pod: Pod
    policy: ResourcePolicy
    units: Mapping[int, float]
    held: int | None = None
    again: float | None = None


def make_policy_pod(pod: Pod, policy: ResourcePolicy, unit: NodeUnit | None = None) -> PolicyPod:
    """Return a pod as its policy counts it, with the labels and annotations that ``unit`` adds."""
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
