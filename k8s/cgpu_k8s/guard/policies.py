"""The rules as ValidatingAdmissionPolicies with their bindings, for Kubernetes 1.30 and later."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.guard import cel
from cgpu_k8s.guard.rules import BOUND, CHANGED, CREATED, NODES, RULES, Event, Users
from cgpu_k8s.guard.settings import Settings

_API = "admissionregistration.k8s.io/v1"
# By name: the requests that a policy is for.
EVENTS = {
    "cgpu-pods": CREATED,
    "cgpu-annotations": CHANGED,
    "cgpu-bindings": BOUND,
    "cgpu-nodes": NODES,
}


def policies(settings: Settings) -> list[dict[str, Any]]:
    """The objects that make an API server follow the rules, without a webhook."""
    return [
        each
        for name, event in EVENTS.items()
        for each in (_policy(name, event, settings), _binding(name))
    ]


def _policy(name: str, event: Event, settings: Settings) -> dict[str, Any]:
    rules = [rule for rule in RULES if rule.event == event]
    checks = [check for rule in rules for check in rule.checks(settings, cel.OBJECT)]
    conditions = [
        {"name": each, "expression": expression}
        for each, expression in users(event, settings).items()
    ]
    used = any("variables." in check.expression for check in checks)
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [requests(event)]},
            **({"matchConditions": conditions} if conditions else {}),
            **({"variables": _variables()} if used else {}),
            "validations": [
                {"expression": check.expression, "messageExpression": check.sentence}
                for check in checks
            ],
        },
    }


def users(event: Event, settings: Settings) -> dict[str, str]:
    """Whose requests an event is, as conditions in CEL by name, for policies and webhooks alike."""
    return {
        Users.ALL: {},
        Users.OTHERS: {"others": cel.others(settings.accounts)},
        Users.AGENTS: {"agents": cel.among((settings.agent,))},
    }[event.users]


def requests(event: Event) -> dict[str, Any]:
    """Which requests an event is, for policies and webhooks alike."""
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": [*event.operations],
        "resources": [*event.resources],
    }


def _variables() -> list[dict[str, str]]:
    found = cel.variables(cel.OBJECT)
    return [{"name": name, "expression": text} for name, text in found.items()]


def _binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
