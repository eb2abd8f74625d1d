"""Claims that the cluster's own scheduler allocates: how fast, and how many GPUs they use."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgpu_k8s.apiserver.resources import CLAIMS, DEVICE_CLASSES, NODES, SLICES
from cgpu_k8s.dra.slices import SliceGpu, SliceNode, plan_slice
from lab.cluster import crowd
from lab.cluster.claim_objects import DRIVER, V100, claim_of, claims_node, device_class
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.objects import pod, pods_path
from lab.kubernetes.programs import releases
from lab.kubernetes.scheduler import of_the_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.apiserver.client import Client
    from lab.kubernetes.control_plane import ControlPlane

    Json = dict[str, Any]

NODE_COUNT, GPUS, CLAIM_COUNT = 200, 8, 1000
EXAMPLE = "gpu.example.com"
SIZE = 3072  # MiB of a claim
ENOUGH = CLAIM_COUNT // (V100 // SIZE)  # GPUs for all claims
CREATED = 201
PATIENCE = 240.0
# What would hide the scheduler's own time: it waits for its turn to write.
UNTHROTTLED = {"clientConnection": {"qps": 5000, "burst": 5000}}
# Fills one node after the other, by what pods request.
FILLING = {
    "profiles": [
        {
            "schedulerName": "default-scheduler",
            "pluginConfig": [
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
            ],
        }
    ]
}
REQUESTS = {"cpu": "2", "memory": "8Gi"}  # of a pod, on nodes with 64 times as much
_FACTS = {
    "brand": "Tesla",
    "architecture": "Volta",
    "cudaComputeCapability": "7.0",
    "driverVersion": "535.129.03",
    "cudaDriverVersion": "12.2",
}


def our_slice(node: str) -> Json:
    """A node's slice as the driver writes it, with all attributes."""
    gpus = [
        SliceGpu(
            number,
            f"GPU-{node}-{number}",
            "Tesla V100-SXM2-16GB",
            V100,
            {**_FACTS, "pciBusID": f"0000:{number:02x}:00.0"},
            f"pci0000:{number:02x}",
            number // 4,
        )
        for number in range(GPUS)
    ]
    found = plan_slice(SliceNode(node, f"uid-{node}"), gpus, None)
    assert found is not None
    return found


def example_slice(node: str) -> Json:
    """The slice of the same GPUs with the attributes that Kubernetes' example driver gives them.

    Its GPUs are shared by one capacity, the memory, so that both drivers have the same claims.
    """
    found = our_slice(node)
    found["metadata"]["name"] = f"{node}-{EXAMPLE}"
    found["spec"]["driver"] = EXAMPLE
    found["spec"]["devices"] = [
        {
            "name": each["name"],
            "allowMultipleAllocations": True,
            "attributes": {
                "index": {"int": number},
                "uuid": each["attributes"]["uuid"],
                "model": {"string": "LATEST-GPU-MODEL"},
                "driverVersion": {"version": "1.0.0"},
            },
            "capacity": {"memory": each["capacity"]["memory"]},
        }
        for number, each in enumerate(found["spec"]["devices"])
    ]
    return found


SLICES_OF: dict[str, Callable[[str], Json]] = {DRIVER: our_slice, EXAMPLE: example_slice}


def schedule(driver: str, **settings: Any) -> Json:
    """Let CLAIM_COUNT pods wait, each with a claim of 3 GiB, and return what becomes of them.

    ``settings``: of the scheduler's configuration.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(Path(folder), releases()[-1]) as plane,
    ):
        crowd.asked(plane, lambda client: _fill(client, driver))
        with of_the_cluster(plane, **UNTHROTTLED, **settings):
            wait_until(lambda: _bound(plane) == CLAIM_COUNT, "all pods are bound", PATIENCE)
        times = sorted(each.when for each in plane.bindings() if each.status == CREATED)
        used = crowd.asked(plane, _used)
    return {
        "per_second": (CLAIM_COUNT - 1) / (times[-1] - times[0]),
        "gpus": len(used),
        "excess": sum(count * SIZE > V100 for count in used.values()),
    }


async def _fill(client: Client, driver: str) -> None:
    names = [crowd.node_name(number) for number in range(NODE_COUNT)]
    nodes = [claims_node(name) for name in names]
    await client.post(DEVICE_CLASSES.path(), device_class(driver, driver))
    await crowd.do_all(
        client.post(NODES.path(), {**each, "kind": "Node", "status": crowd.roomy(each["status"])})
        for each in nodes
    )
    await crowd.do_all(client.post(SLICES.path(), SLICES_OF[driver](name)) for name in names)
    exactly = {"deviceClassName": driver}
    claims = [claim_of(f"c{n:04}", memory=f"{SIZE}Mi", exactly=exactly) for n in range(CLAIM_COUNT)]
    await crowd.do_all(client.post(CLAIMS.path(namespace="default"), each) for each in claims)
    await crowd.do_all(
        client.post(pods_path(), _claiming(each["metadata"]["name"])) for each in claims
    )


def _claiming(claim: str) -> Json:
    named = [{"name": "gpu", "resourceClaimName": claim}]
    made = pod(f"pod-{claim}", resourceClaims=named)
    resources = {"claims": [{"name": "gpu"}], "requests": REQUESTS}
    made["spec"]["containers"][0]["resources"] = resources
    return made


def _bound(plane: ControlPlane) -> int:
    time.sleep(0.5)  # reading takes time of the processors that are measured
    return sum(each.status == CREATED for each in plane.bindings())


async def _used(client: Client) -> Counter[tuple[str, str]]:
    """How many claims have a part of each GPU, by node and device."""
    found: Counter[tuple[str, str]] = Counter()
    async for page in client.list_pages(CLAIMS.path(namespace="default")):
        for item in page.items:
            [result] = item["status"]["allocation"]["devices"]["results"]
            found[result["pool"], result["device"]] += 1
    return found


def measure() -> Json:
    """The rates with the slices of both drivers, in turns, and the GPUs that claims use."""
    turns = [(DRIVER, {}), (EXAMPLE, {}), (EXAMPLE, FILLING), (DRIVER, FILLING)]
    found = [schedule(driver, **settings) for driver, settings in turns]
    spread, _, _, filled = found
    rates = [each["per_second"] for each in found]
    ours, theirs = [rates[0], rates[3]], [rates[1], rates[2]]
    return {
        "per_second": {DRIVER: ours, EXAMPLE: theirs},
        "ratio": sum(ours) / sum(theirs),
        "spread": spread["gpus"],
        "filled": filled["gpus"],
        "excess": sum(each["excess"] for each in found),
    }
