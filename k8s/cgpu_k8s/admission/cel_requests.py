"""The rule about what a pod may ask for, as CEL. It refuses what ``read_pod`` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s import names
from cgpu_k8s.admission.cel import (
    OBJECT,
    POD,
    Check,
    choose_sentence,
    has_entry,
    has_resource,
    list_containers,
    quote_text,
    select_members,
    select_template,
    use_old_variables,
    write_sentence,
)
from cgpu_k8s.objects import groups
from cgpu_k8s.objects.pod_request import CORE_STEP
from cgpu_k8s.objects.pods import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_k8s.admission.settings import Settings

_FORM = "^[+-]?[0-9.]{1,20}([mk]|[eE][+-]?[0-9]{1,2})?$"  # a number without a unit of bytes
_COUNTED = "^(0{0,3}[1-9]|0{0,2}1[0-6])$"
assert MOST_GPUS == 16  # noqa: PLR2004, S101 (as in the pattern above)
_MEM, _CORE, _WHOLE, _COUNT, _OTHERS = map(
    quote_text, (names.MEMORY, names.CORES, names.WHOLE_GPU, names.COUNT, names.OTHERS_GPU)
)


def define_variables(pod: str) -> dict[str, str]:
    """Return the variables that a pod's checks use, in order: each may use those before it.

    For a template (``POD``) they also include ``pod``, which is the template, and ``old_pod`` and
    the like, for the template before the update.
    """
    malformed = _describe_malformed()
    found = {
        "containers": list_containers(pod),
        "malformed": f"variables.containers.map(c, {malformed}).filter(text, text != '')",
        "asking": "variables.containers.filter(c,"
        f" {' || '.join(map(has_resource, (_MEM, _CORE, _WHOLE)))})",
        "whole": f"variables.asking.filter(c, {has_resource(_WHOLE)})",
        "labels": select_members(pod, "labels"),
        "ungrouped": _describe_ungrouped(),
        "label": f"{_COUNT} in variables.labels ? variables.labels[{_COUNT}] : '1'",
        "gpus": f"variables.label.matches('{_COUNTED}') ? int(variables.label) : 1",
        # Numbers can be read only if no container is malformed.
        "uneven": "(variables.malformed.size() + variables.whole.size() == 0"
        f" ? variables.asking : []).map(c, {_describe_uneven()}).filter(text, text != '')",
    }
    if pod != POD:
        return found
    template = select_template(OBJECT)
    before = f"request.operation == 'UPDATE' ? {select_template('oldObject')} : {template}"
    old = {f"old_{name}": use_old_variables(expression) for name, expression in found.items()}
    return {"pod": template, **found, "old_pod": before, **old}


def check_impossible_shares(_: Settings, __: str) -> tuple[Check, ...]:
    """Check that GPUs could serve the pod, in the order and with the sentences of ``read_pod``."""
    cores = has_resource(_CORE)
    return (
        Check("variables.malformed.size() == 0", "variables.malformed[0]"),
        Check(
            "variables.whole.size() == 0 || variables.asking.size() == 1",
            write_sentence(
                f"container {{}}: expected {names.WHOLE_GPU} in one container of a pod, and"
                f" neither {names.WHOLE_GPU} nor {names.MEMORY} in others",
                "variables.whole[0].name",
            ),
        ),
        Check(
            "variables.asking.size() == 0 || variables.whole.size() != 0"
            f" || variables.label.matches('{_COUNTED}')",
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
        Check("variables.asking.size() == 0 || variables.ungrouped == ''", "variables.ungrouped"),
    )


def _describe_ungrouped() -> str:
    """Return CEL for the sentence about invalid labels of a group, or "", like ``read_group``."""
    cases = []
    for pair in groups.LABELS:
        name, size = map(_read_label, pair)
        either = " || ".join(f"{quote_text(each)} in variables.labels" for each in pair)
        for value, (label, other) in ((name, pair[::-1]), (size, pair)):
            text = quote_text(f"label {label} without {other}: expected both")
            cases.append((f"({either}) && {value} == ''", text))
        text = write_sentence(f"label {pair[1]}={{}}: expected a whole number from 1 to 9999", size)
        cases.append((f"({either}) && !{size}.matches('^{groups.SIZE}$')", text))
    first, second = (" + ' ' + ".join(map(_read_label, pair)) for pair in groups.LABELS)
    both = " && ".join(f"{_read_label(name)} != ''" for name, _ in groups.LABELS)
    cases.append((f"{both} && {first} != {second}", quote_text(groups.TWO_GROUPS)))
    return choose_sentence(*cases)


def _read_label(name: str) -> str:
    """Return CEL for the value of a label, or "" if the pod does not have it."""
    label = quote_text(name)
    return f"({label} in variables.labels ? variables.labels[{label}] : '')"


def _describe_malformed() -> str:
    """Return CEL for the sentence about the first mistake in a container's resources, or ""."""
    number = _read_number(_WHOLE)
    return choose_sentence(
        (
            has_resource(_COUNT),
            _describe_container(
                f"{names.COUNT} is no resource to ask for: expected the pod's label {names.COUNT},"
                f" beside {names.MEMORY} in the container's limits"
            ),
        ),
        *(
            (
                f"{has_resource(_WHOLE)} && {has_resource(quote_text(other))}",
                _describe_container(f"expected {names.WHOLE_GPU} or {other}, not both"),
            )
            for other in (names.MEMORY, names.CORES, names.OTHERS_GPU)
        ),
        *_describe_miswritten(names.WHOLE_GPU),
        (
            f"{has_entry('limits', _WHOLE)} && !({number} >= 1 && {number} <= {MOST_GPUS})",
            _describe_container(
                f"{names.WHOLE_GPU}={{}}: expected a whole number from 1 to {MOST_GPUS}",
                f"string({number})",
            ),
        ),
        (f"!({has_resource(_MEM)} || {has_resource(_CORE)})", "''"),
        (
            has_resource(_OTHERS),
            _describe_container(f"expected {names.MEMORY} or {names.OTHERS_GPU}, not both"),
        ),
        (
            f"!{has_resource(_MEM)}",
            _describe_container(
                f"{names.CORES} without {names.MEMORY}: expected both in its limits"
            ),
        ),
        *_describe_miswritten(names.CORES),
        (
            f"{has_entry('limits', _CORE)} && {_read_number(_CORE)} == 0",
            _describe_container(
                f"{names.CORES}=0: expected at least {CORE_STEP} of each GPU, or no {names.CORES}"
            ),
        ),
        *_describe_miswritten(names.MEMORY),
    )


def _describe_miswritten(resource: str) -> Iterable[tuple[str, str]]:
    """Return pairs of CEL: a mistake in a container's resource, and the sentence about it."""
    name = quote_text(resource)
    limit, request = (f"c.resources.{kind}[{name}]" for kind in ("limits", "requests"))
    equal = f"{_is_whole(request)} && quantity({request}).compareTo(quantity({limit})) == 0"
    return (
        (
            f"{has_resource(name)} && !{has_entry('limits', name)}",
            _describe_container(f"{resource} in requests only: expected in limits"),
        ),
        (
            f"{has_resource(name)} && !{_is_whole(limit)}",
            _describe_container(f"{resource}={{}}: expected a whole number without a unit", limit),
        ),
        (
            f"{has_entry('requests', name)} && !({equal})",
            _describe_container(
                f"{resource}={{}} in limits and {{}} in requests: expected the same, or limits"
                " alone",
                f"string({_read_number(name)})",
                request,
            ),
        ),
    )


def _describe_uneven() -> str:
    """Return CEL for the sentence about a share that does not divide over the pod's GPUs, or ""."""
    units, cores = _read_number(_MEM), _read_number(_CORE)
    least, most = f"({CORE_STEP} * variables.gpus)", "(100 * variables.gpus)"
    even = f"{cores} % {least} == 0 && {cores} >= 0 && {cores} <= {most}"
    given, step = f"string({units})", f"string({least})"
    return choose_sentence(
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
            f"{has_entry('limits', _CORE)} && !({even})",
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
    """Return CEL for a sentence about container ``c``."""
    return write_sentence(f"container {{}}: {text}", "c.name", *values)


def _is_whole(value: str) -> str:
    return f"({value}.matches('{_FORM}') && quantity({value}).isInteger())"


def _read_number(resource: str) -> str:
    return f"quantity(c.resources.limits[{resource}]).asInteger()"
