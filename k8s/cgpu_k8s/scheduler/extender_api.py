"""The calls of kube-scheduler to an extender (``k8s.io/kube-scheduler/extender/v1``).

The JSON members have the names of the Go fields, with capital letters.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.errors import CgpuError, find_nearest, printable
from cgpu_k8s.objects.fields import get_member, get_objects
from cgpu_k8s.objects.pods import read_pod

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.pods import Pod

LONGEST = 4 << 20  # bytes in the body of a call
_TOO_LONG = (
    f"the call is longer than {LONGEST >> 20} MiB: set nodeCacheCapable: true for this extender in"
    " the scheduler's configuration"
)


class CallError(CgpuError):
    """A call is invalid. The message is one sentence."""


class ExtenderArgs(NamedTuple):
    """A pod, and the nodes that a scheduler asks about.

    Attributes:
        pod: the pod.
        names: the names of the nodes.
        nodes: the nodes' objects by name, if the scheduler sends them because it has
            ``nodeCacheCapable: false``; else None.
    """

    pod: Pod
    names: list[str]
    nodes: dict[str, dict[str, Any]] | None


class ExtenderPreemptionArgs(NamedTuple):
    """A pod, and for each node the UIDs of the victims and how many PDBs their end violates."""

    pod: Pod
    victims: dict[str, list[str]]
    violations: dict[str, int]


class ExtenderBindingArgs(NamedTuple):
    """A pod that is to be bound to a node."""

    namespace: str
    name: str
    uid: str
    node: str


def make_length_error() -> CallError:
    """Return the error for a call longer than LONGEST."""
    return CallError(_TOO_LONG)


def _parse_call(body: bytes, needed: tuple[str, ...], known: tuple[str, ...]) -> Json:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise CallError(f"{printable(repr(body[:60]))}: expected a JSON object") from None
    if not isinstance(found, dict):
        raise CallError(f"expected a JSON object, got {type(found).__name__}")
    for name in found:
        if name not in known:
            near = find_nearest(name, known)
            guess = f"; perhaps {near}" if near else ""
            raise CallError(f"{printable(name)}: expected only {', '.join(known)}{guess}")
    for name in needed:
        if not found.get(name):
            raise CallError(f"{name} is missing or empty")
    return found


def read_extender_args(body: bytes) -> ExtenderArgs:
    """Read a call of ``filter`` or ``prioritize``.

    Raises:
        CallError: the call is invalid, or names no node.
        ObjectError: the pod or a node is malformed.
    """
    found = _parse_call(body, ("Pod",), ("Pod", "Nodes", "NodeNames"))
    pod = read_pod(get_member(found, "Pod", dict))
    if not pod.uid:
        raise CallError("Pod.metadata.uid is missing")
    if found.get("NodeNames") is not None:
        names = get_member(found, "NodeNames", list)
        for name in names:
            if not isinstance(name, str):
                raise CallError(f"NodeNames: expected strings, got {type(name).__name__}")
        nodes = None
    else:
        listed = get_objects(get_member(found, "Nodes", dict), "items")
        nodes = {
            get_member(get_member(each, "metadata", dict), "name", str): each for each in listed
        }
        names = list(nodes)
    if not names:
        raise CallError("NodeNames, or items of Nodes: expected at least one node")
    return ExtenderArgs(pod, names, nodes)


def read_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """Read a call of ``preempt``.

    Raises:
        CallError: the call is invalid, or names no node.
        ObjectError: the pod or a victim is malformed.
    """
    keys = ("NodeNameToMetaVictims", "NodeNameToVictims")
    found = _parse_call(body, ("Pod",), ("Pod", *keys))
    named = next((get_member(found, key, dict) for key in keys if found.get(key)), {})
    if not named:
        raise CallError(f"{keys[0]}: expected at least one node")
    victims, violations = {}, {}
    for node, each in named.items():
        if not isinstance(each, dict):
            raise CallError(f"victims on {printable(node)}: expected an object")
        victims[node] = [_read_uid(pod) for pod in get_objects(each, "Pods")]
        count = each.get("NumPDBViolations") or 0
        violations[node] = count if isinstance(count, int) else 0
    return ExtenderPreemptionArgs(read_pod(get_member(found, "Pod", dict)), victims, violations)


def _read_uid(pod: Json) -> str:
    """Return the UID of a victim, which is a MetaPod or a whole pod."""
    return get_member(pod, "UID", str) or get_member(get_member(pod, "metadata", dict), "uid", str)


def read_binding_args(body: bytes) -> ExtenderBindingArgs:
    """Read a call of ``bind``.

    Raises:
        CallError: the call is invalid.
    """
    keys = ("PodName", "PodNamespace", "PodUID", "Node")
    found = _parse_call(body, keys, keys)
    name, namespace, uid, node = (_read_ascii(found, key) for key in keys)
    return ExtenderBindingArgs(namespace, name, uid, node)


def _read_ascii(found: Json, key: str) -> str:
    value = get_member(found, key, str)
    if not value.isascii():
        raise CallError(f"{key}={printable(value)}: expected a name of Kubernetes, which is ASCII")
    return value


def make_filter_result(
    asked: ExtenderArgs, fitting: list[str], failed: dict[str, str], unresolvable: dict[str, str]
) -> Json:
    """Return the answer to ``filter``.

    Args:
        asked: the call.
        fitting: the names of the nodes with room.
        failed: why other nodes have no room, by name, where evicting pods could help.
        unresolvable: why other nodes have no room, by name, where it could not.
    """
    nodes = None
    if asked.nodes is not None:
        nodes = {"items": [asked.nodes[name] for name in fitting]}
    return {
        "Nodes": nodes,
        "NodeNames": fitting,
        "FailedNodes": {**unresolvable, **failed},  # Kubernetes 1.20 reads only this one
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": "",
    }


def make_host_priorities(names: list[str], first: str) -> list[Json]:
    """Return the answer to ``prioritize``: 10 for the node ``first``, and 0 for all others.

    Scores by how full the nodes are would be rounded to whole numbers from 0 to 10, and pods would
    spread over nodes.
    """
    return [{"Host": name, "Score": 10 * (name == first)} for name in names]


def make_preemption_result(asked: ExtenderPreemptionArgs, nodes: list[str]) -> Json:
    """Return the answer to ``preempt``: the nodes that have room once their victims have ended."""
    return {
        "NodeNameToMetaVictims": {
            node: {
                "Pods": [{"UID": uid} for uid in asked.victims[node]],
                "NumPDBViolations": asked.violations[node],
            }
            for node in nodes
        }
    }
