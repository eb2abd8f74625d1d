"""The rules as CEL, for policies of Kubernetes 1.30 and later."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s import names
from cgpu_k8s.objects.misspelt import COUNTED, NEAR, OURS, PREFIX
from cgpu_k8s.objects.pod_request import CORE_STEP
from cgpu_k8s.objects.pods import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.admission.settings import Settings

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
# The object that somebody wants to write; and, if it makes pods, one of those pods.
OBJECT, POD = "object", "variables.pod"
_FORM = "^[+-]?[0-9.]{1,20}([mk]|[eE][+-]?[0-9]{1,2})?$"  # of numbers without a unit
_COUNTED = "^(0{0,3}[1-9]|0{0,2}1[0-6])$"
assert MOST_GPUS == 16  # noqa: PLR2004, S101 (the pattern above)


class Check(NamedTuple):
    """A condition that must hold, and the sentence if it does not, both as CEL."""

    expression: str
    sentence: str


def write_list(values: Iterable[str]) -> str:
    """Return CEL for a list of strings."""
    return f"[{', '.join(map(quote_text, values))}]"


def quote_text(value: str) -> str:
    """Return CEL for a string; CEL and JSON escape in the same way."""
    return json.dumps(value)


def write_sentence(text: str, *values: str) -> str:
    """Return CEL for a sentence, with expressions of strings in place of its ``{}``."""
    texts = (quote_text(part) if part else "" for part in text.split("{}"))
    return " + ".join(each for pair in zip_longest(texts, values) for each in pair if each)


def _choose_sentence(*cases: tuple[str, str]) -> str:
    """Return CEL for the sentence of the first condition that holds; an empty one if none does."""
    return "".join(f"{condition} ? ({text}) : " for condition, text in cases) + "''"


_MEM, _CORE, _COUNT, _OTHERS = map(
    quote_text, (names.MEMORY, names.CORES, names.COUNT, names.OTHERS_GPU)
)


def _has_entry(kind: str, resource: str) -> str:
    """Return CEL: the container names a resource in its limits or requests, by ``kind``."""
    return f"(has(c.resources) && has(c.resources.{kind}) && {resource} in c.resources.{kind})"


def _has_resource(resource: str) -> str:
    """Return CEL: the container names a resource."""
    return f"({_has_entry('limits', resource)} || {_has_entry('requests', resource)})"


def _select_members(item: str, kind: str) -> str:
    """Return CEL for the labels or annotations of an object."""
    meta = f"{item}.metadata"
    return f"(has({meta}) && has({meta}.{kind}) ? {meta}.{kind} : {{}})"


def select_template(item: str) -> str:
    """Return CEL for the template of an object's pods, like ``template_of``."""
    spec = f"dyn({item}.spec)"
    return f"(has({spec}.jobTemplate) ? {spec}.jobTemplate.spec.template : {spec}.template)"


def has_new_template() -> str:
    """Return CEL: the object's template is new or has changed."""
    old, new = select_template("oldObject"), select_template("object")
    return f"request.operation == 'CREATE' || {new} != {old}"


def is_due() -> str:
    """Return CEL: the object makes pods now, and no controller makes it, like ``rules.is_due``."""
    owners, spec = "object.metadata.ownerReferences", "dyn(object.spec)"
    return (
        f"!(has({owners}) && {owners}.exists(owner, has(owner.controller) && owner.controller))"
        f" && !(has({spec}.suspend) && {spec}.suspend)"
        f" && !(has({spec}.replicas) && {spec}.replicas == 0)"
    )


def exempt_broken(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the checks of one rule, so that templates that broke it before are let in."""
    broke = f"request.operation == 'UPDATE' && ({_use_old_variables(is_broken(checks))})"
    return tuple(each._replace(expression=f"({each.expression}) || ({broke})") for each in checks)


def _use_old_variables(expression: str) -> str:
    """Return an expression for the template that the object had before, by its variables."""
    return expression.replace("variables.", "variables.old_")


def _list_containers(pod: str) -> str:
    """Return CEL for all containers of a pod, in the order in which they start."""
    first = f"{pod}.spec.initContainers"
    return f"((has({first}) ? {first} : []) + {pod}.spec.containers)"


def asks_for_gpu(pod: str) -> str:
    """Return CEL: the pod names a resource of ours. It needs no other condition before it."""
    asks = " || ".join(_has_resource(each) for each in (_MEM, _CORE, _COUNT))
    return f"{_list_containers(pod)}.exists(c, {asks})"


def is_from_users(accounts: Iterable[str]) -> str:
    """Return CEL: the request is from one of these users."""
    return f"request.userInfo.username in {write_list(accounts)}"


def is_from_others(accounts: Iterable[str]) -> str:
    """Return CEL: the request is from none of these users."""
    return f"!({is_from_users(accounts)})"


def is_broken(checks: tuple[Check, ...]) -> str:
    """Return CEL: one of these checks does not hold."""
    return " || ".join(f"!({check.expression})" for check in checks)


def define_variables(pod: str) -> dict[str, str]:
    """Return the variables that the checks of a pod use, in order; each may use those before it."""
    labels = _select_members(pod, "labels")
    malformed = _describe_malformed()
    found = {
        "containers": _list_containers(pod),
        "malformed": f"variables.containers.map(c, {malformed}).filter(text, text != '')",
        "asking": "variables.containers"
        f".filter(c, {_has_resource(_MEM)} || {_has_resource(_CORE)})",
        "label": f"{_COUNT} in {labels} ? {labels}[{_COUNT}] : '1'",
        "gpus": f"variables.label.matches('{_COUNTED}') ? int(variables.label) : 1",
        # Numbers can be read where nothing is malformed.
        "uneven": "(variables.malformed.size() == 0 ? variables.asking : [])"
        f".map(c, {_describe_uneven()}).filter(text, text != '')",
    }
    if pod != POD:
        return found
    template = select_template(OBJECT)
    before = f"request.operation == 'UPDATE' ? {select_template('oldObject')} : {template}"
    old = {f"old_{name}": _use_old_variables(expression) for name, expression in found.items()}
    return {"pod": template, **found, "old_pod": before, **old}


def check_annotations(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no annotation of ours is set."""
    notes = _select_members(item, "annotations")
    found = f"{write_list(RESERVED)}.filter(name, name in {notes})"
    return (
        Check(
            f"{found}.size() == 0",
            write_sentence("annotation {}: only cgpu's scheduler may set it", f"{found}[0]"),
        ),
    )


def check_annotation_changes(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no annotation of ours is set, changed or removed."""
    before = _select_members("oldObject", "annotations")
    after = _select_members(item, "annotations")
    found = (
        f"{write_list(RESERVED)}.filter(name, (name in {before}) != (name in {after})"
        f" || (name in {before} && {before}[name] != {after}[name]))"
    )
    return (
        Check(
            f"{found}.size() == 0",
            write_sentence("annotation {}: only cgpu's scheduler may change it", f"{found}[0]"),
        ),
    )


def check_misspelt_names(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no resource has a name near to one of ours: the same as ``find_misspelt``."""
    limits = "c.resources.limits"
    found = (
        f"{_list_containers(item)}.filter(c, has(c.resources) && has({limits})"
        f" && {limits}.exists(name, {_is_near(NEAR)}))"
    )
    resource = _describe_near(limits, NEAR, "resource", "container {}: ", "c.name")
    return (Check(f"{found}.size() == 0", f"{found}.map(c, {resource})[0]"),)


def check_miscounted_names(_: Settings, item: str) -> tuple[Check, ...]:
    """Check labels and annotations of a pod that asks for GPUs: the same as ``find_miscounted``."""
    return tuple(
        Check(
            f"variables.asking.size() == 0 || !{named}.exists(name, {_is_near((COUNTED,))})",
            _describe_near(named, (COUNTED,), kind, f"{kind} "),
        )
        for kind in ("label", "annotation")
        for named in (_select_members(item, f"{kind}s"),)
    )


def _is_near(patterns: Iterable[str]) -> str:
    """Return CEL: the name is near to one of ours."""
    return (
        f"name.startsWith({quote_text(PREFIX)}) && !(name in {write_list(OURS)})"
        f" && ({' || '.join(f'name.matches({quote_text(pattern)})' for pattern in patterns)})"
    )


def _describe_near(named: str, patterns: Iterable[str], kind: str, start: str, *values: str) -> str:
    """Return CEL for the sentence about the first name that is near to one of ours."""
    meant = _choose_sentence(
        *((f"name.matches({quote_text(each)})", quote_text(NEAR[each])) for each in patterns)
    )
    rest = f"{{}}: there is no such {kind}: did you mean {{}}?"
    text = write_sentence(start + rest, *values, "name", f"({meant})")
    return f"{named}.filter(name, {_is_near(patterns)}).map(name, {text})[0]"


def check_other_scheduler(settings: Settings, item: str) -> tuple[Check, ...]:
    """Check that its scheduler asks cgpu, or that a template has not chosen one yet."""
    spec = f"{item}.spec"
    name = f"(has({spec}.schedulerName) ? {spec}.schedulerName : '')"
    free = names.UNCHOSEN if item == POD else ()
    expected = write_list((*settings.schedulers, *free))
    return (
        Check(
            f"variables.asking.size() == 0 || {name} in {expected}",
            write_sentence(
                f"schedulerName={{}}: a pod that asks for {names.MEMORY} needs"
                f" {' or '.join(settings.schedulers)}",
                name,
            ),
        ),
    )


def check_chosen_node(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that nobody has chosen its node."""
    name = f"{item}.spec.nodeName"
    return (
        Check(
            f"variables.asking.size() == 0 || !has({name}) || {name} == ''",
            write_sentence(
                f"nodeName={{}}: expected none for a pod that asks for {names.MEMORY}", name
            ),
        ),
    )


def check_impossible_shares(_: Settings, __: str) -> tuple[Check, ...]:
    """Check that a GPU could give it: the same as ``read_pod`` refuses, in its order and words."""
    cores = _has_resource(_CORE)
    return (
        Check("variables.malformed.size() == 0", "variables.malformed[0]"),
        Check(
            f"variables.asking.size() == 0 || variables.label.matches('{_COUNTED}')",
            write_sentence(
                f"label {names.COUNT}={{}}: expected a whole number from 1 to {MOST_GPUS}",
                "variables.label",
            ),
        ),
        Check("variables.uneven.size() == 0", "variables.uneven[0]"),
        Check(
            f"variables.asking.all(c, {cores}) || variables.asking.all(c, !{cores})",
            write_sentence(f"containers of one pod: expected all or none to ask for {names.CORES}"),
        ),
    )


def _describe_malformed() -> str:
    """Return CEL for the sentence about what is wrong with a container's limits, or ""."""
    return _choose_sentence(
        (
            _has_resource(_COUNT),
            _describe_container(
                f"{names.COUNT} is no resource to ask for: expected the pod's label {names.COUNT},"
                f" beside {names.MEMORY} in the container's limits"
            ),
        ),
        (f"!({_has_resource(_MEM)} || {_has_resource(_CORE)})", "''"),
        (
            _has_resource(_OTHERS),
            _describe_container(f"expected {names.MEMORY} or {names.OTHERS_GPU}, not both"),
        ),
        (
            f"!{_has_resource(_MEM)}",
            _describe_container(
                f"{names.CORES} without {names.MEMORY}: expected both in its limits"
            ),
        ),
        *_describe_miswritten(names.CORES),
        (
            f"{_has_entry('limits', _CORE)} && {_read_number(_CORE)} == 0",
            _describe_container(
                f"{names.CORES}=0: expected at least {CORE_STEP} of each GPU, or no {names.CORES}"
            ),
        ),
        *_describe_miswritten(names.MEMORY),
    )


def _describe_miswritten(resource: str) -> Iterable[tuple[str, str]]:
    """Return pairs of CEL: what can be wrong with a resource of a container, and the sentence."""
    name = quote_text(resource)
    limit, request = (f"c.resources.{kind}[{name}]" for kind in ("limits", "requests"))
    equal = f"{_is_whole(request)} && quantity({request}).compareTo(quantity({limit})) == 0"
    return (
        (
            f"{_has_resource(name)} && !{_has_entry('limits', name)}",
            _describe_container(f"{resource} in requests only: expected in limits"),
        ),
        (
            f"{_has_resource(name)} && !{_is_whole(limit)}",
            _describe_container(f"{resource}={{}}: expected a whole number without a unit", limit),
        ),
        (
            f"{_has_entry('requests', name)} && !({equal})",
            _describe_container(
                f"{resource}={{}} in limits and {{}} in requests: expected the same, or limits"
                " alone",
                f"string({_read_number(name)})",
                request,
            ),
        ),
    )


def _describe_uneven() -> str:
    """Return CEL for a sentence if a container's part cannot be divided over its GPUs, or ""."""
    units, cores = _read_number(_MEM), _read_number(_CORE)
    least, most = f"({CORE_STEP} * variables.gpus)", "(100 * variables.gpus)"
    even = f"{cores} % {least} == 0 && {cores} >= 0 && {cores} <= {most}"
    given, step = f"string({units})", f"string({least})"
    return _choose_sentence(
        (f"{units} < 1", _describe_container(f"{names.MEMORY}={{}}: expected at least 1", given)),
        (
            f"{units} % variables.gpus != 0",
            _describe_container(
                f"{names.MEMORY}={{}}: expected a multiple of {names.COUNT}={{}}",
                given,
                "string(variables.gpus)",
            ),
        ),
        (
            f"{_has_entry('limits', _CORE)} && !({even})",
            _describe_container(
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


def _describe_container(text: str, *values: str) -> str:
    """Return CEL for a sentence about a container."""
    return write_sentence(f"container {{}}: {text}", "c.name", *values)


def _is_whole(value: str) -> str:
    return f"({value}.matches('{_FORM}') && quantity({value}).isInteger())"


def _read_number(resource: str) -> str:
    return f"quantity(c.resources.limits[{resource}]).asInteger()"
