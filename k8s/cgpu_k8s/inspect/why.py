"""The reason why a pod waits or has failed, in one sentence: pure.

The rules are tried in order, and the first that applies makes the sentence. They check first the
pod itself, then its node, then the room on all nodes, then the words of its scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import printable
from cgpu_k8s.inspect.claim_reasons import explain_claims, is_for_us
from cgpu_k8s.inspect.claims import DRIVERS
from cgpu_k8s.names import ASKED, DRIVER, SCHEDULE
from cgpu_k8s.objects.claims import read_claiming_pod
from cgpu_k8s.objects.fields import get_member, get_objects
from cgpu_k8s.objects.misspelt import find_miscounted, find_misspelt
from cgpu_k8s.objects.pod_request import compute_pod_part
from cgpu_k8s.objects.pods import read_pod, template_of
from cgpu_k8s.scheduler.allocation import FULL, TOO_FEW, TOO_LARGE, WITHHELD, WRONG_MODE, Refusal
from cgpu_k8s.scheduler.cache import SchedulerCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cgpu_k8s.inspect.claims import ClaimFacts
    from cgpu_k8s.inspect.cluster import GpuPod, NodeFacts
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.pods import Pod

# The most useful first: reasons that can go away by themselves, then reasons that another node or
# pod would avoid.
_USEFUL = (FULL, TOO_LARGE, TOO_FEW, WRONG_MODE, WITHHELD)
_LONGEST = 400
_NAMED = 3  # nodes that are named at most
_STARTING = ("", "ContainerCreating", "PodInitializing")
# fields in the status of an object that makes pods: the number of its pods
_RUNNING = ("replicas", "active", "currentNumberScheduled")


class Case(NamedTuple):
    """A pod, and the objects that may show why it waits.

    Attributes:
        raw: its object.
        pod: the facts in it.
        gpu_pod: the same if it asks for a part of a GPU, else None.
        machines: all nodes.
        gpu_pods: all pods that ask for a part of a GPU.
        events: the pod's events.
        claims: the facts about claims if the pod names any, else None.
    """

    raw: Json
    pod: Pod
    gpu_pod: GpuPod | None
    machines: Sequence[NodeFacts]
    gpu_pods: Sequence[GpuPod]
    events: Sequence[Json]
    claims: ClaimFacts | None

    @property
    def status(self) -> Json:
        """Return the pod's status."""
        return get_member(self.raw, "status", dict)

    @property
    def phase(self) -> str:
        """Return the pod's phase."""
        return get_member(self.status, "phase", str)


def explain_pod(  # noqa: PLR0913 (what a case is made of)
    pod: Json,
    gpu_pod: GpuPod | None,
    machines: Sequence[NodeFacts],
    gpu_pods: Sequence[GpuPod],
    events: Sequence[Json],
    *,
    claims: ClaimFacts | None = None,
) -> str:
    """Return one sentence on why a pod waits or failed, or that it does neither."""
    case = Case(pod, read_pod(pod), gpu_pod, machines, gpu_pods, events, claims)
    rules = _CLAIM_RULES if gpu_pod is None and _names_claims(case) else _RULES
    found = next(filter(None, (rule(case) for rule in rules)))
    return f"pod {case.pod.namespace}/{case.pod.name} {found}"


def explain_maker(kind: str, maker: Json, events: Sequence[Json]) -> str:
    """Return one sentence on why a Job or the like has no pod, or that cgpu knows no reason."""
    meta = get_member(maker, "metadata", dict)
    where = f"{kind} {get_member(meta, 'namespace', str)}/{get_member(meta, 'name', str)}"
    pod, warning = template_of(maker), _find_warning(events)
    refusal = find_misspelt(pod) or read_pod(pod).refusal or find_miscounted(pod)
    status = get_member(maker, "status", dict)
    if refusal:
        new = "new " if any(map(status.get, _RUNNING)) else ""
        return f"{where} gets no {new}pod: {refusal}"
    failing = (
        each
        for each in get_objects(status, "conditions")
        if (each.get("type"), each.get("status")) == ("ReplicaFailure", "True")
    )
    reason = warning or next(map(_format_reason, failing), "")
    if reason:
        return f"{where} says: {reason}"
    return f"{where} may have pods: ask about one of them, by --why POD"


def _explain_ended(case: Case) -> str:
    if case.phase == "Succeeded":
        return "has ended, and did not fail"
    if case.phase != "Failed":
        return ""
    reason = (
        _format_reason(case.status)
        or _find_container_reason(case, "terminated")
        or _find_warning(case.events)
    )
    return f"failed: {reason}" if reason else "failed, and does not say why"


def _explain_misspelt(case: Case) -> str:
    found = "" if case.pod.node else find_misspelt(case.raw) or find_miscounted(case.raw)
    return f"waits: {found}" if found else ""


def _explain_not_asking(case: Case) -> str:
    if case.gpu_pod is not None:
        return ""
    none = f"asks for no GPU: no container has {ASKED} in its limits"
    named = read_claiming_pod(case.raw)
    if named is not None and named.claims:
        none += f", and none of its claims is for {DRIVER}"
    return _explain_misspelt(case) or none


def _names_claims(case: Case) -> bool:
    """Return whether a pod asks for GPUs of ours by claims, or may do so."""
    named, facts = read_claiming_pod(case.raw), case.claims
    if named is None or facts is None:
        return False
    known = facts.claims or {}
    is_unknown = any((named.namespace, name) not in known for name in named.claims)
    return is_unknown or is_for_us(named, facts)


def _explain_claiming(case: Case) -> str:
    """Return why a pod with claims waits on its node, or that it runs; "" if it is on none."""
    node = case.pod.node
    if not node:
        return ""
    waiting = _find_container_reason(case, "waiting")
    if waiting:
        return f"waits on {node}: {waiting}"
    if case.phase == "Running":
        return f"runs on {node}"
    if case.claims is not None and not case.claims.problem and node not in case.claims.slices:
        return f"waits on {node}: no driver {DRIVER} publishes GPUs of it: {DRIVERS}"
    warning = _find_warning(case.events)
    return f"waits on {node}: {warning or 'its containers are being created'}"


def _explain_claims(case: Case) -> str:
    """Return a sentence in any case: on the pod's claims."""
    named, facts = read_claiming_pod(case.raw), case.claims
    if named is None or facts is None:
        return "names no claims"
    if facts.claims is None:
        words = printable(" ".join(named.waits.split()), _LONGEST) or "nothing yet"
        unknown = f"waits for claims that are not known ({facts.problem})"
        return f"{unknown}, and its scheduler says: {words}"
    return f"waits: {explain_claims(named, facts)}"


def _explain_leaving(case: Case) -> str:
    if not get_member(get_member(case.raw, "metadata", dict), "deletionTimestamp", str):
        return ""
    if not case.pod.node:
        return "is being deleted"
    return "is being deleted, and keeps its part of a GPU until its containers have ended"


def _explain_bound(case: Case) -> str:
    node = case.pod.node
    if not node or case.gpu_pod is None:
        return ""
    allocation, problem = case.gpu_pod.find_allocation()
    if problem:
        return f"is bound to {node} and gets no GPU there: {problem}"
    waiting = _find_container_reason(case, "waiting")
    if waiting:
        return f"waits on {node}: {waiting}"
    if allocation is None and not case.gpu_pod.published_shares:
        return (
            f"is bound to {node} and gets no GPU there: nothing was decided for it; let a"
            " scheduler that asks cgpu bind it"
        )
    if case.phase == "Running":
        return f"runs on {node}"
    warning = _find_warning(case.events)
    return f"waits on {node}: {warning or 'its containers are being created'}"


def _explain_impossible(case: Case) -> str:
    return f"can run on no GPU: {case.pod.refusal}" if case.pod.refusal else ""


def _explain_gated(case: Case) -> str:
    gates = get_objects(get_member(case.raw, "spec", dict), "schedulingGates")
    names = ", ".join(printable(get_member(each, "name", str)) for each in gates)
    return f"waits until its scheduling gates are removed: {names}" if names else ""


def _explain_group(case: Case) -> str:
    group = case.pod.group
    if group is None:
        return ""
    there = sum(
        each.pod.group is not None and each.pod.group[:2] == group[:2] for each in case.gpu_pods
    )
    if there < group.size:
        return (
            f"waits for its group {printable(group.name)}: {there} of its {group.size} pods are"
            " there, and all or none get room"
        )
    warning = _find_warning(case.events)
    return f"waits with its group {printable(group.name)}: {warning}" if warning else ""


def _explain_no_room(case: Case) -> str:
    """Return the most useful refusal, and how many nodes share it; "" if a node has room."""
    fitting, refused = _filter_nodes(case)
    if fitting:
        return ""
    if not refused:
        return f"waits: no node of the cluster shares its GPUs (label {SCHEDULE}=cgpu)"
    alike: dict[Refusal, list[str]] = defaultdict(list)
    for name, refusal in refused.items():
        alike[refusal].append(name)
    best = min(alike, key=lambda each: (_USEFUL.index(each.code), -len(alike[each]), each.sentence))
    names = alike[best]
    if len(refused) == 1:
        return f"waits: on {names[0]}, the only node that shares its GPUs, {best.sentence}"
    many = f"{len(names)} of {len(refused)} nodes that share their GPUs"
    return f"waits: on {many} ({_join_names(names)}), {best.sentence}"


def _filter_nodes(case: Case) -> tuple[list[str], dict[str, Refusal]]:
    """Return the nodes that have room on their GPUs now, and why the others do not."""
    request = case.pod.request
    if request is None:
        return [], {}
    part = compute_pod_part(request)
    cache = SchedulerCache()
    cache.replace_nodes(each.offer for each in case.machines if each.shares)
    cache.replace_pods(gpu_pod.pod for gpu_pod in case.gpu_pods)
    fitting, refused = [], {}
    for name, offer in sorted(cache.offers.items()):
        why_not = offer.withheld
        answer = Refusal(WITHHELD, why_not) if why_not else cache.nodes[name].choose(request, part)
        if isinstance(answer, Refusal):
            refused[name] = answer
        else:
            fitting.append(name)
    return fitting, refused


def _explain_scheduler(case: Case) -> str:
    """Return a sentence in any case: there is room, so the pod does not wait for GPUs."""
    fitting, _ = _filter_nodes(case)
    room = f"there is room on the GPUs of {_join_names(fitting)}"
    conditions = get_objects(case.status, "conditions")
    scheduled = (each for each in conditions if each.get("type") == "PodScheduled")
    reason = next(filter(None, map(_format_reason, scheduled)), "") or _find_warning(case.events)
    if reason:
        return f"waits: {room}, and its scheduler says: {reason}"
    name = (
        get_member(get_member(case.raw, "spec", dict), "schedulerName", str) or "default-scheduler"
    )
    return (
        f"waits: {room}, and its scheduler {printable(name)} has not answered yet: is it running?"
    )


_RULES: tuple[Callable[[Case], str], ...] = (
    _explain_ended,
    _explain_not_asking,
    _explain_leaving,
    _explain_bound,
    _explain_impossible,
    _explain_gated,
    _explain_misspelt,
    _explain_group,
    _explain_no_room,
    _explain_scheduler,
)


_CLAIM_RULES: tuple[Callable[[Case], str], ...] = (
    _explain_ended,
    _explain_leaving,
    _explain_claiming,
    _explain_gated,
    _explain_claims,
)


def _find_container_reason(case: Case, state: str) -> str:
    """Return the reason of the first container that has one for this state; else ""."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in get_objects(case.status, kind):
            found = get_member(get_member(each, "state", dict), state, dict)
            if found.get("reason", "") not in (*_STARTING, "Completed"):
                return (
                    f"container {printable(get_member(each, 'name', str))}: {_format_reason(found)}"
                )
    return ""


def _format_reason(item: Json) -> str:
    """Return the reason and message of a condition, status or event on one line; "": none."""
    texts = (get_member(item, name, str) for name in ("reason", "message"))
    return printable(": ".join(" ".join(text.split()) for text in texts if text.strip()), _LONGEST)


def _find_warning(events: Iterable[Json]) -> str:
    """Return the last warning."""
    warnings = [each for each in events if each.get("type") == "Warning"]
    return _format_reason(max(warnings, key=_read_time)) if warnings else ""


def _read_time(event: Json) -> str:
    names = ("lastTimestamp", "eventTime", "firstTimestamp")
    return next(filter(None, (get_member(event, name, str) for name in names)), "")


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
