"""``make demo-k8s``: pods share the GPUs of a node of a private Kubernetes 1.20.2.

API server, scheduler, kubelet and containerd are real, and the GPUs simulated. Everything has a
folder, ports and namespaces of its own, and ends with the demonstration, however that ends. No
controllers run, so the pods of the jobs are created, not the jobs. Where ``CGPU_KUBERNETES`` names
a Kubernetes that has them, pods with claims follow, on that one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cgpu_env import program
from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from lab.kubernetes.kubectl import Kubectl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # its cluster
LABEL = "ack.node.gpu.schedule"
GIB, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
JOBS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("gpu-share-sample", "cgpu", "memory", {GIB: 3}),
    ("cuda-sample", "core_mem", "memory and compute time", {GIB: 2, PERCENT: 30}),
)
SCHEDULERS = {"gpu-share-sample": "ack-co-scheduler"}  # that the jobs name
# The first job asks for no percentage, so no node that shares time takes it beside the second.
NEIGHBOUR: tuple[str, dict[str, Any]] = ("neighbour", {GIB: 3, PERCENT: 70})
NEAR = 5  # percent by which a share may differ from what was asked for


def main() -> NoReturn:
    """Run the demonstration, and exit."""
    program.run("demo-k8s", _work)


def _work() -> int:
    import claims

    from lab.containers import images
    from lab.kubernetes import programs, scheduler
    from lab.kubernetes.control_plane import ACCOUNT, control_plane
    from lab.kubernetes.kubectl import Kubectl
    from lab.kubernetes.kubelet import kubelet_node
    from lab.worlds.guard import guarding

    if os.geteuid() != 0:
        raise CgpuError("you are not root, who starts a kubelet", hint="run it as root")
    program.undo_when_terminated()
    good = True
    _say("Starting Kubernetes 1.20.2 and a node with two simulated Tesla V100 ...")
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
        scheduler.install(plane)
        with (
            kubelet_node(plane, images.debian(), JOBS[0][1]) as node,
            scheduler.scheduling(plane, user=ACCOUNT),
            guarding(plane),
        ):
            for job in JOBS:
                good &= _show(Kubectl(node), *job)
    for release in programs.releases():
        if release.is_since(claims.SINCE):
            good &= claims.show_claims(release, NEAR, _say)
    return 0 if good else 1


def _show(kubectl: Kubectl, name: str, mode: str, what: str, limits: dict[str, Any]) -> bool:
    """Run the pod of a job on the node in ``mode``, and show its share; return if that is right."""
    from lab.containers.enclosure import wait_until
    from lab.kubernetes.kubectl import PATIENCE, asking

    kubectl("label", "node", kubectl.node.name, f"{LABEL}={mode}", "--overwrite")
    percent = "200" if PERCENT in limits else ""
    offer = ("2", "30", percent)
    wait_until(lambda: kubectl.offers() == offer, f"the node offers its {what}", PATIENCE)
    asked = ", ".join(f"{resource}: {amount}" for resource, amount in limits.items())
    _say(f"\n== {name}, on a node that shares {what}; its limits: {asked}")
    kubectl.create(asking(name, limits, schedulerName=SCHEDULERS.get(name)))
    [pod] = kubectl.running(name)
    _say(
        f"It names {SCHEDULERS.get(name, 'no scheduler')}, and has {pod['spec']['schedulerName']}."
    )
    _say(f"\n$ kubectl inspect cgpu\n{kubectl.inspect()}")
    _say(f"$ nvidia-smi    (in the pod)\n{kubectl.execute(pod, 'main', 'nvidia-smi')}")
    [share] = kubectl.node.shares()
    [gpu] = share["gpus"]
    held = f"{gpu['cap_bytes'] >> 20} MiB of GPU {gpu['index']}"
    time = f"at most {gpu['limit_percent']:g} % of its time"
    _say(f"The node's cgpu holds it to {held}, and {time}.")
    good = _compete(kubectl, pod, gpu["index"], limits.get(PERCENT))
    kubectl.clear()
    return good


def _compete(kubectl: Kubectl, pod: dict[str, Any], gpu: int, percent: int | None) -> bool:
    """Keep the GPU busy, alone and beside another pod; return if the pod has its percentage."""
    from busy import SECONDS, Busy

    from lab.kubernetes.kubectl import asking

    name = pod["metadata"]["name"]
    with Busy(kubectl, gpu) as busy:
        busy.start(pod)
        _say(f"It keeps the GPU busy: alone, it has {busy.shares()[name]:.0f} % of its time.")
        if percent is None:
            return True
        other, limits = NEIGHBOUR
        kubectl.create(asking(other, limits))
        [beside] = kubectl.running(other)
        busy.start(beside)
        shares = busy.shares()
    # Where processors are busy, programs leave some of the GPU's time unused.
    part = 100 * shares[name] / (shares[name] + shares[other])
    good = abs(part - percent) <= NEAR and shares[name] <= percent + NEAR
    _say(
        f"Beside the pod {other}, which asks for {limits[PERCENT]} % and is as busy, it had"
        f" {shares[name]:.1f} % during {SECONDS} s, and {other} {shares[other]:.1f} %. Its part of"
        f" both is {part:.1f} %, and it was promised {percent} %: {'held' if good else 'NOT held'}."
    )
    return good


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
