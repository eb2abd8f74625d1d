"""The rules of the guard, each in two forms: a function for a webhook, and CEL for a policy.

Nodes trust a decision because only the scheduler can write it. RBAC lets an agent change all nodes;
the rules restrict it to what it offers on its own node. The rules do not restrict who binds a pod
that asks for GPUs, because a Binding does not contain the pod. RBAC restricts that by the right to
create ``pods/binding``, and a pod that is bound without a decision gets no GPU.
Design: docs/design/kubernetes.md.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import printable
from cgpu_k8s import names
from cgpu_k8s.admission import cel, cel_requests, nodes
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.apiserver.resources import MAKERS
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.misspelt import find_miscounted, find_misspelt
from cgpu_k8s.objects.pods import read_pod, template_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.fields import Json


class Review(NamedTuple):
    """A request to the API server, as rules see it.

    Attributes:
        operation: CREATE or UPDATE.
        resource: such as ``pods`` or, with a subresource, ``pods/status``.
        user: the user who makes the request.
        item: the object as the request would store it.
        before: the stored object; None if there is none.
        node: the node of the pod to which the user's token is bound; "" if it is not known.
    """

    operation: str
    resource: str
    user: str
    item: Json
    before: Json | None = None
    node: str = ""


class Users(Enum):
    """The users that rules apply to."""

    ALL = "all"
    OTHERS = "others"  # all but the scheduler's accounts
    AGENTS = "agents"


class Event(NamedTuple):
    """The requests that rules apply to.

    Attributes:
        operations: as in ``Review``.
        resources: as in ``Review``; ``pods/*`` means all subresources.
        users: the users to whom the rules apply.
        groups: the API groups of the resources.
        versions: the versions of these groups.
    """

    operations: tuple[str, ...]
    resources: tuple[str, ...]
    users: Users
    groups: tuple[str, ...] = ("",)
    versions: tuple[str, ...] = ("v1",)


CREATED = Event(("CREATE",), ("pods",), Users.ALL)  # nobody creates a pod with a decision
# Objects that make pods. Here the rules only give an early error: the pods would be refused too.
TEMPLATES = Event(
    ("CREATE", "UPDATE"),
    tuple(sorted({each.plural for each in MAKERS.values()})),
    Users.ALL,
    tuple(sorted({each.group for each in MAKERS.values()})),
    ("v1", "v1beta1"),  # CronJobs before 1.21
)
CHANGED = Event(("UPDATE",), ("pods", "pods/*"), Users.OTHERS)
BOUND = Event(("CREATE",), ("pods/binding", "bindings"), Users.OTHERS)
NODES = Event(("UPDATE",), ("nodes", "nodes/*"), Users.AGENTS)


class Rule(NamedTuple):
    """One rule.

    Attributes:
        event: the requests that it applies to.
        refuse: returns in one sentence why a request breaks the rule, or "".
        checks: returns the same rule as CEL, given the settings and an expression for the object.
    """

    event: Event
    refuse: Callable[[Review, Settings], str]
    checks: Callable[[Settings, str], tuple[cel.Check, ...]]


def find_refusal(review: Review, settings: Settings) -> str:
    """Return in one sentence why a request is refused; "" if it is admitted.

    Raises:
        ObjectError: the object is not as Kubernetes' API defines it.
    """
    was: Review | None = None
    if event_applies(TEMPLATES, review, settings):
        pod, before = template_of(review.item), template_of(review.before or {})
        if pod == before or not is_due(review.item):  # such as when the object is scaled
            return ""
        was = review._replace(item=before) if review.before else None
        review = review._replace(item=pod)
    for rule in RULES:
        if event_applies(rule.event, review, settings):
            sentence = rule.refuse(review, settings)
            if sentence and not (was and rule.refuse(was, settings)):
                return sentence
    return ""


def is_due(maker: Json) -> bool:
    """Return whether an object such as a Deployment makes pods now and has no controller."""
    spec = get_member(maker, "spec", dict)
    owners = get_objects(get_member(maker, "metadata", dict), "ownerReferences")
    owned = any(get_member(each, "controller", bool) for each in owners)
    return not (owned or get_member(spec, "suspend", bool) or spec.get("replicas") == 0)


def event_applies(event: Event, review: Review, settings: Settings) -> bool:
    """Return whether the rules for an event apply to a request."""
    if event.users is Users.OTHERS and review.user in settings.accounts:
        return False
    if event.users is Users.AGENTS and review.user != settings.agent:
        return False
    main = review.resource.partition("/")[0]
    any_part = f"{main}/*" if main != review.resource else main
    return review.operation in event.operations and bool(
        {review.resource, any_part} & {*event.resources}
    )


def _read_annotations(item: Json | None) -> dict[str, str]:
    return get_strings(get_member(item or {}, "metadata", dict), "annotations")


def _refuse_annotations(review: Review, _: Settings) -> str:
    """Refuse annotations that only the scheduler writes."""
    found = next((name for name in names.RESERVED if name in _read_annotations(review.item)), "")
    return f"annotation {found}: only cgpu's scheduler may set it" if found else ""


def _refuse_annotation_changes(review: Review, _: Settings) -> str:
    before, after = _read_annotations(review.before), _read_annotations(review.item)
    found = next((name for name in names.RESERVED if before.get(name) != after.get(name)), "")
    return f"annotation {found}: only cgpu's scheduler may change it" if found else ""


def _refuse_misspelt_names(review: Review, _: Settings) -> str:
    return find_misspelt(review.item)


def _refuse_impossible_shares(review: Review, _: Settings) -> str:
    return read_pod(review.item).refusal


def _refuse_miscounted_names(review: Review, _: Settings) -> str:
    return find_miscounted(review.item)


def _refuse_other_scheduler(review: Review, settings: Settings) -> str:
    """Refuse a pod of another scheduler, which would be bound without a decision.

    A template may name no scheduler: its pods get one when they are created.
    """
    name = get_member(_read_spec(review), "schedulerName", str)
    free = names.UNCHOSEN if review.resource in TEMPLATES.resources else ()
    if not read_pod(review.item).asks_for_gpu or name in {*settings.schedulers, *free}:
        return ""
    allowed = " or ".join(settings.schedulers)
    return f"schedulerName={printable(name)}: a pod that asks for {names.ASKED} needs {allowed}"


def _refuse_chosen_node(review: Review, _: Settings) -> str:
    name = get_member(_read_spec(review), "nodeName", str)
    if not read_pod(review.item).asks_for_gpu or not name:
        return ""
    return f"nodeName={printable(name)}: expected none for a pod that asks for {names.ASKED}"


def _refuse_foreign_node(review: Review, _: Settings) -> str:
    """Refuse changes to another node: a stolen token of one agent must not change all nodes."""
    name = get_member(get_member(review.item, "metadata", dict), "name", str)
    if not review.node:
        return (
            f"node {printable(name)}: expected a token that is bound to the agent's pod on that"
            " node"
        )
    if review.node == name:
        return ""
    return f"node {printable(name)}: expected {printable(review.node)}, where this token's pod runs"


def _refuse_node_changes(review: Review, _: Settings) -> str:
    """Refuse changes to what is not the agent's, such as a node's taints and other labels."""
    for path, members in nodes.OFFERED.items():
        after, before = _read_part(review.item, path), _read_part(review.before or {}, path)
        for key in {**before, **after}:
            same = (key in before) == (key in after) and before.get(key) == after.get(key)
            if key not in members and not same:
                where = printable(f"{path}.{key}" if path else key)
                return f"{where}: an agent may change only {', '.join(members)} there"
    return ""


def _read_part(item: Json, path: str) -> Json:
    """Return the object at a path, or {} if there is none."""
    for name in filter(None, path.split(".")):
        item = get_member(item, name, dict)
    return item


def _read_spec(review: Review) -> dict[str, Any]:
    return get_member(review.item, "spec", dict)


RULES = (
    *(
        Rule(event, *forms)
        for event in (CREATED, TEMPLATES)
        for forms in (
            (_refuse_annotations, cel.check_annotations),
            (_refuse_misspelt_names, cel.check_misspelt_names),
            (_refuse_impossible_shares, cel_requests.check_impossible_shares),
            (_refuse_miscounted_names, cel.check_miscounted_names),
            (_refuse_other_scheduler, cel.check_other_scheduler),
            (_refuse_chosen_node, cel.check_chosen_node),
        )
    ),
    Rule(CHANGED, _refuse_annotation_changes, cel.check_annotation_changes),
    Rule(BOUND, _refuse_annotations, cel.check_annotations),
    Rule(NODES, _refuse_foreign_node, nodes.check_foreign_node),
    Rule(NODES, _refuse_node_changes, nodes.check_node_changes),
)
