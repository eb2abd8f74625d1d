"""The rules as CEL, for policies of Kubernetes 1.30 and later."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s import names
from cgpu_k8s.objects.misspelt import COUNTED, NEAR, OURS, PREFIX
from cgpu_k8s.objects.pods import MOST_GPUS
from cgpu_node.allocation import CORE_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable

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
# What somebody wants to write, and, of what makes pods, one of those.
OBJECT, POD = "object", "variables.pod"
_FORM = "^[+-]?[0-9.]{1,20}([mk]|[eE][+-]?[0-9]{1,2})?$"  # of numbers without a unit
_COUNTED = "^(0{0,3}[1-9]|0{0,2}1[0-6])$"
assert MOST_GPUS == 16  # noqa: PLR2004, S101 (the pattern above)


class Check(NamedTuple):
    """A condition, and the sentence if it does not hold, both as CEL."""

    expression: str
    sentence: str


def listed(values: Iterable[str]) -> str:
    """A list of strings."""
    return f"[{', '.join(map(quoted, values))}]"


def quoted(value: str) -> str:
    """A string; what JSON escapes, CEL escapes alike."""
    return json.dumps(value)


def sentence(text: str, *values: str) -> str:
    """A sentence, with expressions of strings in place of its ``{}``."""
    texts = (quoted(part) if part else "" for part in text.split("{}"))
    return " + ".join(each for pair in zip_longest(texts, values) for each in pair if each)


def _first(*cases: tuple[str, str]) -> str:
    """The sentence of the first condition that holds; an empty one if none does."""
    return "".join(f"{condition} ? ({text}) : " for condition, text in cases) + "''"


_MEM, _CORE, _COUNT, _OTHERS = map(
    quoted, (names.MEMORY, names.CORES, names.COUNT, names.OTHERS_GPU)
)


def _in(kind: str, resource: str) -> str:
    """Return CEL: the container names a resource in its limits or requests, by ``kind``."""
    return f"(has(c.resources) && has(c.resources.{kind}) && {resource} in c.resources.{kind})"


def _has(resource: str) -> str:
    """Return CEL: the container names a resource."""
    return f"({_in('limits', resource)} || {_in('requests', resource)})"


def _members(item: str, kind: str) -> str:
    """The labels or annotations of an object."""
    meta = f"{item}.metadata"
    return f"(has({meta}) && has({meta}.{kind}) ? {meta}.{kind} : {{}})"


def template(item: str) -> str:
    """Return CEL for the template of an object's pods, like ``template_of``."""
    spec = f"dyn({item}.spec)"
    return f"(has({spec}.jobTemplate) ? {spec}.jobTemplate.spec.template : {spec}.template)"


def renewed() -> str:
    """Return CEL: the object's template is new or has changed."""
    return f"request.operation == 'CREATE' || {template('object')} != {template('oldObject')}"


def due() -> str:
    """Return CEL: the object makes pods now, and no controller makes it, like ``is_due``."""
    owners, spec = "object.metadata.ownerReferences", "dyn(object.spec)"
    return (
        f"!(has({owners}) && {owners}.exists(owner, has(owner.controller) && owner.controller))"
        f" && !(has({spec}.suspend) && {spec}.suspend)"
        f" && !(has({spec}.replicas) && {spec}.replicas == 0)"
    )


def kept(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """The checks of one rule, for templates that did not break it before."""
    broke = f"request.operation == 'UPDATE' && ({_old(broken(checks))})"
    return tuple(each._replace(expression=f"({each.expression}) || ({broke})") for each in checks)


def _old(expression: str) -> str:
    """Return an expression for the template that the object had before, by its variables."""
    return expression.replace("variables.", "variables.old_")


def _containers(pod: str) -> str:
    """All containers of a pod, in the order in which they start."""
    first = f"{pod}.spec.initContainers"
    return f"((has({first}) ? {first} : []) + {pod}.spec.containers)"


def asks(pod: str) -> str:
    """Return CEL: the pod names a resource of ours. It needs no other condition before it."""
    return f"{_containers(pod)}.exists(c, {_has(_MEM)} || {_has(_CORE)} || {_has(_COUNT)})"


def among(accounts: Iterable[str]) -> str:
    """Return CEL: the request is of one of these users."""
    return f"request.userInfo.username in {listed(accounts)}"


def others(accounts: Iterable[str]) -> str:
    """Return CEL: the request is of none of these users."""
    return f"!({among(accounts)})"


def broken(checks: tuple[Check, ...]) -> str:
    """Return CEL: one of these checks does not hold."""
    return " || ".join(f"!({check.expression})" for check in checks)


def variables(pod: str) -> dict[str, str]:
    """Names that the checks of a pod use, in order; each may use those before it."""
    labels = _members(pod, "labels")
    found = {
        "containers": _containers(pod),
        "malformed": f"variables.containers.map(c, {_malformed()}).filter(text, text != '')",
        "asking": f"variables.containers.filter(c, {_has(_MEM)} || {_has(_CORE)})",
        "label": f"{_COUNT} in {labels} ? {labels}[{_COUNT}] : '1'",
        "gpus": f"variables.label.matches('{_COUNTED}') ? int(variables.label) : 1",
        # Numbers can be read where nothing is malformed.
        "uneven": "(variables.malformed.size() == 0 ? variables.asking : [])"
        f".map(c, {_uneven()}).filter(text, text != '')",
    }
    if pod != POD:
        return found
    before = f"request.operation == 'UPDATE' ? {template('oldObject')} : {template(OBJECT)}"
    old = {f"old_{name}": _old(expression) for name, expression in found.items()}
    return {"pod": template(OBJECT), **found, "old_pod": before, **old}


def written(_: Settings, item: str) -> tuple[Check, ...]:
    """No annotation of ours is set."""
    notes = _members(item, "annotations")
    found = f"{listed(RESERVED)}.filter(name, name in {notes})"
    return (
        Check(
            f"{found}.size() == 0",
            sentence("annotation {}: only cgpu's scheduler may set it", f"{found}[0]"),
        ),
    )


def altered(_: Settings, item: str) -> tuple[Check, ...]:
    """No annotation of ours is set, changed or removed."""
    before, after = _members("oldObject", "annotations"), _members(item, "annotations")
    found = (
        f"{listed(RESERVED)}.filter(name, (name in {before}) != (name in {after})"
        f" || (name in {before} && {before}[name] != {after}[name]))"
    )
    return (
        Check(
            f"{found}.size() == 0",
            sentence("annotation {}: only cgpu's scheduler may change it", f"{found}[0]"),
        ),
    )


def misspelt(_: Settings, item: str) -> tuple[Check, ...]:
    """No resource is near to one of ours: the same as ``misspelt`` of objects."""
    limits = "c.resources.limits"
    found = (
        f"{_containers(item)}.filter(c, has(c.resources) && has({limits})"
        f" && {limits}.exists(name, {_near(NEAR)}))"
    )
    resource = _nearest(limits, NEAR, "resource", "container {}: ", "c.name")
    return (Check(f"{found}.size() == 0", f"{found}.map(c, {resource})[0]"),)


def miscounted(_: Settings, item: str) -> tuple[Check, ...]:
    """Nothing beside what asks for GPUs is near to their number, likewise."""
    return tuple(
        Check(
            f"variables.asking.size() == 0 || !{named}.exists(name, {_near((COUNTED,))})",
            _nearest(named, (COUNTED,), kind, f"{kind} "),
        )
        for kind in ("label", "annotation")
        for named in (_members(item, f"{kind}s"),)
    )


def _near(patterns: Iterable[str]) -> str:
    """Return CEL: the name is near to one of ours."""
    return (
        f"name.startsWith({quoted(PREFIX)}) && !(name in {listed(OURS)})"
        f" && ({' || '.join(f'name.matches({quoted(pattern)})' for pattern in patterns)})"
    )


def _nearest(named: str, patterns: Iterable[str], kind: str, start: str, *values: str) -> str:
    """The sentence about the first name that is near to one of ours."""
    meant = _first(*((f"name.matches({quoted(each)})", quoted(NEAR[each])) for each in patterns))
    rest = f"{{}}: there is no such {kind}: did you mean {{}}?"
    text = sentence(start + rest, *values, "name", f"({meant})")
    return f"{named}.filter(name, {_near(patterns)}).map(name, {text})[0]"


def elsewhere(settings: Settings, item: str) -> tuple[Check, ...]:
    """Its scheduler asks cgpu, or that of a template is not chosen yet."""
    spec = f"{item}.spec"
    name = f"(has({spec}.schedulerName) ? {spec}.schedulerName : '')"
    free = names.UNCHOSEN if item == POD else ()
    return (
        Check(
            f"variables.asking.size() == 0 || {name} in {listed((*settings.schedulers, *free))}",
            sentence(
                f"schedulerName={{}}: a pod that asks for {names.MEMORY} needs"
                f" {' or '.join(settings.schedulers)}",
                name,
            ),
        ),
    )


def placed(_: Settings, item: str) -> tuple[Check, ...]:
    """Nobody has chosen its node."""
    name = f"{item}.spec.nodeName"
    return (
        Check(
            f"variables.asking.size() == 0 || !has({name}) || {name} == ''",
            sentence(f"nodeName={{}}: expected none for a pod that asks for {names.MEMORY}", name),
        ),
    )


def impossible(_: Settings, __: str) -> tuple[Check, ...]:
    """A GPU could give it: the same as what ``read_pod`` refuses, in its order and its words."""
    return (
        Check("variables.malformed.size() == 0", "variables.malformed[0]"),
        Check(
            f"variables.asking.size() == 0 || variables.label.matches('{_COUNTED}')",
            sentence(
                f"label {names.COUNT}={{}}: expected a whole number from 1 to {MOST_GPUS}",
                "variables.label",
            ),
        ),
        Check("variables.uneven.size() == 0", "variables.uneven[0]"),
        Check(
            f"variables.asking.all(c, {_has(_CORE)}) || variables.asking.all(c, !{_has(_CORE)})",
            sentence(f"containers of one pod: expected all or none to ask for {names.CORES}"),
        ),
    )


def _malformed() -> str:
    """Return CEL for the sentence about what is wrong with a container's limits, or ""."""
    return _first(
        (
            _has(_COUNT),
            _about(
                f"{names.COUNT} is no resource to ask for: expected the pod's label {names.COUNT},"
                f" beside {names.MEMORY} in the container's limits"
            ),
        ),
        (f"!({_has(_MEM)} || {_has(_CORE)})", "''"),
        (_has(_OTHERS), _about(f"expected {names.MEMORY} or {names.OTHERS_GPU}, not both")),
        (
            f"!{_has(_MEM)}",
            _about(f"{names.CORES} without {names.MEMORY}: expected both in its limits"),
        ),
        *_miswritten(names.CORES),
        (
            f"{_in('limits', _CORE)} && {_number(_CORE)} == 0",
            _about(f"{names.CORES}=0: expected at least {CORE_STEP} of each GPU, or no"
                   f" {names.CORES}"),
        ),
        *_miswritten(names.MEMORY),
    )  # fmt: skip


def _miswritten(resource: str) -> Iterable[tuple[str, str]]:
    """Return pairs of CEL: what can be wrong with a resource of a container, and the sentence."""
    name = quoted(resource)
    limit, request = (f"c.resources.{kind}[{name}]" for kind in ("limits", "requests"))
    equal = f"{_is_whole(request)} && quantity({request}).compareTo(quantity({limit})) == 0"
    return (
        (
            f"{_has(name)} && !{_in('limits', name)}",
            _about(f"{resource} in requests only: expected in limits"),
        ),
        (
            f"{_has(name)} && !{_is_whole(limit)}",
            _about(f"{resource}={{}}: expected a whole number without a unit", limit),
        ),
        (
            f"{_in('requests', name)} && !({equal})",
            _about(
                f"{resource}={{}} in limits and {{}} in requests: expected the same, or limits"
                " alone",
                f"string({_number(name)})",
                request,
            ),
        ),
    )


def _uneven() -> str:
    """Return CEL for a sentence if a container's part cannot be divided over its GPUs, or ""."""
    units, cores = _number(_MEM), _number(_CORE)
    least, most = f"({CORE_STEP} * variables.gpus)", "(100 * variables.gpus)"
    even = f"{cores} % {least} == 0 && {cores} >= 0 && {cores} <= {most}"
    given, step = f"string({units})", f"string({least})"
    return _first(
        (f"{units} < 1", _about(f"{names.MEMORY}={{}}: expected at least 1", given)),
        (
            f"{units} % variables.gpus != 0",
            _about(
                f"{names.MEMORY}={{}}: expected a multiple of {names.COUNT}={{}}",
                given,
                "string(variables.gpus)",
            ),
        ),
        (
            f"{_in('limits', _CORE)} && !({even})",
            _about(
                f"{names.CORES}={{}}: expected a multiple of {{}} from {{}} to {{}}{{}}",
                f"string({cores})",
                step,
                step,
                f"string({most})",
                f"(variables.gpus == 1 ? '' : ', {CORE_STEP} to 100 of each of '"
                " + string(variables.gpus) + ' GPUs')",
            ),
        ),
    )


def _about(text: str, *values: str) -> str:
    """A sentence about a container."""
    return sentence(f"container {{}}: {text}", "c.name", *values)


def _is_whole(value: str) -> str:
    return f"({value}.matches('{_FORM}') && quantity({value}).isInteger())"


def _number(resource: str) -> str:
    return f"quantity(c.resources.limits[{resource}]).asInteger()"
