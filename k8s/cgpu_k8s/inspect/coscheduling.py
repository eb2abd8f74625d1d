"""Groups of pods, and units of ResourcePolicies, as the API server's objects show them: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import printable
from cgpu_k8s.objects.fields import get_member, get_objects
from cgpu_k8s.objects.groups import read_reservation
from cgpu_k8s.objects.policies import ECS, PolicyError, read_policy
from cgpu_k8s.scheduler.groups import HOLD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgpu_k8s.inspect.cluster import GpuPod
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.policies import NodeUnit

_LONGEST = 400


class GroupView(NamedTuple):
    """A group of pods.

    Attributes:
        namespace: its namespace.
        name: its name there.
        size: how many pods it needs; None: its pods disagree.
        pods: how many pods are there.
        placed: how many of them are bound to nodes.
        reserved: the nodes that are reserved for the others, with how many pods each.
        missing: why it is not placed yet; one sentence, or "".
    """

    namespace: str
    name: str
    size: int | None
    pods: int
    placed: int
    reserved: dict[str, int]
    missing: str


class UnitView(NamedTuple):
    """A unit of a ResourcePolicy.

    Attributes:
        nodes: which nodes it has, in words.
        most: how many pods it takes; None: any number.
        pods: how many it has; None: nobody has counted them.
    """

    nodes: str
    most: int | None
    pods: int | None


class PolicyView(NamedTuple):
    """A ResourcePolicy.

    Attributes:
        namespace: its namespace.
        name: its name there.
        units: its units, in order; (): it cannot be followed.
        outside: how many of its pods are in no unit; None: nobody has counted them.
        message: what is wrong with it; sentences, or "".
    """

    namespace: str
    name: str
    units: tuple[UnitView, ...]
    outside: int | None
    message: str


def make_group_views(gpu_pods: Iterable[GpuPod], wall: float) -> list[GroupView]:
    """Return the groups of all pods that neither have ended nor are being deleted, by their names.

    Args:
        gpu_pods: all pods that ask for GPUs.
        wall: seconds since 1970.
    """
    groups: dict[tuple[str, str], list[GpuPod]] = {}
    for each in gpu_pods:
        if each.pod.group and not each.pod.final and not each.pod.terminating:
            groups.setdefault(each.pod.group[:2], []).append(each)
    return [_make_group_view(*key, members, wall) for key, members in sorted(groups.items())]


def _make_group_view(
    namespace: str, name: str, members: Sequence[GpuPod], wall: float
) -> GroupView:
    sizes = sorted({each.pod.group.size for each in members if each.pod.group})
    waiting = [each for each in members if not each.pod.node]
    placed = len(members) - len(waiting)
    reserved: dict[str, int] = {}
    for each in waiting:
        found = read_reservation(each.pod.reservation)
        if found and (placed or wall - found.at <= HOLD_SECONDS):  # as the next leader reads it
            reserved[found.node] = reserved.get(found.node, 0) + 1
    size = sizes[0] if len(sizes) == 1 else None
    missing = ""
    if size is None:
        given = " and ".join(map(str, sizes))
        missing = f"its pods name {given} as its size: expected one number"
    elif len(members) < size:
        missing = f"{size - len(members)} of its {size} pods are not there"
    elif sum(reserved.values()) < len(waiting):
        first = sorted(waiting, key=lambda each: (each.pod.created, each.pod.name))
        words = next(filter(None, (each.waits for each in first)), "its pods have not been tried")
        missing = printable(" ".join(words.split()), _LONGEST)
    return GroupView(
        namespace, name, size, len(members), placed, dict(sorted(reserved.items())), missing
    )


def read_policy_view(item: Json) -> PolicyView:
    """Read a ResourcePolicy's object.

    Raises:
        ObjectError: it is no ResourcePolicy.
    """
    meta, status = get_member(item, "metadata", dict), get_member(item, "status", dict)
    counts = [each.get("pods") for each in get_objects(status, "units")]
    units, message = tuple[UnitView, ...](), get_member(status, "message", str)
    try:
        policy = read_policy(item)
    except PolicyError as error:
        message = message or f"the policy is ignored: {error}"
    else:
        known = counts if len(counts) == len(policy.units) else [None] * len(policy.units)
        units = tuple(
            UnitView(_describe_nodes(unit), unit.most, _read_count(count))
            for unit, count in zip(policy.units, known, strict=True)
        )
    return PolicyView(
        get_member(meta, "namespace", str),
        get_member(meta, "name", str),
        units,
        _read_count(status.get("outside")),
        message,
    )


def _describe_nodes(unit: NodeUnit) -> str:
    labels = [f"{name}={value}" for name, value in sorted(unit.nodes.items())]
    return ",".join([*([unit.resource] if unit.resource != ECS else []), *labels]) or "any"


def _read_count(value: object) -> int | None:
    return value if type(value) is int else None  # another system may have written anything
