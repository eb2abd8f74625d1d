"""Pure functions that return the status of a ResourcePolicy, and an event about its problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cgpu_k8s.objects.policies import GROUP, KIND
from cgpu_k8s.scheduler.units import describe_overlap, describe_unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.scheduler.policies.policy_cache import PolicyCache
    from cgpu_k8s.scheduler.policies.policy_records import KnownPolicy

    Json = dict[str, Any]

COMPONENT = "cgpu-scheduler"
LONGEST = 1024  # characters of an event's message
_NOT_LED = (
    "it does not lead its pods without GPUs: install the chart with scheduler.podsWithoutGpus=true"
)


def make_status(policies: PolicyCache, known: KnownPolicy) -> Json:
    """Return a policy's status: the numbers of pods in its units and outside, and its problems."""
    policy = known.policy
    if policy is None:
        return {"message": known.problem}
    *sums, outside = policies.get_counts(policy).sum_units()
    pods = policies.pods[known.namespace].values()
    message = [
        *(
            describe_overlap(names)
            for names in sorted(policies.find_overlaps(known.namespace))
            if known.name in names
        ),
        *([_NOT_LED] if _has_unled(policies, known) else []),
        *describe_unused(policy, policies.nodes.values(), (pod.labels for pod in pods)),
    ]
    texts = (
        f"{pods}/{unit.most}" if unit.most is not None else str(pods)
        for pods, unit in zip(sums, policy.units, strict=True)
    )
    found = {
        "units": [{"pods": pods} for pods in sums],
        "outside": outside,
        "pods": ", ".join(texts),
    }
    # Kubernetes 1.20 reads an empty string in a patch as null, which it refuses as no string.
    return {**found, "message": "; ".join(message)} if message else found


def _has_unled(policies: PolicyCache, known: KnownPolicy) -> bool:
    """Return whether the policy selects pods that kube-scheduler does not ask about."""
    return not policies.leads_all and any(
        not policies.is_led(pod) and policies.find_counted(pod.uid)[1] is known.policy
        for pod in policies.pods[known.namespace].values()
    )


def make_status_change(before: Mapping[str, Any], status: Json) -> Json:
    """Return the body of a merge patch that replaces the status ``before`` by ``status``."""
    return {"status": {**dict.fromkeys(before.keys() - status.keys()), **status}}


def make_event(known: KnownPolicy, message: str, when: str, name: str) -> Json:
    """Return an event of type Warning about a policy.

    ``when`` is the time as in RFC 3339. ``name`` makes the event's name unique.
    """
    policy = {
        "apiVersion": GROUP,
        "kind": KIND,
        "namespace": known.namespace,
        "name": known.name,
        "uid": known.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{known.name}.{name}", "namespace": known.namespace},
        "involvedObject": policy,
        "reason": "PolicyIgnored" if known.policy is None else "PolicyUnclear",
        "message": message[:LONGEST],
        "type": "Warning",
        "source": {"component": COMPONENT},
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
