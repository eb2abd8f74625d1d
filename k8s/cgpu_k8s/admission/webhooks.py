"""The policies and webhook configurations by which API servers apply the rules.

- Before Kubernetes 1.28, webhooks see every request. While no guard answers, all are admitted, but
  a node gives a pod nothing without a decision.
- In 1.28 and 1.29, webhooks see requests about GPUs and those of agents. While no guard answers,
  these are refused.
- From 1.30 on, policies apply the rules, and a webhook sends pods to the scheduler. While no guard
  answers, no pod that asks for GPUs can be created.

While no guard answers, webhooks admit pod templates in each version. The templates' pods are
checked as above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from cgpu_k8s.admission import cel
from cgpu_k8s.admission.cert_rotation import NAME
from cgpu_k8s.admission.policies import make_conditions, make_policies, make_resource_rule
from cgpu_k8s.admission.rules import BOUND, CHANGED, CREATED, NODES, TEMPLATES, Event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.admission.settings import Settings

_API = "admissionregistration.k8s.io/v1"
# Minor versions: the oldest supported, the first with match conditions of webhooks, and the first
# with policies.
FIRST, CONDITIONS, POLICIES = 20, 28, 30
VERSIONS = (FIRST, CONDITIONS, POLICIES)  # the first minor version of each set of objects
_VALIDATING, _MUTATING = "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"
_PATIENCE, _LITTLE = 5, 1  # seconds that an API server waits for a vital webhook, and for others
# The user of the cluster's own scheduler, whose pods never ask for GPUs.
_BINDER = "system:kube-scheduler"


class Hook(NamedTuple):
    """One webhook.

    Attributes:
        event: the requests that it is called for.
        conditions: match conditions in CEL, by name, used from Kubernetes 1.28 on.
        vital: whether requests are refused while no guard answers, from Kubernetes 1.28 on.
        again: whether it is called again if a later webhook changes the object.
    """

    event: Event
    conditions: dict[str, str]
    vital: bool = True
    again: bool = False


def make_objects(settings: Settings, namespace: str, minor: int) -> list[dict[str, Any]]:
    """Return the objects for API servers of a minor version, up to the next of VERSIONS.

    Args:
        settings: the cluster's settings.
        namespace: the namespace of the guard's Service.
        minor: one of VERSIONS.
    """
    hooks = {
        _VALIDATING: make_validating_hooks(settings, minor),
        _MUTATING: make_mutating_hooks(settings, minor),
    }
    return [
        *(make_policies(settings) if minor >= POLICIES else []),
        *(_make_configuration(kind, found, namespace, minor) for kind, found in hooks.items()),
    ]


def dump_objects(settings: Settings, namespace: str, minor: int) -> str:
    """Return the objects as YAML."""
    found = make_objects(settings, namespace, minor)
    return str(yaml.safe_dump_all(found, sort_keys=False, width=100))


def make_validating_hooks(settings: Settings, minor: int) -> dict[str, Hook]:
    """Return the validating webhooks, by name."""
    noted, altered = (
        cel.is_broken(checks(settings, cel.OBJECT))
        for checks in (cel.check_annotations, cel.check_annotation_changes)
    )
    pods = {"concerned": _is_concerned(cel.OBJECT, settings)}
    made = f"[{cel.select_template(cel.OBJECT)}].exists(pod, {_is_concerned('pod', settings)})"
    ruled = {
        "pods": Hook(CREATED, pods),
        "templates": Hook(
            TEMPLATES, {**make_conditions(TEMPLATES, settings), "concerned": made}, vital=False
        ),
        "annotations": Hook(CHANGED, {**make_conditions(CHANGED, settings), "concerned": altered}),
        "bindings": Hook(BOUND, {**make_conditions(BOUND, settings), "concerned": noted}),
    }
    # A condition cannot see the pod of a Binding, so the guard is asked about all pods that users
    # other than the schedulers bind.
    binders = {"others": cel.is_from_others((*settings.accounts, _BINDER))}
    return {
        **(ruled if minor < POLICIES else {}),
        **({"binders": Hook(BOUND, binders, vital=False)} if minor >= CONDITIONS else {}),
    }


def _is_concerned(pod: str, settings: Settings) -> str:
    """Return CEL that tests whether a rule could refuse ``pod``, an expression."""
    checks = (*cel.check_annotations(settings, pod), *cel.check_misspelt_names(settings, pod))
    return f"{cel.is_broken(checks)} || {cel.asks_for_gpu(pod)}"


def make_mutating_hooks(settings: Settings, minor: int) -> dict[str, Hook]:
    """Return the mutating webhooks, by name: for new pods, and for changes to nodes.

    The one for nodes only validates. It is a mutating webhook because API servers before 1.20.6
    send validating webhooks the new node also as the old one (CVE-2021-25735).
    """
    return {
        # Another webhook may add a request for GPUs, so this one is called again. The one for nodes
        # is not: what other webhooks add to a node is not the agent's change.
        "schedulers": Hook(CREATED, {"concerned": cel.asks_for_gpu(cel.OBJECT)}, again=True),
        **({"nodes": Hook(NODES, make_conditions(NODES, settings))} if minor < POLICIES else {}),
    }


def _make_configuration(
    kind: str, hooks: Mapping[str, Hook], namespace: str, minor: int
) -> dict[str, Any]:
    # The guard adds the path and the CA bundle: an upgrade of the chart must not overwrite them.
    service = {"namespace": namespace, "name": NAME, "port": 443}
    return {
        "apiVersion": _API,
        "kind": kind,
        "metadata": {"name": NAME},
        "webhooks": [
            {**_make_webhook(name, hook, minor), "clientConfig": {"service": {**service}}}
            for name, hook in hooks.items()
        ],
    }


def _make_webhook(name: str, hook: Hook, minor: int) -> dict[str, Any]:
    conditions = [
        {"name": each, "expression": expression} for each, expression in hook.conditions.items()
    ]
    return {
        "name": f"{name}.guard.cgpu",
        "admissionReviewVersions": ["v1"],
        "rules": [make_resource_rule(hook.event)],
        **({"matchConditions": conditions} if minor >= CONDITIONS else {}),
        "failurePolicy": "Fail" if hook.vital and minor >= CONDITIONS else "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": _PATIENCE if hook.vital else _LITTLE,
        **({"reinvocationPolicy": "IfNeeded"} if hook.again else {}),
    }
