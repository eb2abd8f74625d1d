"""What the extender's metrics show of the cluster (K8S-8)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderArgs
from cgpu_k8s.scheduler.metrics import Metrics
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.scheduling import Scheduling
from cgpu_node.allocation_annotation import AllocationAnnotation, Grant, format_annotation
from lab.kubernetes import objects
from lab.worlds.extender import node, policy
from lab.worlds.extender import pod as sharing

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "kubernetes.md"
SHARED = {"ack.node.gpu.schedule": "cgpu"}
GROUP = {"gpu-topology-replica": "2"}
LOST = OfferedGpu("GPU-1", 1, 16160, healthy=False)


def gpu_node(cache: SchedulerCache, name: str, label: str = "cgpu", mode: str = "cgpu") -> None:
    item = objects.node(name, {"ack.node.gpu.schedule": label})
    facts = write_facts(mode, [OfferedGpu("GPU-0", 0, 16160), LOST])
    item["metadata"]["annotations"] = {"cgpu/gpus": facts}
    cache.update_node(read_node(item))


def gpu_pod(cache: SchedulerCache, name: str, node: str = "", allocation: str = "") -> None:
    spec = {"nodeName": node} if node else {}
    item = objects.pod(name, {"aliyun.com/gpu-mem": "2"}, **spec)
    notes = {"cgpu/allocation": allocation} if allocation else {}
    item["metadata"] |= {"uid": name, "namespace": "ml", "annotations": notes}
    cache.update_pod(read_pod(item))


def page(cache: SchedulerCache, unbindable: str = "") -> dict[str, float]:
    """Each sample by its name and labels."""
    registry = Metrics(cache, lambda: {"pods": None}, lambda: unbindable).registry
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_whether_it_binds_is_seen() -> None:
    assert page(SchedulerCache())["cgpu_extender_leading"] == 1
    assert page(SchedulerCache(), "the scheduler does not lead")["cgpu_extender_leading"] == 0


def test_gpus_are_counted_where_they_are_to_be_shared() -> None:
    """A misspelt label, or one not in force yet, offers none; a node left alone is not there."""
    cache = SchedulerCache()
    gpu_node(cache, "shared")
    gpu_node(cache, "changing", "core_mem")
    gpu_node(cache, "misspelt", "cgup")
    gpu_node(cache, "exclusive", "default")
    cache.update_node(read_node(objects.node("new", SHARED)))
    cache.update_node(read_node(objects.node("cpu")))
    found = {name: value for name, value in page(cache).items() if "cluster_gpus{" in name}
    expected = {"shared": (1, 1), "changing": (0, 1), "misspelt": (0, 1), "new": (0, 0)}
    assert found == {
        f'cgpu_cluster_gpus{{node="{node}",state="{state}"}}': count
        for node, counts in expected.items()
        for state, count in zip(("offered", "lost"), counts, strict=True)
    }


def test_pods_are_counted_by_what_was_decided_on_them() -> None:
    cache = SchedulerCache()
    gpu_node(cache, "a")
    gpu_pod(cache, "waits")
    gpu_pod(cache, "forced", "a")
    gpu_pod(
        cache,
        "runs",
        "a",
        format_annotation(AllocationAnnotation("runs", "a", {"main": {"GPU-0": Grant(2154)}})),
    )
    found = page(cache)
    for state in ("waiting", "undecided", "decided"):
        assert found[f'cgpu_cluster_pods{{state="{state}"}}'] == 1


def test_groups_are_counted_by_how_far_they_are() -> None:
    """COS-8."""
    pods = {
        f"{group}-{n}": sharing(f"{group}-{n}", 15, **{**GROUP, "gpu-topology": group})
        for group in ("placed", "reserved", "waits", "part")
        for n in range(1 + (group != "part"))
    }
    cache = SchedulerCache()
    cache.replace_nodes(read_node(node(name)) for name in "ab")
    cache.replace_pods(map(read_pod, pods.values()))
    for name in pods:
        cache.groups.find_spot(f"uid-{name}", "ab", 0.0)
    for name in ("placed-0", "placed-1"):
        assumed = cache.assumed[f"uid-{name}"]
        cache.mark_sent(assumed.pod, assumed.allocation, 0.0)
    found = {name: n for name, n in page(cache).items() if "cluster_groups{" in name}
    states = ("incomplete", "waiting", "reserved", "placed")
    assert found == {f'cgpu_cluster_groups{{state="{state}"}}': 1 for state in states}


def test_units_are_counted_with_what_waits_for_them() -> None:
    """COS-8."""
    units = [{"nodeSelector": {"pool": "a"}, "max": 2}, {"nodeSelector": {"pool": "b"}}]
    cache = SchedulerCache()
    cache.replace_nodes(read_node(node(name, pool=name)) for name in "abc")
    rules = [policy(*units, selector={"app": "x"}), policy({"max": 0}, name="wrong")]
    cache.policies.replace_policies(map(read_known_policy, rules))
    for number, to in enumerate("aabc"):
        given = sharing(f"p{number}", None, app="x")
        given["spec"]["nodeName"] = to
        cache.update_pod(read_pod(given))
    scheduling = Scheduling(cache)
    for name, open_to in (("waits", "a"), ("promised", "c")):
        given_pod = read_pod(sharing(name, None, app="x"))
        cache.update_pod(given_pod)
        scheduling.filter(ExtenderArgs(given_pod, [*open_to], None))
    found = {name: n for name, n in page(cache).items() if "cluster_unit_" in name}
    assert page(cache)['cgpu_extender_reservations{state="chosen"}'] == 0  # no part of a GPU
    of = 'namespace="ns",policy="rule"'
    assert found == {
        f'cgpu_cluster_unit_pods{{{of},unit="1"}}': 2,
        f'cgpu_cluster_unit_pods{{{of},unit="2"}}': 1,
        f'cgpu_cluster_unit_pods{{{of},unit="outside"}}': 2,
        f'cgpu_cluster_unit_max_pods{{{of},unit="1"}}': 2,
        f"cgpu_cluster_unit_waiting_pods{{{of}}}": 1,
    }


def test_the_documentation_lists_the_very_metrics() -> None:
    text = DOCUMENT.read_text()
    section = text[text.index("## Metrics of the extender") :]
    listed = re.findall(r"`(cgpu_\w+)`", section[: section.index("\n## ", 1)])
    registry = Metrics(SchedulerCache(), dict, lambda: "").registry
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }
    assert sorted(listed) == sorted(names)
