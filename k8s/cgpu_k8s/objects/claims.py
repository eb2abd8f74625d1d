"""Claims, the devices of our driver that they can have, and the pods that name them, as read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.names import CLAIM_CORES, CLAIM_MEMORY, CLAIM_SLOTS, DRIVER, WHOLE_GPU
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.pods import read_wait
from cgpu_k8s.objects.quantities import parse_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.fields import Json

AMOUNTS = (CLAIM_MEMORY, CLAIM_CORES, CLAIM_SLOTS)  # bytes, percent, claims
_INDEX = re.compile(r"gpu-(\d{1,3})")
_KEEPING_OUT = ("NoSchedule", "NoExecute")
_ALL = "All"  # devices of a node
_MOST_DEVICES = 32  # of a claim
_CLASS_DOMAIN = "deviceclass.resource.kubernetes.io"  # of resources that are named after classes
_PUBLISHED = WHOLE_GPU.partition("/")[0]  # the domain of what stands for no class


class AmountPolicy(NamedTuple):
    """The rule by which a device rounds or refuses an amount that a claim asks for.

    Attributes:
        default: what a claim has that asks for none; None: all.
        values: the amounts that exist; (): those from ``least`` on.
        least: the smallest amount.
        most: the largest amount; None: any.
        step: the distance between two amounts; 0: any.
    """

    default: int | None = None
    values: tuple[int, ...] = ()
    least: int = 0
    most: int | None = None
    step: int = 0

    def round_up(self, asked: int) -> int | None:
        """Return the least amount that is at least what is asked for; None if there is none."""
        if self.values:
            return min((each for each in self.values if each >= asked), default=None)
        found = max(asked, self.least)
        if self.step:
            found = self.least - (self.least - found) // self.step * self.step
        return None if self.most is not None and found > self.most else found


class OfferedDevice(NamedTuple):
    """A device of a node's ResourceSlice.

    Attributes:
        node: the node's name.
        name: the device's name there.
        index: the GPU's index, by that name; None: the name has none.
        uuid: the GPU's UUID; "": not known.
        capacity: amounts in all, by AMOUNTS.
        policies: the rule of each amount that has one.
        is_shared: whether several claims may have it.
        taints: what keeps claims from it, ``KEY=VALUE`` each.
    """

    node: str
    name: str
    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    capacity: Mapping[str, int]
    policies: Mapping[str, AmountPolicy]
    is_shared: bool
    taints: tuple[str, ...]

    def consume(self, asked: Mapping[str, int]) -> dict[str, int] | None:
        """Return what a claim gets that asks for these amounts; None: it cannot have the device."""
        if not asked.keys() <= self.capacity.keys():
            return None
        found = {}
        for name, whole in self.capacity.items():
            policy = self.policies.get(name)
            default = whole if policy is None or policy.default is None else policy.default
            amount: int | None = asked.get(name, default)
            if policy is not None and amount is not None and name in asked:
                amount = policy.round_up(amount)
            if amount is None or amount > whole:
                return None
            found[name] = amount
        return found


class AllocatedPart(NamedTuple):
    """A part of a device of ours that a claim has.

    Attributes:
        node: the node's name.
        device: the device's name there.
        amounts: by AMOUNTS; those that are missing are all of the device.
    """

    node: str
    device: str
    amounts: Mapping[str, int]


class DeviceRequest(NamedTuple):
    """A request of a claim.

    Attributes:
        device_class: the name of the DeviceClass.
        devices: how many; 0: all of a node.
        asked: amounts of each, by their names without the domain of our driver.
    """

    device_class: str
    devices: int
    asked: Mapping[str, int]


class PodClaim(NamedTuple):
    """A ResourceClaim.

    Attributes:
        namespace: its namespace.
        name: its name there.
        uid: its UID.
        requests: what it asks for: alternatives of each request, the first of which that fits it
            gets.
        is_allocated: whether a scheduler has found devices for it, whoever's they are.
        parts: those of them that are ours.
        pods: the names of the pods that it is reserved for.
        is_leaving: whether it is being deleted.
    """

    namespace: str
    name: str
    uid: str
    requests: tuple[tuple[DeviceRequest, ...], ...]
    is_allocated: bool
    parts: tuple[AllocatedPart, ...]
    pods: tuple[str, ...]
    is_leaving: bool


class ClaimingPod(NamedTuple):
    """A pod that names claims, or asks for resources that may stand for devices.

    Attributes:
        namespace: its namespace.
        name: its name there.
        uid: its UID.
        claims: the names of its claims; "": a template's, which is not made yet.
        waits: why its scheduler has found no node for it; "": it has, or has not tried.
        resources: how much its containers ask for of each extended resource: if a DeviceClass
            stands for one, Kubernetes makes a claim for that many devices.
    """

    namespace: str
    name: str
    uid: str
    claims: tuple[str, ...]
    waits: str
    resources: tuple[tuple[str, int], ...] = ()


class OwnClass(NamedTuple):
    """A DeviceClass that selects devices of our driver.

    Attributes:
        name: of the class.
        resources: the extended resources that stand for it.
    """

    name: str
    resources: tuple[str, ...]


def read_devices(item: Json) -> list[OfferedDevice]:
    """Return the devices of a ResourceSlice's object, if it is of our driver.

    Raises:
        ObjectError: it is no ResourceSlice.
    """
    spec = get_member(item, "spec", dict)
    if spec.get("driver") != DRIVER:
        return []
    node = get_member(spec, "nodeName", str)
    return [_read_device(node, each) for each in get_objects(spec, "devices")]


def _read_device(node: str, device: Json) -> OfferedDevice:
    name, capacity, policies = get_member(device, "name", str), {}, {}
    for key, about in get_member(device, "capacity", dict).items():
        amount = _parse_amount(about.get("value"))
        short = _shorten(key)
        if short in AMOUNTS and amount is not None:
            capacity[short] = amount
            policies[short] = _read_policy(get_member(about, "requestPolicy", dict))
    uuid = get_member(get_member(device, "attributes", dict), "uuid", dict)
    index = _INDEX.fullmatch(name)
    return OfferedDevice(
        node,
        name,
        int(index[1]) if index else None,
        get_member(uuid, "string", str),
        capacity,
        policies,
        get_member(device, "allowMultipleAllocations", bool),
        tuple(
            f"{get_member(each, 'key', str)}={get_member(each, 'value', str)}".removesuffix("=")
            for each in get_objects(device, "taints")
            if each.get("effect") in _KEEPING_OUT
        ),
    )


def _read_policy(policy: Json) -> AmountPolicy:
    valid = get_member(policy, "validRange", dict)
    values = (_parse_amount(each) for each in get_member(policy, "validValues", list))
    return AmountPolicy(
        _parse_amount(policy.get("default")),
        tuple(each for each in values if each is not None),
        _parse_amount(valid.get("min")) or 0,
        _parse_amount(valid.get("max")),
        _parse_amount(valid.get("step")) or 0,
    )


def read_claim(item: Json) -> PodClaim:
    """Read a ResourceClaim's object.

    Raises:
        ObjectError: it is none.
    """
    meta, status = get_member(item, "metadata", dict), get_member(item, "status", dict)
    spec = get_member(get_member(item, "spec", dict), "devices", dict)
    allocation = get_member(status, "allocation", dict)
    results = get_objects(get_member(allocation, "devices", dict), "results")
    return PodClaim(
        get_member(meta, "namespace", str),
        get_member(meta, "name", str),
        get_member(meta, "uid", str),
        tuple(map(_read_alternatives, get_objects(spec, "requests"))),
        bool(allocation),
        tuple(_read_part(each) for each in results if each.get("driver") == DRIVER),
        tuple(
            get_member(each, "name", str)
            for each in get_objects(status, "reservedFor")
            if each.get("resource") == "pods"
        ),
        bool(meta.get("deletionTimestamp")),
    )


def _read_alternatives(request: Json) -> tuple[DeviceRequest, ...]:
    exactly = get_member(request, "exactly", dict)
    listed = [exactly] if exactly else get_objects(request, "firstAvailable")
    return tuple(map(_read_request, listed))


def _read_request(exactly: Json) -> DeviceRequest:
    capacity = get_strings(get_member(exactly, "capacity", dict), "requests")
    return DeviceRequest(
        get_member(exactly, "deviceClassName", str),
        0 if exactly.get("allocationMode") == _ALL else _read_count(exactly.get("count")),
        {_shorten(name): _parse_amount(text) or 0 for name, text in capacity.items()},
    )


def _read_count(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= _MOST_DEVICES else 1


def _read_part(result: Json) -> AllocatedPart:
    consumed = get_strings(result, "consumedCapacity")
    amounts = {_shorten(name): _parse_amount(text) or 0 for name, text in consumed.items()}
    return AllocatedPart(
        get_member(result, "pool", str),
        get_member(result, "device", str),
        {name: amounts[name] for name in AMOUNTS if name in amounts},
    )


def read_claiming_pod(pod: Json) -> ClaimingPod | None:
    """Read a pod's object; None if it names no claims and asks for no extended resource.

    Raises:
        ObjectError: it is no pod.
    """
    meta, status = get_member(pod, "metadata", dict), get_member(pod, "status", dict)
    spec = get_member(pod, "spec", dict)
    named, resources = get_objects(spec, "resourceClaims"), _count_resources(spec)
    if not named and not resources:
        return None
    made = {each.get("name"): each for each in get_objects(status, "resourceClaimStatuses")}
    return ClaimingPod(
        get_member(meta, "namespace", str),
        get_member(meta, "name", str),
        get_member(meta, "uid", str),
        tuple(
            get_member(each, "resourceClaimName", str)
            or get_member(made.get(each.get("name"), {}), "resourceClaimName", str)
            for each in named
        ),
        read_wait(pod),
        tuple(resources.items()),
    )


def _count_resources(spec: Json) -> dict[str, int]:
    """Return the sum of each extended resource over containers that run side by side."""
    found: dict[str, int] = {}
    for container in get_objects(spec, "containers"):
        limits = get_member(get_member(container, "resources", dict), "limits", dict)
        for name, text in limits.items():
            domain, amount = name.rpartition("/")[0], _parse_amount(text) or 0
            if amount and domain and domain != _PUBLISHED:
                found[name] = found.get(name, 0) + amount
    return found


def read_own_class(item: Json) -> OwnClass | None:
    """Read a DeviceClass; None if it does not select devices of our driver.

    Its expressions are not computed: one that names the driver is taken for one that selects it.

    Raises:
        ObjectError: it is no DeviceClass.
    """
    selectors = get_objects(get_member(item, "spec", dict), "selectors")
    texts = (get_member(get_member(each, "cel", dict), "expression", str) for each in selectors)
    if not any(f'"{DRIVER}"' in text or f"'{DRIVER}'" in text for text in texts):
        return None
    name = get_member(get_member(item, "metadata", dict), "name", str)
    given = get_member(get_member(item, "spec", dict), "extendedResourceName", str)
    return OwnClass(name, tuple(filter(None, (f"{_CLASS_DOMAIN}/{name}", given))))


def _parse_amount(value: object) -> int | None:
    return parse_memory(value if isinstance(value, str) else str(value))


def _shorten(name: str) -> str:
    """Return an amount's name without the domain of our driver, which may be left out."""
    return name.removeprefix(f"{DRIVER}/")
