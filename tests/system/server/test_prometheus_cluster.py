"""A real Prometheus sees nodes, pods and extenders of a cluster; the dashboard fits (K8S-8).

Debian's Prometheus is built without Kubernetes, so what it would find is listed for it.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from prometheus_client import start_http_server

from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.metrics import Metrics
from cgpu_node.allocation_annotation import AllocationAnnotation, Grant, format_annotation
from cgpu_node.shares.record import PodContainer, pack_pod
from lab.kubernetes import objects
from lab.machine.servers import end_servers
from lab.products.prometheus import DEPLOY, Prometheus, free_address, prometheus, wait_until
from lab.worlds.server import UUIDS, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

DASHBOARD = json.loads((DEPLOY / "grafana-cgpu-cluster.json").read_text())
LIMIT = "cgpu_container_memory_limit_bytes"
MEASURED = "cgpu_container_compute_used_ratio"  # there where programs run
# Two nodes, one of them without the label; two ports of a pod of the chart, and another pod.
NODES = """\
    scrape_interval: 1s
    static_configs:
      - targets: ["gpu-a:10250"]
        labels:
          __meta_kubernetes_node_name: gpu-a
          __meta_kubernetes_node_address_InternalIP: 127.0.0.1
          __meta_kubernetes_node_label_ack_node_gpu_schedule: core_mem
          pod: of the target
      - targets: ["cpu-b:10250"]
        labels:
          __meta_kubernetes_node_name: cpu-b
          __meta_kubernetes_node_address_InternalIP: 127.0.0.1
"""
PODS = """\
    scrape_interval: 1s
    static_configs:
      - targets: ["ADDRESS"]
        labels:
          __meta_kubernetes_pod_label_app_kubernetes_io_name: cgpu
          __meta_kubernetes_pod_label_app_kubernetes_io_component: scheduler
          __meta_kubernetes_pod_container_port_name: metrics
      - targets: ["127.0.0.1:1"]
        labels:
          __meta_kubernetes_pod_label_app_kubernetes_io_name: cgpu
          __meta_kubernetes_pod_label_app_kubernetes_io_component: scheduler
      - targets: ["127.0.0.1:2"]
        labels: {__meta_kubernetes_pod_label_app_kubernetes_io_name: cgpu}
"""


def discovery(role: str) -> str:
    """How nodes or pods are found in a cluster."""
    return f"    kubernetes_sd_configs:\n      - role: {role}\n"


@contextmanager
def cluster(folder: Path) -> Iterator[Prometheus]:
    """A node with one pod, the extender's metrics, and a Prometheus that finds both."""
    state = folder / "state"
    state.mkdir(mode=0o700)
    world = World(state)
    directory = world.admit("3f4a5b6c7d8e")
    (directory / "pod").write_bytes(pack_pod(PodContainer("uid", "ml", "train", "main")))
    address, extender = free_address(), free_address()
    port = address.rpartition(":")[2]
    changes = {
        discovery("node"): NODES,
        discovery("pod"): PODS.replace("ADDRESS", extender),
        "$1:9477": f"$1:{port}",
    }
    server = world.start("--metrics", address)
    httpd, thread = start_http_server(
        int(extender.rpartition(":")[2]), "127.0.0.1", registry=filled().registry
    )
    try:
        with prometheus(folder / "prometheus", "prometheus-kubernetes.yml", changes) as made:
            wait_until(lambda: made.answers(LIMIT), "it scrapes the node")
            wait_until(lambda: made.answers("cgpu_cluster_pods"), "it scrapes the extender")
            yield made
    finally:
        server.kill()
        server.wait()
        end_servers(folder)
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def filled() -> Metrics:
    """The metrics of an extender that has placed a pod, and refused another one."""
    cache = SchedulerCache()
    item = objects.node("gpu-a", {"ack.node.gpu.schedule": "cgpu"})
    facts = write_facts("cgpu", [OfferedGpu(UUIDS[0], 0, 15109)])
    item["metadata"]["annotations"] = {"cgpu/gpus": facts}
    cache.update_node(read_node(item))
    pod = objects.pod("train", {"aliyun.com/gpu-mem": "1"}, nodeName="gpu-a")
    decided = format_annotation(
        AllocationAnnotation("uid", "gpu-a", {"main": {UUIDS[0]: Grant(1079)}})
    )
    pod["metadata"] |= {"uid": "uid", "annotations": {"cgpu/allocation": decided}}
    cache.update_pod(read_pod(pod))
    made = Metrics(cache, lambda: {"pods": time.monotonic()}, lambda: "")
    made.refusals.labels("full").inc()
    made.bindings.labels("done").inc()
    made.calls.labels("filter").observe(0.001)
    return made


def test_prometheus_in_a_cluster_sees_nodes_pods_and_extenders(tmp_path: Path) -> None:
    with cluster(tmp_path) as made:
        [(labels, _)] = made.query(LIMIT)
        instance = labels.pop("instance")
        assert labels == {
            "__name__": LIMIT,
            "job": "cgpu",
            "node": "gpu-a",
            "namespace": "ml",
            "pod": "train",
            "container": "main",
            "id": "3f4a5b6c7d8e",
            "gpu": "0",
            "uuid": UUIDS[0],
        }
        found = {(each["job"], each["instance"]) for each, _ in made.query("up")}
        assert len(found) == 2
        assert ("cgpu", instance) in found
        assert "cgpu-extender" in {job for job, _ in found}
        for panel in DASHBOARD["panels"]:
            for target in panel["targets"]:
                if MEASURED not in target["expr"]:
                    wait_until(partial(made.answers, target["expr"]), panel["title"])
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert all(named <= each.keys() for each, _ in made.query(target["expr"])), panel
        values = {}
        for variable in DASHBOARD["templating"]["list"][1:]:
            query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert query
            values[variable["name"]] = {each[query[2]] for each, _ in made.query(query[1])}
        assert values == {"node": {"gpu-a"}, "namespace": {"ml"}}
        groups = made.ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
