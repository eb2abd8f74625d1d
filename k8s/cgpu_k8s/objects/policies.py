"""Reads a ResourcePolicy, which names units of nodes for pods to fill one after the other."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cgpu_env.errors import CgpuError, format_suggestion, printable
from cgpu_k8s.names import DELETION_COST, OWN_PREFIX, RESERVED
from cgpu_k8s.objects.fields import ObjectError, get_member, get_objects, get_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_k8s.objects.fields import Json

Members = TypeVar("Members", list[Any], dict[str, Any], dict[str, str])
GROUP, KIND = "scheduling.alibabacloud.com/v1alpha1", "ResourcePolicy"
PREFER, REQUIRED = "prefer", "required"
ECS, VIRTUAL = "ecs", ("eci", "acs", "elastic")
LACK_OR_MAX, MAX_ONLY = "LackResourceOrExceedMax", "ExceedMax"
TIMEOUT_OR_MAX, LACK_AND_NO_TERMINATING = "TimeoutOrExceedMax", "LackResourceAndNoTerminating"
NEXT_POLICIES = (LACK_OR_MAX, MAX_ONLY, TIMEOUT_OR_MAX, LACK_AND_NO_TERMINATING)
AFTER_ALL, BEFORE_NEXT = "AfterAllUnits", "BeforeNextUnit"
DEFAULT_TIMEOUT = 900.0  # seconds
MOST = 64  # members of each list and of each object with free names, so that calls stay cheap
_SPELLINGS = {"LackResourceAndNoterminating": LACK_AND_NO_TERMINATING}
_FIELDS = (
    "ignorePreviousPod",
    "ignoreTerminatingPod",
    "matchLabelKeys",
    "preemptPolicy",
    "selector",
    "strategy",
    "units",
    "whenTryNextUnits",
)
_UNIT_FIELDS = ("max", "maxResources", "nodeSelector", "podAnnotations", "podLabels", "resource")
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
_AMOUNT = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?"
)
# Names of annotations are as those of labels, in either case.
_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL = re.compile(f"((?=[^/]{{1,253}}/){_DOMAIN}/)?{_WORD}")
_ANNOTATION = re.compile(_LABEL.pattern, re.IGNORECASE | re.ASCII)
_VALUE = re.compile(f"({_WORD})?")
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class PolicyError(CgpuError):
    """A ResourcePolicy is invalid. The message, one sentence, names the member."""


class Requirement(NamedTuple):
    """A condition on one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeUnit(NamedTuple):
    """A unit of nodes.

    Attributes:
        nodes: the labels by which it selects nodes.
        resource: ECS for ordinary nodes, one of VIRTUAL for virtual nodes.
        most: the most pods that it takes; None for no limit.
        most_resources: the most that its pods may request together, by resource; resources that are
            not listed have no limit.
        labels: labels that its pods get.
        annotations: annotations that its pods get.
    """

    nodes: Mapping[str, str]
    resource: str = ECS
    most: int | None = None
    most_resources: Mapping[str, Decimal] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

    @property
    def is_limited(self) -> bool:
        """Return whether it limits the number of its pods, or the sum of their requests."""
        return self.most is not None or bool(self.most_resources)


class ResourcePolicy(NamedTuple):
    """A ResourcePolicy as its object has it.

    Attributes:
        namespace: its namespace, which is also that of its pods.
        name: its name in the namespace.
        created: its creation time, as text that sorts by time.
        selector: conditions on the labels of its pods; () selects all pods.
        units: its units, the preferred one first.
        strategy: PREFER or REQUIRED.
        next_policy: when the next unit is tried, one of NEXT_POLICIES.
        timeout: seconds that a pod waits in a unit under TIMEOUT_OR_MAX.
        keys: names of labels; pods with equal values of all of them are counted together.
        ignores_previous: whether pods older than the policy are not counted.
        ignores_terminating: whether pods that are being deleted are not counted.
        preempt: when pods of lower priority may be evicted, AFTER_ALL or BEFORE_NEXT.
    """

    namespace: str
    name: str
    created: str
    selector: tuple[Requirement, ...]
    units: tuple[NodeUnit, ...]
    strategy: str = PREFER
    next_policy: str = LACK_OR_MAX
    timeout: float = DEFAULT_TIMEOUT
    keys: tuple[str, ...] = ()
    ignores_previous: bool = False
    ignores_terminating: bool = True
    preempt: str = AFTER_ALL


def match_labels(selector: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether labels satisfy all conditions."""
    return all(_match_label(each, labels.get(each.key)) for each in selector)


def _match_label(condition: Requirement, value: str | None) -> bool:
    if condition.operator in {"In", "Exists"}:
        return value is not None and (condition.operator == "Exists" or value in condition.values)
    return value is None or (condition.operator == "NotIn" and value not in condition.values)


def read_policy(item: Json) -> ResourcePolicy:
    """Read a ResourcePolicy's object.

    Raises:
        PolicyError: a member is unknown or wrong.
    """
    try:
        return _read_policy(item)
    except ObjectError as error:
        raise PolicyError(str(error)) from None


def _read_policy(item: Json) -> ResourcePolicy:
    meta, spec = get_member(item, "metadata", dict), get_member(item, "spec", dict)
    _check_fields(spec, _FIELDS, "spec")
    units = _limit(get_objects(spec, "units"), "spec.units")
    if not units:
        raise PolicyError("spec.units: expected at least one unit")
    following = get_member(spec, "whenTryNextUnits", dict)
    _check_fields(following, ("policy", "timeout"), "spec.whenTryNextUnits")
    asked = get_member(following, "policy", str)
    terminating = spec.get("ignoreTerminatingPod")
    return ResourcePolicy(
        namespace=get_member(meta, "namespace", str),
        name=get_member(meta, "name", str),
        created=get_member(meta, "creationTimestamp", str),
        selector=_read_selector(get_member(spec, "selector", dict)),
        units=tuple(_read_unit(each, f"spec.units[{n}]") for n, each in enumerate(units)),
        strategy=_read_choice(spec, "strategy", (PREFER, REQUIRED), "spec"),
        next_policy=_SPELLINGS.get(asked)
        or _read_choice(following, "policy", NEXT_POLICIES, "spec.whenTryNextUnits"),
        timeout=_read_duration(get_member(following, "timeout", str)),
        keys=_read_keys(_limit(get_member(spec, "matchLabelKeys", list), "spec.matchLabelKeys")),
        ignores_previous=get_member(spec, "ignorePreviousPod", bool),
        ignores_terminating=terminating is None or get_member(spec, "ignoreTerminatingPod", bool),
        preempt=_read_choice(spec, "preemptPolicy", (AFTER_ALL, BEFORE_NEXT), "spec"),
    )


def _limit(found: Members, where: str) -> Members:
    """Return a list or an object if it has at most MOST members."""
    if len(found) > MOST:
        raise PolicyError(f"{where}: expected at most {MOST}, got {len(found)}")
    return found


def _check_fields(found: Json, known: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in known:
            meant = format_suggestion(name, known)
            raise PolicyError(f"{where}.{printable(name)}: no such field{meant}")


def _read_choice(found: Json, name: str, known: tuple[str, ...], where: str) -> str:
    """Return the value of a member, which must be in ``known``; the first is the default."""
    value = get_member(found, name, str) or known[0]
    if value not in known:
        meant = format_suggestion(value, known)
        allowed = ", ".join(known)
        raise PolicyError(f"{where}.{name}={printable(value)}: expected one of {allowed}{meant}")
    return value


def _read_selector(found: Json) -> tuple[Requirement, ...]:
    """Return the conditions of a selector: labels, or ``matchLabels`` and ``matchExpressions``."""
    if not isinstance(found.get("matchExpressions", found.get("matchLabels", "")), str):
        _check_fields(found, ("matchLabels", "matchExpressions"), "spec.selector")
        where = "spec.selector.matchExpressions"
        expressions = _limit(get_objects(found, "matchExpressions"), where)
        labels = _limit(get_strings(found, "matchLabels"), "spec.selector.matchLabels")
    else:
        labels = _limit(get_strings({"selector": found}, "selector"), "spec.selector")
        expressions = []
    return (
        *(Requirement(key, "In", (value,)) for key, value in sorted(labels.items())),
        *map(_read_expression, expressions),
    )


def _read_expression(found: Json) -> Requirement:
    key, values = get_member(found, "key", str), get_member(found, "values", list)
    operator = get_member(found, "operator", str)
    if operator not in _OPERATORS:
        allowed = ", ".join(_OPERATORS)
        raise PolicyError(f"operator={printable(operator)}: expected one of {allowed}")
    if not key or not all(isinstance(each, str) for each in values):
        raise PolicyError("spec.selector.matchExpressions: expected a key, and strings as values")
    if bool(values) != (operator in {"In", "NotIn"}):
        given = "no values" if operator in {"Exists", "DoesNotExist"} else "values"
        raise PolicyError(f"spec.selector.matchExpressions: expected {given} with {operator}")
    _limit(values, "spec.selector.matchExpressions: values")
    return Requirement(key, operator, tuple(values))


def _read_keys(found: list[object]) -> tuple[str, ...]:
    keys = tuple(each for each in found if isinstance(each, str) and each)
    if len(keys) < len(found):
        raise PolicyError("spec.matchLabelKeys: expected names of labels")
    return keys


def _read_unit(found: Json, where: str) -> NodeUnit:
    _check_fields(found, _UNIT_FIELDS, where)
    most = found.get("max")
    if most is not None and (type(most) is not int or most < 1):
        value = printable(str(most))
        raise PolicyError(f"{where}.max={value}: expected a whole number from 1, or no max")
    limits = _limit(get_member(found, "maxResources", dict), f"{where}.maxResources")
    return NodeUnit(
        nodes=_limit(get_strings(found, "nodeSelector"), f"{where}.nodeSelector"),
        resource=_read_choice(found, "resource", (ECS, *VIRTUAL), where),
        most=most,
        most_resources={
            name: _require_amount(value, f"{where}.maxResources.{printable(name)}")
            for name, value in limits.items()
        },
        labels=_read_labels(found, where),
        annotations=_read_annotations(found, where),
    )


def _read_labels(found: Json, where: str) -> dict[str, str]:
    labels = _limit(get_strings(found, "podLabels"), f"{where}.podLabels")
    for name, value in labels.items():
        here = f"{where}.podLabels.{printable(name)}"
        _check_name(name, _LABEL, here)
        if not _VALUE.fullmatch(value):
            raise PolicyError(f"{here}={printable(value)}: expected the value of a label")
    return labels


def _read_annotations(found: Json, where: str) -> dict[str, str]:
    annotations = _limit(get_strings(found, "podAnnotations"), f"{where}.podAnnotations")
    for name in annotations:
        here = f"{where}.podAnnotations.{printable(name)}"
        _check_name(name, _ANNOTATION, here)
        if name in RESERVED:
            raise PolicyError(f"{here}: only cgpu's scheduler may set it")
        if name == DELETION_COST:
            raise PolicyError(f"{here}: it follows from the order of the units")
    return annotations


def _check_name(name: str, pattern: re.Pattern[str], here: str) -> None:
    """Check the name of a label or annotation that pods get."""
    if not pattern.fullmatch(name):
        raise PolicyError(f"{here}: expected a name such as example.com/name")
    if name.startswith(OWN_PREFIX):
        raise PolicyError(f"{here}: only cgpu may set what begins with {OWN_PREFIX}")


def _require_amount(value: object, where: str) -> Decimal:
    amount = read_amount(value)
    if amount is None or amount <= 0:
        raise PolicyError(f"{where}={printable(str(value))}: expected an amount above 0")
    return amount


def read_amount(value: object) -> Decimal | None:
    """Return an amount of a resource, such as 500m or 4Gi, or None if ``value`` is not an amount.

    >>> read_amount("500m"), read_amount("4Gi"), read_amount("1e3"), read_amount("x")
    (Decimal('0.500'), Decimal('4294967296'), Decimal('1E+3'), None)
    """
    if type(value) is int:
        return Decimal(value)
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    suffix = found[3] or ""
    try:
        number = Decimal(found[1])
    except InvalidOperation:
        return None
    if suffix in _BINARY:
        return number * Decimal(1024 ** (_BINARY.index(suffix) + 1))
    return number.scaleb(_POWERS.get(suffix, int(found[2] or 0)))


def _read_duration(text: str) -> float:
    """Return a duration such as 15m or 1h30m in seconds; DEFAULT_TIMEOUT for ""."""
    if not text:
        return DEFAULT_TIMEOUT
    found = _DURATION.fullmatch(text)
    if not found or not any(found.groups()):
        raise PolicyError(
            f"spec.whenTryNextUnits.timeout={printable(text)}: expected hours, minutes and"
            " seconds, such as 15m"
        )
    hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return float(3600 * hours + 60 * minutes + seconds)
