"""Pods with claims on a real kubelet and containerd: many at once, and while programs die."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgpu_k8s.apiserver.resources import CLAIMS
from lab.cluster.dra_node import Claiming, claim, claiming, dra_node
from lab.containers import images
from lab.containers.enclosure import wait_until
from lab.kubernetes import scheduler
from lab.kubernetes.control_plane import control_plane, controllers
from lab.kubernetes.kubelet import V100
from lab.kubernetes.objects import pods_path
from lab.kubernetes.programs import releases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Json = dict[str, Any]

GPUS = 8
PODS = 100  # at once
KILLS = 50  # of the kubelet, and as many of the driver
STAYING, COMING = 8, 4  # pods that run all the time, and others at a time
MIB = 512  # of each of these
PATIENCE = 300.0
_SHOW = ["sh", "-c", "nvidia-smi; exec sleep 100000"]
# Other clusters of this machine may have theirs there.
_LOGS = 'for uid; do echo "pod $uid"; cat /var/log/pods/default_*_"$uid"/main/0.log; done; true'
_SEEN = re.compile(r"^pod (.+)$|/ *(\d+)MiB", re.MULTILINE)


@contextlib.contextmanager
def cluster() -> Iterator[Claiming]:
    """A control plane, the cluster's own scheduler, and a node that offers GPUS GPUs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(Path(folder), releases()[-1]) as plane,
        controllers(plane, "resourceclaim-controller"),
        scheduler.of_the_cluster(plane),
        dra_node(plane, images.debian(), *[V100] * GPUS) as node,
    ):
        kubectl = Claiming(node)
        kubectl.install()
        node.start_driver()
        kubectl.await_devices(GPUS)
        yield kubectl


def burst(kubectl: Claiming) -> Json:
    """Create PODS pods at once and delete them: how many caps are wrong, and what is left."""
    sizes = {f"p{number}": 300 + 10 * number for number in range(PODS)}
    for name, mib in sizes.items():
        _create(kubectl, name, mib, command=_SHOW)
    _wait(lambda: _count_running(kubectl, sizes) == PODS)
    shares = {each["name"]: each["gpus"] for each in kubectl.node.shares()}
    held = {name: [gpu["cap_bytes"] >> 20 for gpu in gpus] for name, gpus in shares.items()}
    _wait(lambda: all(_read_seen(kubectl, sizes).values()))
    seen = _read_seen(kubectl, sizes)
    wrong = [
        name
        for name, mib in sizes.items()
        if (held.get(f"default/{name}"), seen.get(name)) != ([mib], [mib])
    ]
    kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    return {"wrong": len(wrong), "left": _count_left(kubectl)}


def kills(kubectl: Claiming) -> Json:
    """Kill kubelet and driver in turns while pods come and go; return what failed and is left."""
    node, chance = kubectl.node, random.Random(8)
    staying = [f"stays-{number}" for number in range(STAYING)]
    for name in staying:
        _create(kubectl, name, MIB)
    _wait(lambda: _count_running(kubectl, staying) == STAYING)
    before, failed = _identify(kubectl, staying), 0
    coming: deque[str] = deque()
    for number in range(2 * KILLS):
        coming.append(f"comes-{number}")
        _create(kubectl, coming[-1], MIB)
        time.sleep(chance.random())
        if number % 2:
            node.stop("driver")
            node.start_driver()
        else:
            node.stop("kubelet")
            node.start_kubelet()
        if len(coming) == COMING:
            failed += not _remove(kubectl, coming.popleft())
    failed += sum(not _remove(kubectl, name) for name in coming)
    after = _identify(kubectl, staying)
    failed += sum(before[name] != after.get(name) for name in staying)
    kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    return {"failed": failed, "left": _count_left(kubectl), "pods": STAYING + 2 * KILLS}


def _create(kubectl: Claiming, name: str, mib: int, **container: Any) -> None:
    """Create a pod, and its claim of the same name."""
    plane, item = kubectl.node.plane, claiming(name, name)
    item["spec"]["containers"][0].update(container)
    plane.create(CLAIMS.path(namespace="default"), claim(name, memory=f"{mib}Mi"))
    plane.create(pods_path(), item)


def _remove(kubectl: Claiming, name: str) -> bool:
    """Delete a pod once it runs; whether it came so far."""
    ran = _wait(lambda: _count_running(kubectl, [name]) == 1)
    kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
    return ran


def _count_running(kubectl: Claiming, names: Iterable[str]) -> int:
    return sum(each["status"]["phase"] == "Running" for each in kubectl.pods(*names).values())


def _identify(kubectl: Claiming, names: Iterable[str]) -> Mapping[str, list[str]]:
    """The containers of each pod."""
    return {
        name: [each.get("containerID", "") for each in item["status"].get("containerStatuses", [])]
        for name, item in kubectl.pods(*names).items()
    }


def _read_seen(kubectl: Claiming, names: Iterable[str]) -> dict[str, list[int]]:
    """What nvidia-smi has shown in each pod: MiB of each GPU."""
    pods = kubectl.pods(*names)
    by_uid = {item["metadata"]["uid"]: name for name, item in pods.items()}
    found: dict[str, list[int]] = {name: [] for name in pods}
    name = ""
    for match in _SEEN.finditer(kubectl.node.run("sh", "-c", _LOGS, "sh", *by_uid)):
        if match[1]:
            name = by_uid[match[1]]
        else:
            found[name].append(int(match[2]))
    return found


def _count_left(kubectl: Claiming) -> int:
    """Delete the claims of pods that are being deleted: how many files and shares stay."""
    kubectl("delete", "resourceclaims", "--all", "--wait=false")
    node = kubectl.node
    _wait(lambda: not node.cdi_files() and not node.containers())
    return len(node.cdi_files()) + len(node.containers())


def _wait(condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; whether it does in the end."""
    with contextlib.suppress(AssertionError):
        wait_until(condition, "it holds", PATIENCE)
        return True
    return False
