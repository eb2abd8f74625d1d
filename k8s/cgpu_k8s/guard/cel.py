"""The rules as CEL, for policies of Kubernetes 1.30 and later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s import names
from cgpu_k8s.objects.pods import MOST_GPUS
from cgpu_node.allocation import CORE_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_k8s.guard.settings import Settings

# Annotations of a pod that decide over GPUs, here or with published tools.
RESERVED = (
    names.ALLOCATION,
    names.FRAMEWORK_ALLOCATION,
    names.FRAMEWORK_ASSIGNED,
    names.FRAMEWORK_ASSUME_TIME,
    names.CORE_PERCENTAGE,
    names.MEM_IDX,
    names.MEM_DEV,
    names.MEM_POD,
    names.MEM_ASSIGNED,
    names.MEM_ASSUME_TIME,
)
# What an agent changes of its node: by the path of an object in it, the members that may differ.
# The API server changes three of the metadata by itself.
OFFERED: Mapping[str, tuple[str, ...]] = {
    "": ("metadata", "status"),
    "metadata": ("annotations", "labels", "generation", "managedFields", "resourceVersion"),
    "metadata.annotations": (names.FACTS,),
    "metadata.labels": names.NODE_LABELS,
    "status": ("allocatable", "capacity"),
    "status.allocatable": names.NODE_RESOURCES,
    "status.capacity": names.NODE_RESOURCES,
}
# Where an API server says, from 1.30 on, on which node the pod runs to which a token is bound.
NODE_NAME = "authentication.kubernetes.io/node-name"
_WHOLE = "^[+]?[0-9]{1,6}(k|[eE][0-9])?$"  # as the API server leaves whole numbers
_COUNTED = "^(0{0,3}[1-9]|0{0,2}1[0-6])$"
assert MOST_GPUS == 16  # noqa: PLR2004, S101 (the pattern above)


class Check(NamedTuple):
    """What must hold, and the sentence if it does not."""

    expression: str
    message: str


def listed(values: Iterable[str]) -> str:
    """A list of strings."""
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """A string; what JSON escapes, CEL escapes alike."""
    return json.dumps(value)


_MEM, _CORE, _COUNT, _OTHERS = map(
    _text, (names.MEMORY, names.CORES, names.COUNT, names.OTHERS_GPU)
)


def _has(resource: str, *, of: str = "c") -> str:
    """Whether a container names a resource, in limits or requests."""
    parts = (
        f"(has({of}.resources.{kind}) && {resource} in {of}.resources.{kind})" for kind in _KINDS
    )
    return f"(has({of}.resources) && ({' || '.join(parts)}))"


_KINDS = ("limits", "requests")
_AFTER = "has(object.metadata.annotations) ? object.metadata.annotations : {}"
_BEFORE = "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
_LABEL = (
    f"has(object.metadata.labels) && {_COUNT} in object.metadata.labels"
    f" ? object.metadata.labels[{_COUNT}] : '1'"
)
_CONTAINERS = (
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
# Names that the checks use, in the order in which they are computed; each may use those before it.
VARIABLES: Mapping[str, str] = {
    "containers": _CONTAINERS,
    "asking": f"variables.containers.filter(c, {_has(_MEM)} || {_has(_CORE)})",
    "limits": "variables.asking.map(c, has(c.resources.limits) ? c.resources.limits : {})",
    "label": _LABEL,
    "gpus": f"variables.label.matches('{_COUNTED}') ? int(variables.label) : 1",
}


# Whether a pod names a resource of ours, as a condition of its own.
ASKS = f"({_CONTAINERS}).exists(c, {_has(_MEM)} || {_has(_CORE)} || {_has(_COUNT)})"


def among(accounts: Iterable[str]) -> str:
    """Whether one of these users wants it."""
    return f"request.userInfo.username in {listed(accounts)}"


def others(accounts: Iterable[str]) -> str:
    """Whether somebody else than these users wants it."""
    return f"!({among(accounts)})"


def broken(checks: tuple[Check, ...]) -> str:
    """Whether one of some checks does not hold."""
    return " || ".join(f"!({check.expression})" for check in checks)


def written(_: Settings) -> tuple[Check, ...]:
    """No annotation of ours is set."""
    return (
        Check(
            f"!has(object.metadata.annotations) || {listed(RESERVED)}.all(name,"
            " !(name in object.metadata.annotations))",
            "only cgpu's scheduler may set annotations that decide over GPUs",
        ),
    )


def altered(_: Settings) -> tuple[Check, ...]:
    """No annotation of ours is set, changed or removed."""
    before, after = f"({_BEFORE})", f"({_AFTER})"
    return (
        Check(
            f"{listed(RESERVED)}.all(name, (name in {before}) == (name in {after})"
            f" && (!(name in {before}) || {before}[name] == {after}[name]))",
            "only cgpu's scheduler may change annotations that decide over GPUs",
        ),
    )


def elsewhere(settings: Settings) -> tuple[Check, ...]:
    """Its scheduler asks cgpu."""
    return (
        Check(
            "variables.asking.size() == 0 || (has(object.spec.schedulerName)"
            f" && object.spec.schedulerName in {listed(settings.schedulers)})",
            f"a pod that asks for {names.MEMORY} needs schedulerName"
            f" {' or '.join(settings.schedulers)}",
        ),
    )


def placed(_: Settings) -> tuple[Check, ...]:
    """Nobody has chosen its node."""
    return (
        Check(
            "variables.asking.size() == 0 || !has(object.spec.nodeName)"
            " || object.spec.nodeName == ''",
            f"expected no nodeName for a pod that asks for {names.MEMORY}",
        ),
    )


def foreign(_: Settings) -> tuple[Check, ...]:
    """The node is the one on which the pod runs to which the user's token is bound."""
    extra, name = "request.userInfo.extra", _text(NODE_NAME)
    return (
        Check(
            f"has({extra}) && {name} in {extra} && {extra}[{name}] == [object.metadata.name]",
            "an agent's token may change only the node on which the agent's pod runs",
        ),
    )


def beyond(_: Settings) -> tuple[Check, ...]:
    """Nothing of a node changes but what an agent writes."""
    return tuple(
        Check(
            _same(path, members), f"{path or 'node'}: an agent may change only {', '.join(members)}"
        )
        for path, members in OFFERED.items()
    )


def _same(path: str, but: Iterable[str]) -> str:
    """Whether the object at a path has the same members as before, except some."""
    after, before, free = _part("object", path), _part("oldObject", path), listed(but)
    return (
        f"{after}.all(key, key in {free} || (key in {before} && {before}[key] == {after}[key]))"
        f" && {before}.all(key, key in {free} || key in {after})"
    )


def _part(of: str, path: str) -> str:
    """The object at a path, of whose members nothing is known; of a node, the first level is there.

    A list of all that a node's status may have would miss what later versions add.
    """
    whole = f"{of}.{path}" if path else of
    return f"(has({whole}) ? dyn({whole}) : {{}})" if "." in path else f"dyn({whole})"


def _each(resource: str, holds: str) -> str:
    """What holds for each limit of a resource that is a whole number, called ``{n}``."""
    amount = f"quantity(l[{resource}]).asInteger()"
    return (
        f"variables.limits.all(l, !({resource} in l) || !l[{resource}].matches('{_WHOLE}') ||"
        f" {holds.format(n=amount)})"
    )


def impossible(_: Settings) -> tuple[Check, ...]:
    """A GPU could give it: the same as what ``read_pod`` refuses."""
    both = listed((names.MEMORY, names.CORES))
    step = f"({CORE_STEP} * variables.gpus)"
    return (
        Check(
            f"variables.containers.all(c, !{_has(_COUNT)})",
            f"{names.COUNT} is no resource to ask for: expected the pod's label",
        ),
        Check(
            f"variables.asking.all(c, !{_has(_OTHERS)})",
            f"expected {names.MEMORY} or {names.OTHERS_GPU} in a container, not both",
        ),
        Check(
            "variables.asking.all(c, has(c.resources.limits) && (!has(c.resources.requests) ||"
            f" {both}.all(name, !(name in c.resources.requests) || (name in c.resources.limits"
            " && quantity(c.resources.requests[name]).compareTo("
            "quantity(c.resources.limits[name])) == 0))))",
            f"{names.MEMORY} and {names.CORES}: expected in limits, and in requests the same or"
            " nothing",
        ),
        Check(
            f"variables.limits.all(l, {_MEM} in l)",
            f"{names.CORES} without {names.MEMORY}: expected both in a container's limits",
        ),
        Check(
            f"variables.limits.all(l, {both}.all(name, !(name in l)"
            f" || l[name].matches('{_WHOLE}')))",
            f"{names.MEMORY} and {names.CORES}: expected whole numbers without a unit",
        ),
        Check(_each(_MEM, "{n} >= 1"), f"{names.MEMORY}: expected at least 1"),
        Check(
            f"variables.asking.size() == 0 || variables.label.matches('{_COUNTED}')",
            f"label {names.COUNT}: expected a whole number from 1 to {MOST_GPUS}",
        ),
        Check(
            _each(_MEM, "{n} % variables.gpus == 0"),
            f"{names.MEMORY}: expected a multiple of the label {names.COUNT}",
        ),
        Check(
            _each(
                _CORE, f"({{n}} >= {step} && {{n}} <= 100 * variables.gpus && {{n}} % {step} == 0)"
            ),
            f"{names.CORES}: expected a multiple of {CORE_STEP} for each GPU, from {CORE_STEP} to"
            " 100 a GPU",
        ),
        Check(
            f"variables.limits.all(l, {_CORE} in l) || variables.limits.all(l, !({_CORE} in l))",
            f"containers of one pod: expected all or none to ask for {names.CORES}",
        ),
    )
