"""What API servers do by the guard's policies and conditions: CEL, evaluated by cel-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

from cgpu_k8s.admission.nodes import NODE_NAME
from cgpu_k8s.admission.policies import make_policies
from cgpu_k8s.admission.rules import TEMPLATES, Review, find_refusal
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.admission.webhooks import CONDITIONS, FIRST, VERSIONS, make_objects
from cgpu_k8s.objects.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]


def _whole(value: Any) -> celtypes.IntType:
    """Kubernetes' ``asInteger`` of its ``quantity``."""
    number = parse_quantity(str(value))
    assert number is not None
    return celtypes.IntType(number)


def _compared(value: Any, other: Any) -> celtypes.IntType:
    """Kubernetes' ``compareTo``, as far as the rules ask: 0 for the same quantity."""
    numbers = parse_quantity(str(value)), parse_quantity(str(other))
    return celtypes.IntType(value != other and (None in numbers or numbers[0] != numbers[1]))


def _is_whole(value: Any) -> celtypes.BoolType:
    """Kubernetes' ``isInteger``, of quantities without a binary unit."""
    return celtypes.BoolType(parse_quantity(str(value)) is not None)


_FUNCTIONS = {
    "quantity": lambda value: value,
    "asInteger": _whole,
    "isInteger": _is_whole,
    "compareTo": _compared,
}
_ENVIRONMENT = celpy.Environment()
_PROGRAMS: dict[str, Any] = {}


def value(expression: str, context: Json) -> Any:
    """What an expression is."""
    if expression not in _PROGRAMS:
        compiled = _ENVIRONMENT.compile(expression)
        _PROGRAMS[expression] = _ENVIRONMENT.program(compiled, _FUNCTIONS)
    return _PROGRAMS[expression].evaluate(context)


def context(review: Review) -> Json:
    """The names that expressions about a request can use."""
    extra = {"extra": {NODE_NAME: [review.node]}} if review.node else {}
    user = {"username": review.user, **extra}
    request = {"operation": review.operation, "userInfo": user}
    given = {"object": review.item, "oldObject": review.before or {}, "request": request}
    return {name: json_to_cel(item) for name, item in given.items()}


def all_hold(conditions: Iterable[Json], review: Review) -> bool:
    """Whether ``matchConditions`` let a policy or a webhook see a request."""
    names = context(review)
    return all(value(each["expression"], names) for each in conditions)


def concerns(rule: Json, review: Review) -> bool:
    """Whether a ``resourceRule`` is about a request."""
    parts = {review.resource}
    parts |= {f"{review.resource.partition('/')[0]}/*"} if "/" in review.resource else set()
    return review.operation in rule["operations"] and bool(parts & {*rule["resources"]})


SCHEDULER = "system:serviceaccount:cgpu-system:cgpu-scheduler"
AGENT = "system:serviceaccount:cgpu-system:cgpu-agent"
SETTINGS = Settings((SCHEDULER,), AGENT)
_SPECS = {each["metadata"]["name"]: each["spec"] for each in make_policies(SETTINGS)[::2]}
_MUTATING = "MutatingWebhookConfiguration"


def _policy_of(review: Review) -> dict[str, Any] | None:
    """The policy that an API server applies to a request."""
    for spec in _SPECS.values():
        [rule] = spec["matchConstraints"]["resourceRules"]
        if concerns(rule, review):
            return dict(spec)
    return None


def denied(review: Review) -> str:
    """What an API server with the policies says to a request; "": it lets it in."""
    spec = _policy_of(review)
    if spec is None or not all_hold(spec.get("matchConditions", []), review):
        return ""
    known = context(review)
    variables = known["variables"] = celtypes.MapType()
    for each in spec.get("variables", []):
        variables[celtypes.StringType(each["name"])] = value(each["expression"], known)
    for each in spec["validations"]:
        if not value(each["expression"], known):
            return str(value(each["messageExpression"], known))
    return ""


def _hooks(minor: int, kind: str = "ValidatingWebhookConfiguration") -> list[dict[str, Any]]:
    """The webhooks for API servers of a version."""
    [found] = [
        each for each in make_objects(SETTINGS, "cgpu-system", minor) if each["kind"] == kind
    ]
    return list(found["webhooks"])


# By version: those that validate, and those that mutate.
HOOKS = {minor: (_hooks(minor), _hooks(minor, _MUTATING)) for minor in VERSIONS}


def asked(review: Review, minor: int, *, mutating: bool = False) -> set[str]:
    """What an API server does where the webhooks that it asks do not answer; none: nothing."""
    return {
        hook["failurePolicy"]
        for hook in HOOKS[minor][mutating]
        for rule in hook["rules"]
        if concerns(rule, review) and all_hold(hook.get("matchConditions", []), review)
    }


def both(review: Review) -> tuple[str, str]:
    """What each of the two forms says: of pods, in the same words."""
    sentences = find_refusal(review, SETTINGS), denied(review)
    same = sentences if "nodes" not in review.resource else map(bool, sentences)
    assert len({*same}) == 1, sentences
    if sentences[0]:  # whoever refuses is asked, and from 1.28 on its absence refuses
        first = review.user == AGENT
        assert asked(review, FIRST, mutating=first) == {"Ignore"}
        vital = review.resource not in TEMPLATES.resources
        assert ("Fail" if vital else "Ignore") in asked(review, CONDITIONS, mutating=first)
    return sentences


def created(item: Any, user: str = "alice") -> Review:
    """Somebody wants to create a pod."""
    return Review("CREATE", "pods", user, item)
