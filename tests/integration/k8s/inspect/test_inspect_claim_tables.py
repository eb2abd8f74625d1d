"""DRA-7: ``kubectl inspect cgpu``, the program, in a cluster with claims."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lab.cluster.claim_objects import claim_of, claims_node, device_class, pod_with, slice_of
from lab.cluster.inspected import TABLE
from lab.kubernetes.faults import Fault
from lab.kubernetes.manifests import V100
from lab.kubernetes.store import KINDS, Key

if TYPE_CHECKING:
    from lab.cluster.inspected import Lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # a file is packed first

RESOURCE = "resource.k8s.io"
CLAIMED = """\
NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  Claimed GPU Memory(MiB)
gpu-c  127.0.0.1  2500/16160             0/16160                2500/32320
------------------------------------------------------------------
Allocated/Total Claimed GPU Memory In Cluster:
2500/32320 (7%)  

POD    NAMESPACE  CLAIM  WAITS
large  default    d      claim d: no GPU has 17408 MiB of memory in all: the largest has 16160
"""  # noqa: W291 (as published)


def test_dra_7_claims_are_further_tables(lab: Lab) -> None:
    """DRA-7; and what a user may not see, or a cluster has not, is one line."""
    objects = {
        ("", "nodes"): [claims_node("gpu-c")],
        ("", "pods"): [pod_with("large", "d")],
        (RESOURCE, "resourceslices"): [slice_of("gpu-c", V100, V100)],
        (RESOURCE, "resourceclaims"): [
            claim_of("part", ("gpu-c", "gpu-0", "2500Mi", "30"), pods=("small",)),
            claim_of("d", memory="17Gi", exactly={"deviceClassName": "nvidia"}),
        ],
        (RESOURCE, "deviceclasses"): [device_class("nvidia")],
    }
    added = {
        Key(KINDS[kind], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for kind, items in objects.items()
        for each in items
    }
    lab.server.change(lambda store: store.items.update(added))
    try:
        assert lab.shown() == f"{TABLE}\n{CLAIMED}"
        claims = lab.shown("gpu-c", "-d")
        assert ["small", "default", "part", "2500", "0"] in [x.split() for x in claims.splitlines()]
        assert "large" not in claims
        content = json.loads(lab.shown("-o", "json"))
        assert [each["allocated"] for each in content["claims"]["nodes"]] == [2500]
        assert (content["allocated"], len(content["nodes"])) == (19, 2)
        assert "claim d: no GPU has 17408 MiB" in lab.shown("--why", "large")
        refused = Fault(path=".*resourceclaims.*", status=403, reason="Forbidden", times=2)
        lab.server.fail(refused)
        shown = lab.shown().removeprefix(f"{TABLE}\n")
        assert shown.startswith("Not all is known of claims, to which 32320 MiB")
        assert "you have no right to it" in shown
        assert "claim d: no GPU has 17408 MiB" in lab.shown("--why", "large")
        absent = Fault(path=".*resource.k8s.io.*", status=404, reason="NotFound", times=3)
        lab.server.fail(absent)
        assert "the cluster has no claims (resource.k8s.io/v1)" in lab.shown()
    finally:
        for key in added:
            lab.server.change(lambda store, key=key: store.items.pop(key))


def test_where_no_node_gives_gpus_to_claims_nothing_of_them_is_asked_for(lab: Lab) -> None:
    before = len(lab.server.calls)
    assert json.loads(lab.shown("-o", "json"))["claims"] is None
    lab.shown()
    assert not [call for call in lab.server.calls[before:] if RESOURCE in call]
