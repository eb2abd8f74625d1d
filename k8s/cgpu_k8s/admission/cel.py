"""The rules as CEL, for policies of Kubernetes 1.30 and later."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s import names
from cgpu_k8s.objects.misspelt import COUNTED, NEAR, OURS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.admission.settings import Settings

# CEL for the object in a request, and for the pod template of an object that makes pods.
OBJECT, POD = "object", "variables.pod"


class Check(NamedTuple):
    """A condition that must hold, and the sentence to show if it does not, both as CEL."""

    expression: str
    sentence: str


def write_list(values: Iterable[str]) -> str:
    """Return a CEL list of string literals."""
    return f"[{', '.join(map(quote_text, values))}]"


def quote_text(value: str) -> str:
    """Return a CEL string literal; CEL and JSON escape in the same way."""
    return json.dumps(value)


def write_sentence(text: str, *values: str) -> str:
    """Return CEL for a sentence in which ``values``, string expressions, replace each ``{}``."""
    texts = (quote_text(part) if part else "" for part in text.split("{}"))
    return " + ".join(each for pair in zip_longest(texts, values) for each in pair if each)


def choose_sentence(*cases: tuple[str, str]) -> str:
    """Return CEL for the sentence of the first condition that holds, or for "" if none does."""
    return "".join(f"{condition} ? ({text}) : " for condition, text in cases) + "''"


_MEM, _CORE, _WHOLE, _COUNT = map(
    quote_text, (names.MEMORY, names.CORES, names.WHOLE_GPU, names.COUNT)
)


def has_entry(kind: str, resource: str) -> str:
    """Return CEL that tests whether container ``c`` names a resource in ``kind``.

    Args:
        kind: "limits" or "requests".
        resource: the resource's name, as CEL.
    """
    return f"(has(c.resources) && has(c.resources.{kind}) && {resource} in c.resources.{kind})"


def has_resource(resource: str) -> str:
    """Return CEL that tests whether container ``c`` names a resource in limits or requests."""
    return f"({has_entry('limits', resource)} || {has_entry('requests', resource)})"


def select_members(item: str, kind: str) -> str:
    """Return CEL for an object's "labels" or "annotations" (``kind``), a map that may be empty."""
    meta = f"{item}.metadata"
    return f"(has({meta}) && has({meta}.{kind}) ? {meta}.{kind} : {{}})"


def select_template(item: str) -> str:
    """Return CEL for an object's pod template, like ``template_of``."""
    spec = f"dyn({item}.spec)"
    return f"(has({spec}.jobTemplate) ? {spec}.jobTemplate.spec.template : {spec}.template)"


def has_new_template() -> str:
    """Return CEL that tests whether the object's pod template is new or changed."""
    old, new = select_template("oldObject"), select_template("object")
    return f"request.operation == 'CREATE' || {new} != {old}"


def is_due() -> str:
    """Return CEL that tests whether the object is due, like ``rules.is_due``."""
    owners, spec = "object.metadata.ownerReferences", "dyn(object.spec)"
    return (
        f"!(has({owners}) && {owners}.exists(owner, has(owner.controller) && owner.controller))"
        f" && !(has({spec}.suspend) && {spec}.suspend)"
        f" && !(has({spec}.replicas) && {spec}.replicas == 0)"
    )


def exempt_broken(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return a rule's checks, relaxed to admit updates of templates that broke the rule before."""
    broke = f"request.operation == 'UPDATE' && ({use_old_variables(is_broken(checks))})"
    return tuple(each._replace(expression=f"({each.expression}) || ({broke})") for each in checks)


def use_old_variables(expression: str) -> str:
    """Return the expression for the old template: its variables get the prefix ``old_``."""
    return expression.replace("variables.", "variables.old_")


def list_containers(pod: str) -> str:
    """Return CEL for all containers of a pod, in the order in which they start."""
    first = f"{pod}.spec.initContainers"
    return f"((has({first}) ? {first} : []) + {pod}.spec.containers)"


def asks_for_gpu(pod: str) -> str:
    """Return CEL that tests whether a pod names one of cgpu's resources; it needs no variables."""
    asks = " || ".join(has_resource(each) for each in (_MEM, _CORE, _WHOLE, _COUNT))
    return f"{list_containers(pod)}.exists(c, {asks})"


def is_from_users(accounts: Iterable[str]) -> str:
    """Return CEL that tests whether the request is from one of these users."""
    return f"request.userInfo.username in {write_list(accounts)}"


def is_from_others(accounts: Iterable[str]) -> str:
    """Return CEL that tests whether the request is from none of these users."""
    return f"!({is_from_users(accounts)})"


def is_broken(checks: tuple[Check, ...]) -> str:
    """Return CEL that tests whether one of these checks fails."""
    return " || ".join(f"!({check.expression})" for check in checks)


def check_annotations(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no reserved annotation is set."""
    notes = select_members(item, "annotations")
    found = f"{write_list(names.RESERVED)}.filter(name, name in {notes})"
    return (
        Check(
            f"{found}.size() == 0",
            write_sentence("annotation {}: only cgpu's scheduler may set it", f"{found}[0]"),
        ),
    )


def check_annotation_changes(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no reserved annotation is set, changed or removed."""
    before = select_members("oldObject", "annotations")
    after = select_members(item, "annotations")
    found = (
        f"{write_list(names.RESERVED)}.filter(name, (name in {before}) != (name in {after})"
        f" || (name in {before} && {before}[name] != {after}[name]))"
    )
    return (
        Check(
            f"{found}.size() == 0",
            write_sentence("annotation {}: only cgpu's scheduler may change it", f"{found}[0]"),
        ),
    )


def check_misspelt_names(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that no resource has a misspelt name of cgpu's, like ``find_misspelt``."""
    limits = "c.resources.limits"
    found = (
        f"{list_containers(item)}.filter(c, has(c.resources) && has({limits})"
        f" && {limits}.exists(name, {_is_near(NEAR)}))"
    )
    resource = _describe_near(limits, NEAR, "resource", "container {}: ", "c.name")
    return (Check(f"{found}.size() == 0", f"{found}.map(c, {resource})[0]"),)


def check_miscounted_names(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that a pod that asks for GPUs misspells no ``gpu-count``, like ``find_miscounted``."""
    return tuple(
        Check(
            f"variables.asking.size() == 0 || !{named}.exists(name, {_is_near((COUNTED,))})",
            _describe_near(named, (COUNTED,), kind, f"{kind} "),
        )
        for kind in ("label", "annotation")
        for named in (select_members(item, f"{kind}s"),)
    )


def _is_near(patterns: Iterable[str]) -> str:
    """Return CEL that tests whether ``name`` is nearly one of cgpu's names."""
    return (
        f"name.startsWith({quote_text(PREFIX)}) && !(name in {write_list(OURS)})"
        f" && ({' || '.join(f'name.matches({quote_text(pattern)})' for pattern in patterns)})"
    )


def _describe_near(named: str, patterns: Iterable[str], kind: str, start: str, *values: str) -> str:
    """Return CEL for the sentence about the first of ``named`` that is nearly a name of cgpu's."""
    meant = choose_sentence(
        *((f"name.matches({quote_text(each)})", quote_text(NEAR[each])) for each in patterns)
    )
    rest = f"{{}}: there is no such {kind}: did you mean {{}}?"
    text = write_sentence(start + rest, *values, "name", f"({meant})")
    return f"{named}.filter(name, {_is_near(patterns)}).map(name, {text})[0]"


def check_other_scheduler(settings: Settings, item: str) -> tuple[Check, ...]:
    """Check that a pod that asks for GPUs names cgpu's scheduler; a template may name none."""
    spec = f"{item}.spec"
    name = f"(has({spec}.schedulerName) ? {spec}.schedulerName : '')"
    free = names.UNCHOSEN if item == POD else ()
    expected = write_list((*settings.schedulers, *free))
    return (
        Check(
            f"variables.asking.size() == 0 || {name} in {expected}",
            write_sentence(
                f"schedulerName={{}}: a pod that asks for {names.ASKED} needs"
                f" {' or '.join(settings.schedulers)}",
                name,
            ),
        ),
    )


def check_chosen_node(_: Settings, item: str) -> tuple[Check, ...]:
    """Check that a pod that asks for GPUs names no node."""
    name = f"{item}.spec.nodeName"
    return (
        Check(
            f"variables.asking.size() == 0 || !has({name}) || {name} == ''",
            write_sentence(
                f"nodeName={{}}: expected none for a pod that asks for {names.ASKED}", name
            ),
        ),
    )
