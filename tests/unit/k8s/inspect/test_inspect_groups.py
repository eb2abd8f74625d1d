"""COS-8: ``kubectl inspect cgpu`` shows groups of pods, and units of ResourcePolicies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cgpu_k8s.inspect.cluster import read_gpu_pod
from cgpu_k8s.inspect.coscheduling import GroupView, make_group_views, read_policy_view
from cgpu_k8s.inspect.document import make_document
from cgpu_k8s.inspect.text import format_groups, format_units
from lab.kubernetes.manifests import bound, pod
from lab.worlds.extender import policy

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "kubernetes.md"
WALL = 1000.0
FULL = "0/2 nodes are available: 2 group b: its nodes have room for 1 of its 2 pods that wait."


def member(
    group: str, number: int, size: int, *, at: float | None = None, waits: str = "", to: str = ""
) -> Any:
    """A pod of a group; ``at``: since when it has a node reserved; ``waits``: its scheduler's."""
    made = pod(f"{group}-{number}", 2, namespace="ml")
    labels = {"gpu-topology": group, "gpu-topology-replica": str(size)}
    made["metadata"] |= {"labels": labels, "creationTimestamp": f"2026-01-01T00:00:0{number}Z"}
    if at is not None:
        note = {"v": 1, "node": f"gpu-{number}", "gpus": ["GPU-0"], "at": at}
        made["metadata"]["annotations"] = {"cgpu/reservation": json.dumps(note)}
    if waits:
        made["status"]["conditions"] = [{"type": "PodScheduled", "message": waits}]
    return bound(made, to) if to else made


def groups(*pods: Any, wall: float = WALL) -> list[GroupView]:
    return make_group_views(filter(None, map(read_gpu_pod, pods)), wall)


def test_a_group_shows_how_many_are_placed_and_what_is_reserved_or_missing() -> None:
    pods = [
        *(member("a", n, 4, to="gpu-0") for n in range(4)),
        *(member("b", n, 2, waits=FULL) for n in (1, 0)),
        *(member("c", n, 3) for n in range(2)),
        *(member("d", n, 2, at=WALL - 5) for n in range(2)),
        *(member("e", n, n + 1) for n in range(2)),
        member("f", 0, 1),
        pod("single", 1),
    ]
    assert format_groups(groups(*pods)) == (
        "GROUP  NAMESPACE  PODS(Placed/Size)  RESERVED         MISSING\n"
        "a      ml         4/4                                 \n"
        f"b      ml         0/2                                 {FULL}\n"
        "c      ml         0/3                                 1 of its 3 pods are not there\n"
        "d      ml         0/2                gpu-0:1,gpu-1:1  \n"
        "e      ml         0/unknown                           its pods name 1 and 2 as its size:"
        " expected one number\n"
        "f      ml         0/1                                 its pods have not been tried\n"
    )


def test_a_reservation_that_has_ended_is_none_unless_a_pod_is_bound() -> None:
    old = [member("d", n, 2, at=WALL - 121) for n in range(2)]
    [found] = groups(*old)
    assert (found.reserved, found.missing) == ({}, "its pods have not been tried")
    [found] = groups(old[0], member("d", 1, 2, to="gpu-1"))
    assert (found.reserved, found.missing, found.placed) == ({"gpu-0": 1}, "", 1)


def test_pods_that_have_ended_or_are_being_deleted_are_in_no_group() -> None:
    ended, deleted = (member("a", n, 2, to="gpu-0") for n in (0, 2))
    ended["status"]["phase"] = "Succeeded"
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    [found] = groups(ended, deleted, member("a", 1, 2))
    assert (found.pods, found.placed) == (1, 0)


RULE = policy({"nodeSelector": {"pool": "a", "b": "c"}, "max": 5}, {}, {"resource": "eci"})
STATUS = {"units": [{"pods": 3}, {"pods": 2}, {"pods": 0}], "outside": 1, "message": "odd"}


def test_a_policy_shows_the_pods_of_each_unit() -> None:
    views = [
        read_policy_view({**RULE, "status": STATUS}),
        read_policy_view(policy({"max": 2}, name="new")),
        read_policy_view(policy({"max": 0}, name="wrong")),
    ]
    assert format_units(views) == (
        "POLICY  NAMESPACE  UNIT  NODES       PODS(Counted/Max)  MESSAGE\n"
        "rule    ns         1     b=c,pool=a  3/5                \n"
        "rule    ns         2     any         2                  \n"
        "rule    ns         3     eci         0                  \n"
        "rule    ns               outside     1                  odd\n"
        "new     ns         1     any         unknown/2          \n"
        "new     ns               outside     unknown            \n"
        "wrong   ns               outside     unknown            the policy is ignored:"
        " spec.units[0].max=0: expected a whole number from 1, or no max\n"
    )


@pytest.mark.parametrize("units", [[{"pods": 3}], [{"pods": "x"}, {}, {"pods": None}]])
def test_a_status_that_is_of_another_policy_or_system_counts_nothing(units: list[Any]) -> None:
    found = read_policy_view({**RULE, "status": {"units": units, "outside": "x"}})
    assert [each.pods for each in found.units] == [None] * 3
    assert found.outside is None


def test_the_documentation_has_the_keys_of_both() -> None:
    content = make_document(
        [], groups(member("a", 0, 1)), [read_policy_view({**RULE, "status": STATUS})]
    )
    assert content["groups"] == [
        {"namespace": "ml", "name": "a", "size": 1, "pods": 1, "placed": 0, "reserved": {},
         "missing": "its pods have not been tried"},
    ]  # fmt: skip
    [found] = content["policies"]
    assert found["units"][0] == {"nodes": "b=c,pool=a", "pods": 3, "max": 5}
    keys = {f"groups[].{name}" for name in content["groups"][0]}
    keys |= {f"policies[].{name}" for name in found if name != "units"}
    keys |= {f"policies[].units[].{name}" for name in found["units"][0]}
    rows = re.findall(r"\n\| (`(?:groups|policies)\[\][^|]*) \|", DOCUMENT.read_text())
    listed = set()
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        listed |= {first, *(first.rpartition(".")[0] + each for each in others)}
    assert listed == keys
