"""The rules of the guard, each in two forms: a function for a webhook, and CEL for a policy.

A decision counts because nobody but the scheduler can write it. Bindings do not contain the pod, so
who may bind a pod that asks for a part of a GPU cannot be a rule here: that is the right to create
``pods/binding``, and a pod that is bound without a decision gets no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import shown
from cgpu_k8s import names
from cgpu_k8s.guard import cel
from cgpu_k8s.guard.settings import Settings
from cgpu_k8s.objects.fields import member, strings
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.fields import Json


class Review(NamedTuple):
    """What somebody wants the API server to do.

    Attributes:
        operation: CREATE or UPDATE.
        resource: ``pods``, or with its subresource ``pods/status``.
        user: who wants it.
        item: the object as it would be.
        before: the object as it is; None: there is none.
    """

    operation: str
    resource: str
    user: str
    item: Json
    before: Json | None = None


class Event(NamedTuple):
    """Which requests rules are for.

    Attributes:
        operations: as in ``Review``.
        resources: likewise; ``pods/*`` are all subresources.
        exempts: whether the scheduler's accounts need not follow the rules.
    """

    operations: tuple[str, ...]
    resources: tuple[str, ...]
    exempts: bool


CREATED = Event(("CREATE",), ("pods",), exempts=False)  # no pod begins with a decision
CHANGED = Event(("UPDATE",), ("pods", "pods/*"), exempts=True)
BOUND = Event(("CREATE",), ("pods/binding", "bindings"), exempts=True)


class Rule(NamedTuple):
    """One rule.

    Attributes:
        event: what it is for.
        refuse: why a request breaks it, one sentence, or "".
        checks: the same as CEL: what must hold, and the sentence if it does not.
    """

    event: Event
    refuse: Callable[[Review, Settings], str]
    checks: Callable[[Settings], tuple[cel.Check, ...]]


def refusal(review: Review, settings: Settings) -> str:
    """Why a request is refused, one sentence; "": it is let in.

    Raises:
        ObjectError: the object is not what Kubernetes' API describes.
    """
    for rule in RULES:
        exempt = rule.event.exempts and review.user in settings.accounts
        if not exempt and _concerns(rule.event, review):
            sentence = rule.refuse(review, settings)
            if sentence:
                return sentence
    return ""


def _concerns(event: Event, review: Review) -> bool:
    main = review.resource.partition("/")[0]
    any_part = f"{main}/*" if main != review.resource else main
    return review.operation in event.operations and bool(
        {review.resource, any_part} & {*event.resources}
    )


def _notes(item: Json | None) -> dict[str, str]:
    return strings(member(item or {}, "metadata", dict), "annotations")


def _written(review: Review, _: Settings) -> str:
    """Annotations that only the scheduler writes."""
    found = next((name for name in cel.RESERVED if name in _notes(review.item)), "")
    return f"annotation {found}: only cgpu's scheduler may set it" if found else ""


def _altered(review: Review, _: Settings) -> str:
    before, after = _notes(review.before), _notes(review.item)
    found = next((name for name in cel.RESERVED if before.get(name) != after.get(name)), "")
    return f"annotation {found}: only cgpu's scheduler may change it" if found else ""


def _impossible(review: Review, _: Settings) -> str:
    return read_pod(review.item).refusal


def _elsewhere(review: Review, settings: Settings) -> str:
    """Pods of another scheduler would be bound without a decision."""
    name = member(_spec(review), "schedulerName", str)
    if not read_pod(review.item).asks or name in settings.schedulers:
        return ""
    allowed = " or ".join(settings.schedulers)
    return f"schedulerName={shown(name)}: a pod that asks for {names.MEMORY} needs {allowed}"


def _placed(review: Review, _: Settings) -> str:
    name = member(_spec(review), "nodeName", str)
    if not read_pod(review.item).asks or not name:
        return ""
    return f"nodeName={shown(name)}: expected none for a pod that asks for {names.MEMORY}"


def _spec(review: Review) -> dict[str, Any]:
    return member(review.item, "spec", dict)


RULES = (
    Rule(CREATED, _written, cel.written),
    Rule(CREATED, _impossible, cel.impossible),
    Rule(CREATED, _elsewhere, cel.elsewhere),
    Rule(CREATED, _placed, cel.placed),
    Rule(CHANGED, _altered, cel.altered),
    Rule(BOUND, _written, cel.written),
)
