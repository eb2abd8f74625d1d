"""The rules as ValidatingAdmissionPolicies with their bindings, for Kubernetes 1.30 and later."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.admission import cel, cel_requests
from cgpu_k8s.admission.rules import (
    BOUND,
    CHANGED,
    CREATED,
    NODES,
    RULES,
    TEMPLATES,
    Event,
    Users,
)
from cgpu_k8s.admission.settings import Settings

_API = "admissionregistration.k8s.io/v1"
# The names of the policies, with the requests that each applies to.
EVENTS = {
    "cgpu-pods": CREATED,
    "cgpu-templates": TEMPLATES,
    "cgpu-annotations": CHANGED,
    "cgpu-bindings": BOUND,
    "cgpu-nodes": NODES,
}


def make_policies(settings: Settings) -> list[dict[str, Any]]:
    """Return the policies and bindings by which an API server applies the rules itself."""
    return [
        each
        for name, event in EVENTS.items()
        for each in (_make_policy(name, event, settings), _make_binding(name))
    ]


def _make_policy(name: str, event: Event, settings: Settings) -> dict[str, Any]:
    rules = [rule for rule in RULES if rule.event == event]
    item = cel.POD if event == TEMPLATES else cel.OBJECT
    of_rules = (rule.checks(settings, item) for rule in rules)
    kept = map(cel.exempt_broken, of_rules) if event == TEMPLATES else of_rules
    checks = [check for each in kept for check in each]
    conditions = _name_expressions(make_conditions(event, settings))
    used = any("variables." in check.expression for check in checks)
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            # If the check of a template fails, its pods are still checked.
            "failurePolicy": "Ignore" if event == TEMPLATES else "Fail",
            "matchConstraints": {"resourceRules": [make_resource_rule(event)]},
            **({"matchConditions": conditions} if conditions else {}),
            **(
                {"variables": _name_expressions(cel_requests.define_variables(item))}
                if used
                else {}
            ),
            "validations": [
                {"expression": check.expression, "messageExpression": check.sentence}
                for check in checks
            ],
        },
    }


def make_conditions(event: Event, settings: Settings) -> dict[str, str]:
    """Return an event's match conditions in CEL, by name, for policies and webhooks."""
    if event == TEMPLATES:
        return {"renewed": cel.has_new_template(), "due": cel.is_due()}
    return {
        Users.ALL: {},
        Users.OTHERS: {"others": cel.is_from_others(settings.accounts)},
        Users.AGENTS: {"agents": cel.is_from_users((settings.agent,))},
    }[event.users]


def make_resource_rule(event: Event) -> dict[str, Any]:
    """Return the rule that selects an event's resources, for policies and webhooks."""
    return {
        "apiGroups": [*event.groups],
        "apiVersions": [*event.versions],
        "operations": [*event.operations],
        "resources": [*event.resources],
    }


def _name_expressions(expressions: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]


def _make_binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
