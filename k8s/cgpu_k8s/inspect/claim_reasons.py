"""The reason why a pod waits for its claims, in one sentence: pure.

Expressions of claims and DeviceClasses are not evaluated: where they could be the reason, the
scheduler's words are shown.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import printable
from cgpu_k8s.inspect.claims import ClaimsView, make_claim_nodes
from cgpu_k8s.names import CLAIM_CORES, CLAIM_MEMORY, CLAIM_SLOTS, SCHEDULE
from cgpu_k8s.objects.claims import AMOUNTS, DeviceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cgpu_k8s.inspect.claims import ClaimFacts
    from cgpu_k8s.inspect.cluster import NodeFacts
    from cgpu_k8s.objects.claims import AmountPolicy, ClaimingPod, OfferedDevice, PodClaim

_MIB = 20
_LONGEST = 400
_UNKNOWN = "what is left of GPUs is not known"
_WORDS = {CLAIM_MEMORY: "{} MiB of memory", CLAIM_CORES: "{} percent of its time"}


class Candidate(NamedTuple):
    """A device that could give what a request asks for, if nobody else had a part of it.

    Attributes:
        device: which.
        amounts: what the request would take of it, by AMOUNTS.
        left: what claims have left of it.
    """

    device: OfferedDevice
    amounts: Mapping[str, int]
    left: Mapping[str, int]

    def has_left(self, names: Iterable[str]) -> bool:
        """Return whether these amounts are left."""
        return all(self.amounts[name] <= self.left[name] for name in names)


def make_claims_view(machines: Iterable[NodeFacts], facts: ClaimFacts, node: str) -> ClaimsView:
    """Return all that is shown of claims.

    Args:
        machines: the nodes.
        facts: about claims.
        node: the name of the only node to show, without waiting pods; "": all nodes.
    """
    first = sorted((_narrow(pod, facts) for pod in facts.waiting), key=lambda pod: pod[:2])
    waiting = {pod: explain_claims(pod, facts) for pod in first if is_for_us(pod, facts)}
    nodes = make_claim_nodes(machines, facts)
    return ClaimsView(nodes, None if node else waiting, facts.problem)


def _narrow(pod: ClaimingPod, facts: ClaimFacts) -> ClaimingPod:
    """Return the pod with those resources that stand for our devices."""
    return pod._replace(
        resources=tuple(each for each in pod.resources if each[0] in facts.resources)
    )


def is_for_us(pod: ClaimingPod, facts: ClaimFacts) -> bool:
    """Return whether a pod asks for devices of ours, by a claim or a resource."""
    claims = facts.claims or {}
    return bool(_narrow(pod, facts).resources) or any(
        claim is not None and (claim.parts or _asks_us(claim, facts))
        for claim in (claims.get((pod.namespace, name)) for name in pod.claims)
    )


def _asks_us(claim: PodClaim, facts: ClaimFacts) -> bool:
    asked = (request for alternatives in claim.requests for request in alternatives)
    return any(request.device_class in facts.classes for request in asked)


def explain_claims(pod: ClaimingPod, facts: ClaimFacts) -> str:
    """Return why a pod that asks for devices has no node; one sentence."""
    pod = _narrow(pod, facts)
    refusal = next(_list_refusals(pod, facts), "")
    if refusal:
        return refusal
    words = printable(" ".join(pod.waits.split()), _LONGEST)
    if facts.claims is None or facts.problem:
        return f"{_UNKNOWN}, and its scheduler says: {words or 'nothing yet'}"
    room = f"there is room for {_name_wishes(pod)}"
    if words:
        return f"{room}, and its scheduler says: {words}"
    return f"{room}, and its scheduler has not answered yet: is it running?"


def _name_wishes(pod: ClaimingPod) -> str:
    names = ", ".join(map(printable, pod.claims))
    amounts = (f"{amount} {printable(name)}" for name, amount in pod.resources)
    return " and ".join([*[f"claim {names}"] * bool(pod.claims), *amounts])


def _list_refusals(pod: ClaimingPod, facts: ClaimFacts) -> Iterator[str]:
    if facts.claims is None:
        return
    for name in dict.fromkeys(pod.claims):
        yield from _list_claim_refusals((pod.namespace, name), facts, facts.claims)
    for name, devices in pod.resources:
        refusal = _refuse_request(DeviceRequest(facts.resources[name], devices, {}), facts)
        if refusal:
            yield f"{printable(name)}: {refusal}"


def _list_claim_refusals(
    key: tuple[str, str], facts: ClaimFacts, claims: Mapping[tuple[str, str], PodClaim]
) -> Iterator[str]:
    namespace, name = key
    if not name:
        yield "the claim of its template is not made yet: does kube-controller-manager run?"
        return
    about, claim = f"claim {printable(name)}", claims.get(key)
    if claim is None:
        yield f"{about}: there is none of this name in namespace {namespace}"
    elif claim.is_leaving:
        yield f"{about}: it is being deleted"
    elif not claim.is_allocated and _asks_us(claim, facts):
        for alternatives in claim.requests:
            refusals = [
                each.device_class in facts.classes and _refuse_request(each, facts)
                for each in alternatives
            ]
            if refusals and all(refusals):
                yield f"{about}: {refusals[0]}"


def _refuse_request(request: DeviceRequest, facts: ClaimFacts) -> str:
    """Return why no node has what a request asks for; "": one has, as far as can be seen here."""
    unknown = sorted(request.asked.keys() - {*AMOUNTS})
    if unknown:
        return f"capacity {printable(unknown[0])}: expected {', '.join(AMOUNTS)}"
    devices = [each for each in facts.devices if not each.taints]
    if not devices:
        return _describe_none(facts)
    found = list(_find_candidates(request, devices, facts))
    most = _count_on_one_node(found)
    if not found:
        return _describe_refused(request, devices)
    if most < request.devices:
        return f"{request.devices} GPUs of one node are asked for, and no node has more than {most}"
    free = [each for each in found if each.has_left(AMOUNTS)]
    if _count_on_one_node(free) >= max(request.devices, 1):
        return ""
    return _describe_taken(request, found, free)


def _describe_none(facts: ClaimFacts) -> str:
    """Return why no GPU is offered to claims."""
    if not facts.slices:
        return f"no node gives GPUs to claims (label {SCHEDULE}=dra, and a driver that runs there)"
    if not facts.devices:
        return f"{_join(facts.slices)}: no GPU is offered now, and the log of the driver says why"
    named = (f"{each.name} of {each.node} ({each.taints[0]})" for each in facts.devices)
    return f"no GPU takes claims now, by taints: {_join(named)}"


def _find_candidates(
    request: DeviceRequest, devices: Iterable[OfferedDevice], facts: ClaimFacts
) -> Iterator[Candidate]:
    taken: dict[tuple[str, str], list[Mapping[str, int]]] = {}
    for claim in (facts.claims or {}).values():
        for part in claim.parts:
            taken.setdefault((part.node, part.device), []).append(part.amounts)
    for device in devices:
        amounts = device.consume(request.asked)
        if amounts is not None:
            amounts = {name: amounts.get(name, 0) for name in AMOUNTS}
            parts = taken.get((device.node, device.name), [])
            yield Candidate(device, amounts, _sum_left(device, parts))


def _sum_left(device: OfferedDevice, parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    if parts and not device.is_shared:
        return dict.fromkeys(AMOUNTS, -1)
    whole = {name: device.capacity.get(name, 0) for name in AMOUNTS}
    return {
        name: whole[name] - sum(part.get(name, whole[name]) for part in parts) for name in AMOUNTS
    }


def _count_on_one_node(found: Iterable[Candidate]) -> int:
    """Return the largest number of these devices on one node."""
    return max(Counter(each.device.node for each in found).values(), default=0)


def _describe_refused(request: DeviceRequest, devices: Sequence[OfferedDevice]) -> str:
    """Return which amount no device could give, even if nobody had a part of it."""
    for name, asked in request.asked.items():
        if all(each.consume({name: asked}) is None for each in devices):
            most = max(each.capacity.get(name, 0) for each in devices)
            if name == CLAIM_MEMORY and asked > most:
                return (
                    f"no GPU has {_to_mib(asked)} MiB of memory in all: the largest has"
                    f" {_to_mib(most)}"
                )
            allowed = _describe_policy(devices[0].policies.get(name), most)
            return f"{name}={asked}: expected {allowed}"
    return "no GPU has in all what is asked for"


def _describe_policy(policy: AmountPolicy | None, whole: int) -> str:
    if policy is not None and policy.values:
        return " or ".join(map(str, policy.values))
    most = whole if policy is None or policy.most is None else policy.most
    return f"at most {most}"


def _describe_taken(
    request: DeviceRequest, found: Sequence[Candidate], free: Sequence[Candidate]
) -> str:
    """Return which amount too few devices have left."""
    missing = [name for name in AMOUNTS if not any(each.has_left([name]) for each in found)]
    if missing == [CLAIM_SLOTS]:
        most = max(each.device.capacity.get(CLAIM_SLOTS, 0) for each in found)
        return f"no GPU takes one more claim: each has {most} at most"
    named = [name for name in _WORDS if name in missing] or [
        name for name in _WORDS if name in request.asked or name == CLAIM_MEMORY
    ]
    words = " and ".join(_format_amount(name, found[0].amounts[name]) for name in named)
    if request.devices > 1 and free:
        on = _count_on_one_node(free)
        asked = f"{request.devices} GPUs of one node are asked for"
        return f"{asked}, and no node has {words} left on more than {on}"
    best = max(found, key=lambda each: each.left[named[0]])
    left = _format_amount(named[0], max(best.left[named[0]], 0))
    where = f"{best.device.name} of {best.device.node}"
    return f"no GPU has {words} left; the most is {left}, on {where}"


def _format_amount(name: str, amount: int) -> str:
    return _WORDS[name].format(_to_mib(amount) if name == CLAIM_MEMORY else amount)


def _to_mib(size: int) -> int:
    return -(-size >> _MIB)


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
