"""Objects as an API server has them: nodes that share GPUs, and pods that ask for parts of them."""

from __future__ import annotations

import copy
from typing import Any

from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import TOPOLOGY, OfferedGpu, write_facts
from cgpu_k8s.objects.links import GpuLink
from cgpu_k8s.objects.pod_request import compute_container_part, compute_pod_part
from cgpu_k8s.objects.pods import read_pod

V100 = 16160  # MiB
MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
WHOLE = "aliyun.com/gpu"
NOW = 1_795_471_200_000_000_000


def gpus(node: str, *sizes: int, **changes: Any) -> dict[str, OfferedGpu]:
    """The GPUs of a node, of these sizes in MiB, by UUID."""
    found = (
        OfferedGpu(f"GPU-{node}-{n}", n, mib)._replace(**changes) for n, mib in enumerate(sizes)
    )
    return {fact.uuid: fact for fact in found}


def node(
    name: str,
    facts: dict[str, OfferedGpu],
    mode: str = "cgpu",
    address: str = "127.0.0.1",
    links: tuple[GpuLink, ...] = (),
) -> Any:
    """A node whose agent describes these GPUs, and publishes their sums."""
    cores = {"aliyun.com/gpu-core.percentage": str(100 * len(facts))} if mode == "core_mem" else {}
    capacity = {
        "aliyun.com/gpu-mem": str(sum(fact.units for fact in facts.values())),
        "aliyun.com/gpu-count": str(len(facts)),
        **cores,
    }
    if mode == TOPOLOGY:
        capacity = {WHOLE: str(len(facts)), COUNT: str(len(facts))}
    return {
        "metadata": {
            "name": name,
            "labels": {"ack.node.gpu.schedule": mode},
            "annotations": {"cgpu/gpus": write_facts(mode, facts.values(), links=links)},
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": address}] if address else [],
        },
    }


def published_node(name: str, units: int, count: int, address: str = "127.0.0.1") -> Any:
    """A node of another tool, which publishes sums alone."""
    capacity = {"aliyun.com/gpu-mem": str(units), "aliyun.com/gpu-count": str(count)}
    return {
        "metadata": {"name": name},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": address},
            ],
        },
    }


def pod(
    name: str, units: int, cores: int = 0, *, count: int = 1, namespace: str = "default"
) -> Any:
    """A pod of one container that nobody has bound yet."""
    limits = {"aliyun.com/gpu-mem": str(units)}
    limits |= {"aliyun.com/gpu-core.percentage": str(cores)} if cores else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": {"aliyun.com/gpu-count": str(count)},
            "annotations": {},
        },
        "spec": {
            "schedulerName": "cgpu-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }


def bound(given: Any, to: str, **annotations: str) -> Any:
    """The same pod on a node, with some annotations more."""
    notes = {**given["metadata"].get("annotations", {}), **annotations}
    return {
        **given,
        "metadata": {**given["metadata"], "annotations": notes},
        "spec": {**given["spec"], "nodeName": to},
        "status": {"phase": "Running"},
    }


def decided(given: Any, to: str, facts: dict[str, OfferedGpu], *uuids: str) -> Any:
    """The same pod as a binding of ours leaves it: on these GPUs of a node."""
    found = read_pod(given)
    request = found.request
    assert request is not None
    shares = {each.name: compute_container_part(each, request.gpus) for each in request.containers}
    allocation = Allocation(found.uid, found.owner, to, uuids, compute_pod_part(request), shares)
    return bound(given, to, **write_annotations(allocation, found, facts, NOW))


def container(limits: Any, requests: Any = None, name: str = "main") -> Any:
    """A container with these limits and requests; None: with none."""
    resources = {"limits": limits} if limits is not None else {}
    resources |= {"requests": requests} if requests is not None else {}
    return {"name": name, "resources": resources}


def of(*containers: Any, label: str | None = None, init: Any = None, **spec: Any) -> Any:
    """A pod of these containers."""
    found = pod("p", 1)
    found["metadata"]["labels"] = {COUNT: label} if label is not None else {}
    found["spec"] |= {"containers": list(containers), **spec}
    return {**found, "spec": {**found["spec"], **({"initContainers": init} if init else {})}}


def asking(mem: str, core: str | None = None, label: str | None = None) -> Any:
    """A pod of one container with these limits."""
    return of(container({MEM: mem, **({CORE: core} if core is not None else {})}), label=label)


# What no GPU could give.
IMPOSSIBLE = {
    "core 33": asking("2", "33"),
    "core 0": asking("2", "0"),
    "core -5": asking("2", "-5"),
    "core 105": asking("2", "105"),
    "core 5 of two GPUs": asking("2", "5", "2"),
    "core 15 of two GPUs": asking("2", "15", "2"),
    "core 205 of two GPUs": asking("2", "205", "2"),
    "mem 0": asking("0"),
    "mem 1.5": asking("1500m"),
    "mem 8Gi": asking("8Gi"),
    "count 0": asking("2", label="0"),
    "count 17": asking("34", label="17"),
    "count two": asking("2", label="two"),
    "count empty": asking("2", label=""),
    "count 3 of 8": asking("8", label="3"),
    "count as a resource": of(container({COUNT: "1"})),
    "core without mem": of(container({CORE: "30"})),
    "requests differ": of(container({MEM: "3"}, {MEM: "2"})),
    "requests alone": of(container(None, {MEM: "2"})),
    "core in requests alone": of(container({MEM: "2"}, {CORE: "30"})),
    "whole GPUs too": of(container({MEM: "2", "nvidia.com/gpu": "1"})),
    "both modes": of(container({MEM: "2"}), container({MEM: "2", CORE: "30"}, name="other")),
    "whole 0": of(container({WHOLE: "0"})),
    "whole 17": of(container({WHOLE: "17"})),
    "whole 1.5": of(container({WHOLE: "1500m"})),
    "whole in requests alone": of(container({}, {WHOLE: "1"})),
    "whole and mem": of(container({WHOLE: "1", MEM: "2"})),
    "whole and core": of(container({WHOLE: "1", CORE: "30"})),
    "whole of NVIDIA's too": of(container({WHOLE: "1", "nvidia.com/gpu": "1"})),
    "whole in two": of(container({WHOLE: "1"}), container({WHOLE: "1"}, name="other")),
    "whole beside a share": of(container({WHOLE: "1"}), container({MEM: "2"}, name="other")),
    "in an init container": of(container({MEM: "2"}), init=[container({MEM: "0"}, name="init")]),
}
# What Kubernetes refuses itself, before it asks a webhook that validates.
ITS_OWN = {"core -5", "mem 1.5", "requests differ", "requests alone", "core in requests alone",
           "whole 1.5", "whole in requests alone"}  # fmt: skip


def whole(item: Any) -> Any:
    """A pod as a user writes it, with what an API server requires."""
    found = copy.deepcopy(item)
    notes = found["metadata"].get("annotations", {})
    labels = found["metadata"]["labels"]
    found["metadata"] = {"name": "p", "labels": labels, "annotations": notes}
    for each in (*found["spec"]["containers"], *found["spec"].get("initContainers", [])):
        each["image"] = "busybox"
    return {"apiVersion": "v1", "kind": "Pod", **found, "status": {}}


# What makes pods from a template, by its plural: version and kind.
CONTROLLERS = {
    "cronjobs": ("batch/v1", "CronJob"),
    "daemonsets": ("apps/v1", "DaemonSet"),
    "deployments": ("apps/v1", "Deployment"),
    "jobs": ("batch/v1", "Job"),
    "replicasets": ("apps/v1", "ReplicaSet"),
    "replicationcontrollers": ("v1", "ReplicationController"),
    "statefulsets": ("apps/v1", "StatefulSet"),
}


def controller(plural: str, item: Any) -> Any:
    """What makes such pods, as a user writes it."""
    version, kind = CONTROLLERS[plural]
    given = whole(item)
    chosen = {"app": "x"}
    labels = {**chosen, **given["metadata"]["labels"]}
    about = {**given["metadata"], "labels": labels}
    del about["name"]
    once = kind in {"Job", "CronJob"}
    spec: Any = {**given["spec"], "restartPolicy": "Never" if once else "Always"}
    spec = {"template": {"metadata": about, "spec": spec}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    elif kind == "ReplicationController":
        spec["selector"] = chosen
    elif not once:
        spec["selector"] = {"matchLabels": chosen}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
