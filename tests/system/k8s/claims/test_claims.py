"""Pods that claim GPUs, on a real kubelet with containerd, cgpu's DRA driver and simulated GPUs.

DRA-1..5, DRA-7, DRA-9.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lab.cluster.dra_node import ENABLED, Claiming, claim, claiming, consumed, templated
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import DRA_DRIVER
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.programs import newer
from lab.machine.cri import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "kubernetes.md"
MANY = int(os.environ.get("CGPU_MANY_CLAIMS", "16"))
_OUT_OF_MEMORY = 2
_WITHOUT_DEVICES = '[{"op": "replace", "path": "/spec/devices", "value": []}]'
# Allocates so many MiB each, or all that is free; "hold" keeps them.
_TAKE = """
import ctypes, json, signal, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
found = []
for word in sys.argv[1:]:
    if word == "hold":
        continue
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    size = free.value >> 21 << 21 if word == "all" else int(word) << 20
    found.append(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)))
print(json.dumps({"total": total.value, "statuses": found}), flush=True)
if sys.argv[-1] == "hold":
    signal.pause()
"""


def test_dra_2_what_is_claimed_is_the_cap_and_the_next_byte_is_refused(kubectl: Claiming) -> None:
    kubectl.create(claim("part", memory="2500Mi", cores="33"), claiming("one", "part"))
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [2500]
    found = take(kubectl, pod, "main", "all", "1")
    assert found["total"] == 2500 << 20
    assert found["statuses"] == [0, _OUT_OF_MEMORY]
    [share] = kubectl.node.shares()
    assert (share["kind"], share["name"]) == ("claim", "default/part")
    assert (share["weight"], share["policy"]) == (7, 6)  # 33 is rounded up to 35
    [amounts] = consumed(kubectl.get("resourceclaim", "part"))
    known = {"memory": "2500Mi", "cores": "35", "slots": "1"}
    assert amounts == {**known, "gpu.nvidia.com/memory": "0"}


def test_dra_2_the_documents_claim_works(kubectl: Claiming) -> None:
    section = DOCUMENT.read_text().partition("\n## Claims\n")[2]
    example = section.partition("```yaml\n")[2].partition("```")[0].replace("IMAGE", IMAGE)
    template, item = yaml.safe_load_all(example)
    item["spec"] |= {"hostNetwork": True, "terminationGracePeriodSeconds": 0}
    item["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    kubectl.create(template, item)
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [2500]
    [share] = kubectl.node.shares()
    assert share["weight"] == 6
    kubectl("delete", "resourceclaimtemplates", "--all")


def test_dra_1_pods_of_different_sizes_share_a_gpu_beside_one_that_has_all_of_another(
    kubectl: Claiming,
) -> None:
    kubectl.create(claim("small", memory="2500Mi"), claiming("one", "small"))
    kubectl.running("one")
    kubectl.create(claim("large", memory="6Gi", cores="60"), claiming("two", "large"))
    kubectl.running("two")
    kubectl.create(claim("whole"), claiming("three", "whole"))
    one, two, three = kubectl.running("one", "two", "three")
    seen = [kubectl.seen(pod) for pod in (one, two, three)]
    assert [[*each.values()] for each in seen] == [[2500], [6144], [16160]]
    assert seen[0].keys() == seen[1].keys()
    assert seen[0].keys().isdisjoint(seen[2])
    assert sorted(share["weight"] for share in kubectl.node.shares()) == [0, 0, 12]


def test_dra_2_a_pod_without_cores_runs_on_a_gpu_whose_cores_are_all_claimed(
    kubectl: Claiming,
) -> None:
    """The scheduler takes the first GPU that has the memory, although the other one is empty."""
    kubectl.create(claim("all", memory="1Gi", cores="100"), claiming("one", "all"))
    [one] = kubectl.running("one")
    kubectl.create(claim("rest", memory="2Gi"), claiming("two", "rest"))
    [two] = kubectl.running("two")
    assert kubectl.seen(one).keys() == kubectl.seen(two).keys()
    assert sorted(share["weight"] for share in kubectl.node.shares()) == [0, 20]
    assert take(kubectl, two, "main", "1900", "100")["statuses"] == [0, _OUT_OF_MEMORY]


def test_dra_2_containers_and_pods_with_one_claim_share_one_cap(kubectl: Claiming) -> None:
    kubectl.create(
        claim("common", memory="2500Mi"),
        claiming("one", "common", "main", "side"),
        claiming("two", "common"),
    )
    one, two = kubectl.running("one", "two")
    assert len(kubectl.node.shares()) == 1
    with holding(kubectl, one, "main", "2000"):
        for pod, container in ((one, "side"), (two, "main")):
            assert [*kubectl.seen(pod, container).values()] == [2500]
            found = take(kubectl, pod, container, "600", "100")
            assert found["statuses"] == [_OUT_OF_MEMORY, 0]
    assert take(kubectl, two, "main", "2200")["statuses"] == [0]


def test_dra_2_a_claim_for_two_gpus_has_a_cap_on_each(kubectl: Claiming) -> None:
    item = claim("wide", memory="3Gi")
    item["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    kubectl.create(item, claiming("one", "wide"))
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [3072, 3072]
    assert len(kubectl.node.cdi_files()) == 1


def test_dra_2_a_container_that_names_a_request_has_its_gpu_alone(kubectl: Claiming) -> None:
    item = claim("two-sizes", memory="3Gi")
    requests = item["spec"]["devices"]["requests"]
    requests.append(claim("", memory="5Gi")["spec"]["devices"]["requests"][0] | {"name": "large"})
    item["spec"]["devices"]["constraints"] = [{"distinctAttribute": "gpu.cgpu/uuid"}]
    pod = claiming("one", "two-sizes", "main", "side", "both")
    for container, request in zip(pod["spec"]["containers"], ("gpu", "large"), strict=False):
        container["resources"]["claims"][0]["request"] = request
    kubectl.create(item, pod)
    [pod] = kubectl.running("one")
    seen = [sorted(kubectl.seen(pod, each).values()) for each in ("main", "side", "both")]
    assert seen == [[3072], [5120], [3072, 5120]]
    assert len(kubectl.node.shares()) == 1


def test_dra_3_claims_for_nvidias_driver_get_shares_of_ours(kubectl: Claiming) -> None:
    """By its class, its attributes and its capacity, from a template, for two containers."""
    kubectl.create(
        templated(
            "shared",
            'device.attributes["gpu.nvidia.com"].productName.lowerAscii().contains("v100") &&'
            ' device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("400.0.0")) &&'
            ' device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("10Gi")) >= 0',
            memory="4Gi",
        ),
        templated("none", 'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100"'),
    )
    sources = [[{"name": "gpu", "resourceClaimTemplateName": name}] for name in ("shared", "none")]
    kubectl.create(
        claiming("one", "", "main", "side", resourceClaims=sources[0]),
        claiming("two", "", resourceClaims=sources[0]),
        claiming("three", "", resourceClaims=sources[1]),
    )
    one, two = kubectl.running("one", "two")
    seen = [kubectl.seen(one), kubectl.seen(one, "side"), kubectl.seen(two)]
    assert [[*each.values()] for each in seen] == [[4096], [4096], [4096]]
    assert len(kubectl.node.shares()) == 2
    assert "nodeName" not in kubectl.pods("three")["three"]["spec"]
    kubectl("delete", "resourceclaimtemplates", "--all")


def test_dra_5_a_pod_that_does_not_fit_waits_and_is_told_why(kubectl: Claiming) -> None:
    kubectl.create(claim("a"), claiming("one", "a"), claim("b"), claiming("two", "b"))
    kubectl.running("one", "two")
    kubectl.create(claim("c", memory="1Gi"), claiming("three", "c"))
    kubectl.create(claim("d", memory="17Gi"), claiming("four", "d"))
    for name in ("three", "four"):
        events = f"--field-selector=involvedObject.name={name},reason=FailedScheduling"
        wait_until(lambda at=events: kubectl.get("events", at)["items"], "it waits", PATIENCE)
        [event, *_] = kubectl.get("events", events)["items"]
        assert "cannot allocate all claims" in event["message"]
    kubectl("delete", "pod", "one", "--grace-period=1")
    kubectl("delete", "resourceclaim", "a")
    [three] = kubectl.running("three")
    assert [*kubectl.seen(three).values()] == [1024]


def test_dra_4_deleted_pods_leave_no_file_and_no_share(kubectl: Claiming) -> None:
    kubectl.create(claim("a", memory="1Gi"), claiming("one", "a"))
    kubectl.running("one")
    node = kubectl.node
    [name] = node.cdi_files()
    uid = kubectl.get("resourceclaim", "a")["metadata"]["uid"]
    assert (name, node.containers()) == (f"gpu.cgpu-claim_{uid}.json", [uid])
    kubectl("delete", "pod", "one", "--grace-period=1")
    wait_until(lambda: not node.cdi_files() and not node.containers(), "all is gone", PATIENCE)


def test_dra_5_many_pods_at_once_have_each_what_it_claims_and_leave_nothing(
    kubectl: Claiming,
) -> None:
    sizes = {f"p{n}": 300 + 10 * n for n in range(MANY)}
    kubectl.create(*(claim(name, memory=f"{mib}Mi") for name, mib in sizes.items()))
    kubectl.create(*(claiming(name, name) for name in sizes))
    pods = kubectl.running(*sizes)
    held = {share["name"]: share["gpus"][0]["cap_bytes"] >> 20 for share in kubectl.node.shares()}
    assert held == {f"default/{name}": mib for name, mib in sizes.items()}
    for pod in pods[:: MANY // 4]:
        assert [*kubectl.seen(pod).values()] == [sizes[pod["metadata"]["name"]]]
    kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    node = kubectl.node
    wait_until(lambda: not node.cdi_files() and not node.containers(), "all is gone", PATIENCE)


def test_dra_5_a_claim_of_what_docker_or_cgpu_run_has_is_not_prepared(kubectl: Claiming) -> None:
    """The scheduler does not know of them: the node's registry does."""
    node = kubectl.node
    with node.session("--gpus", "0", "--mem", "15GiB"):
        kubectl.create(claim("taken", memory="2Gi"), claiming("refused", "taken"))
        sentence = "cgpu: claim default/taken: memory: 2048 MiB asked on GPU 0, where 800 of 16160"
        kubectl.await_event("refused", sentence)
        assert node.cdi_files() == []
    kubectl.running("refused")


def test_a_container_without_a_claim_has_no_gpu_and_no_hook(kubectl: Claiming) -> None:
    item = claiming("one", "a", "main", "side")
    del item["spec"]["containers"][1]["resources"]
    kubectl.create(claim("a", memory="1Gi"), item)
    [pod] = kubectl.running("one")
    assert [*kubectl.seen(pod).values()] == [1024]
    assert kubectl.execute(pod, "side", "ls", "/dev").split().count("cgpu") == 0
    specification = kubectl.node.specification(pod, "side")
    assert not specification.get("hooks")


def test_dra_9_a_pod_that_names_anothers_cdi_device_has_no_gpu(kubectl: Claiming) -> None:
    """By an annotation or a variable, as other drivers and runtimes name CDI devices."""
    kubectl.create(claim("a", memory="1Gi"), claiming("one", "a"))
    kubectl.running("one")
    [name] = kubectl.node.cdi_files()
    uid = name.removeprefix("gpu.cgpu-claim_").removesuffix(".json")
    device = f"gpu.cgpu/claim={uid}_gpu"
    item = claiming("two", "a")
    item["metadata"]["annotations"] = {"cdi.k8s.io/gpu.cgpu_claim": device}
    del item["spec"]["resourceClaims"], item["spec"]["containers"][0]["resources"]
    item["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": device}]
    kubectl.create(item)
    [pod] = kubectl.running("two")
    assert not kubectl.node.specification(pod, "main").get("hooks")
    assert "libcuda" not in kubectl.execute(pod, "main", "cat", "/proc/self/mountinfo")


def test_dra_7_a_claim_is_shown_where_decisions_are(kubectl: Claiming) -> None:
    """By ``kubectl inspect cgpu``, ``cgpu get``, the metrics and ``cgpu doctor``."""
    node = kubectl.node
    kubectl.create(
        claim("common", memory="2500Mi", cores="30"),
        claiming("one", "common", "main", "side"),
        claiming("two", "common"),
        claim("large", memory="17Gi"),
        claiming("three", "large"),
    )
    kubectl.running("one", "two")
    rows = [line.split() for line in kubectl.inspect("-d").splitlines()]
    having = {row[0]: sorted(row[3:]) for row in rows if row[1:3] == ["default", "common"]}
    assert having == {"one": ["0", "2500"], "two": ["0", "2500"]}
    assert ["Allocated", ":", "2500", "(7%)"] in rows
    reason = "claim large: no GPU has 17408 MiB of memory in all: the largest has 16160"
    assert kubectl.inspect("--why", "three") == f"pod default/three waits: {reason}\n"
    shown = json.loads(kubectl.inspect("-o", "json"))["claims"]
    assert [(each["name"], each["reason"]) for each in shown["waiting"]] == [("three", reason)]

    [share] = node.shares()
    assert share["pods"] == ["default/one/main", "default/one/side", "default/two/main"]
    labels = {"id": share["id"], "namespace": "default", "container": "main,side"}
    labels |= {"kind": "claim", "name": "default/common"}
    assert node.metrics("cgpu_container_info") == [{**labels, "pod": "one,two"}]
    kubectl("delete", "pod", "two", "--grace-period=1")
    assert node.metrics("cgpu_container_info") == [{**labels, "pod": "one"}]

    assert [each["level"] for each in node.diagnose("claims")] == ["ok"]
    node.stop("driver")
    [found] = node.diagnose("claims")
    assert found["level"] == "error"
    assert "no driver of claims answers at" in found["what"]
    node.start_driver()
    node.wait_until(lambda: node.diagnose("claims")[0]["level"] == "ok", "it answers", "driver")


def test_dra_9_the_chart_grants_the_driver_what_it_calls_and_no_more(kubectl: Claiming) -> None:
    """What the driver of this file has called; and a slice of its own that is there no more."""
    node = kubectl.node
    kubectl.create(claim("a", memory="1Gi"), claiming("one", "a"))
    kubectl.running("one")
    kubectl("delete", "resourceslices", "--all")
    kubectl.await_devices()
    kubectl("patch", "resourceslice", "gpu-a-gpu.cgpu", "--type=json", "--patch", _WITHOUT_DEVICES)
    kubectl.await_devices()
    calls = {each._replace(namespace="") for each in node.plane.calls(DRA_DRIVER)}
    assert calls == node.plane.granted("cgpu-dra-driver", ENABLED)


def test_dra_9_a_drivers_token_writes_its_own_nodes_slice_alone(kubectl: Claiming) -> None:
    plane = kubectl.node.plane
    config = plane.kubeconfig(DRA_DRIVER, token=plane.agents_token("gpu-b", DRA_DRIVER))
    [own] = kubectl.get("resourceslices")["items"]
    theirs = {**own, "metadata": {"name": "gpu-b-gpu.cgpu"}}
    theirs["spec"] = {
        **own["spec"],
        "nodeName": "gpu-b",
        "pool": {**own["spec"]["pool"], "name": "b"},
    }
    other = {
        **theirs,
        "metadata": {"name": "other"},
        "spec": {**theirs["spec"], "driver": "other.x"},
    }
    try:
        assert "expected nodeName gpu-b" in sent(kubectl, "replace", own, config)
        assert "expected the driver gpu.cgpu" in sent(kubectl, "create", other, config)
        named = {**theirs, "metadata": {"name": "gpu-c-gpu.cgpu"}}  # which gpu-c's would be
        assert "expected the name gpu-b-gpu.cgpu" in sent(kubectl, "create", named, config)
        assert sent(kubectl, "create", theirs, config) == ""
    finally:
        kubectl("delete", "resourceslices/gpu-b-gpu.cgpu", "--ignore-not-found")
    for path in ("pods", "secrets", "namespaces/default/pods", "namespaces/default/resourceclaims"):
        with pytest.raises(AssertionError, match="Forbidden"):
            kubectl_as(kubectl, config, "get", f"--raw=/api/v1/{path}")


def sent(kubectl: Claiming, verb: str, item: Any, config: Path) -> str:
    """The words with which the API server refuses what a user does; "": it does not."""
    try:
        kubectl_as(kubectl, config, verb, "--filename=-", given=json.dumps(item))
    except AssertionError as error:
        return str(error)
    return ""


def kubectl_as(kubectl: Claiming, config: Path, *words: str, given: str = "") -> str:
    where = kubectl.node.plane.folder
    return chart.done("kubectl", *words, f"--kubeconfig={config}", home=where, given=given)


def take(kubectl: Claiming, pod: Any, container: str, *sizes: str) -> Any:
    """What comes of allocations of so many MiB in a container, or of ``all`` that is free."""
    printed = kubectl.execute(pod, container, "python3", "-c", _TAKE, *sizes)
    [line] = [each for each in printed.splitlines() if each.startswith("{")]
    return json.loads(line)  # beside what cgpu says of a refusal


@contextmanager
def holding(kubectl: Claiming, pod: Any, container: str, size: str) -> Iterator[None]:
    """A program in a container that holds so many MiB until the end of the block."""
    node = kubectl.node
    words = ("python3", "-uc", _TAKE, size, "hold")
    process = node.installed.enclosure.start(
        *node.executing(pod, container, *words, called="holder"), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["statuses"] == [0]
    yield
    kubectl.execute(pod, container, "sh", "-c", "kill $(pidof python3)")
    process.wait(60)
