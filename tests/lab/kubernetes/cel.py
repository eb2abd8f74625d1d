"""CEL as API servers evaluate it for a request, by cel-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

from cgpu_k8s.guard.cel import NODE_NAME
from cgpu_k8s.objects.quantities import whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.guard.rules import Review

Json = dict[str, Any]


def _whole(value: Any) -> celtypes.IntType:
    """Kubernetes' ``asInteger`` of its ``quantity``."""
    number = whole(str(value))
    assert number is not None
    return celtypes.IntType(number)


def _compared(value: Any, other: Any) -> celtypes.IntType:
    """Kubernetes' ``compareTo``, as far as the rules ask: 0 for the same quantity."""
    numbers = whole(str(value)), whole(str(other))
    return celtypes.IntType(value != other and (None in numbers or numbers[0] != numbers[1]))


def _is_whole(value: Any) -> celtypes.BoolType:
    """Kubernetes' ``isInteger``, of quantities without a binary unit."""
    return celtypes.BoolType(whole(str(value)) is not None)


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
    request = {"userInfo": {"username": review.user, **extra}}
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
