"""Pods with claims (Dynamic Resource Allocation) share one GPU, by the cluster's own scheduler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busy import SECONDS, Busy

from lab.cluster.dra_node import Claiming, claim, claiming, claiming_cluster
from lab.containers import images
from lab.containers.enclosure import wait_until
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.kubelet import V100

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.kubernetes.programs import Release

SINCE = 36  # the minor version that allocates parts of devices without a feature gate
PARTS = {"small": {"memory": "6Gi", "cores": "30"}, "large": {"memory": "9Gi", "cores": "70"}}
THIRD = {"memory": "4Gi"}


def show_claims(release: Release, near: float, say: Callable[[str], None]) -> bool:
    """Run the demonstration; return whether each pod has what it claims.

    Args:
        release: of Kubernetes, with its controllers.
        near: by how many percent a share may differ from what was claimed.
        say: prints a text.
    """
    say(f"\nStarting Kubernetes {release.version} and a node with one simulated Tesla V100 ...")
    with (
        tempfile.TemporaryDirectory() as folder,
        claiming_cluster(Path(folder), release, images.debian(), V100) as kubectl,
    ):
        kubectl.install()
        kubectl.node.start_driver()
        wait_until(kubectl.node.devices, "the node offers its GPU", PATIENCE)
        for name, capacity in PARTS.items():
            say(f"\n== {name}, a pod whose claim is for {_format(capacity)} of a GPU")
            kubectl.create(claim(name, **capacity), claiming(name, name))
            [pod] = kubectl.running(name)
            say(f"$ nvidia-smi    (in the pod)\n{kubectl.execute(pod, 'main', 'nvidia-smi')}")
        good = _compete(kubectl, near, say)
        say(f"\n== third, a pod whose claim is for {_format(THIRD)}")
        kubectl.create(claim("third", **THIRD), claiming("third", "third"))
        say(f"It waits: {_await_refusal(kubectl, 'third')}")
        kubectl("delete", "pod", "small", "--grace-period=1")
        kubectl("delete", "resourceclaim", "small")
        [pod] = kubectl.running("third")
        [cap] = kubectl.seen(pod).values()
        say(f"Once small and its claim are deleted it runs, with {cap} MiB.")
        kubectl.clear()
    return good


def _compete(kubectl: Claiming, near: float, say: Callable[[str], None]) -> bool:
    """Keep the GPU busy in both pods; return whether each has its part."""
    with Busy(kubectl, 0) as busy:
        for pod in kubectl.running(*PARTS):
            busy.start(pod)
        shares = busy.shares()
    parts = {name: 100 * share / sum(shares.values()) for name, share in shares.items()}
    wanted = int(PARTS["small"]["cores"])
    good = abs(parts["small"] - wanted) <= near
    say(
        f"Both are busy for {SECONDS} s: small has {parts['small']:.1f} % of what they use of the"
        f" GPU's time, and large {parts['large']:.1f} %. small claims {wanted}:"
        f" {'held' if good else 'NOT held'}."
    )
    return good


def _await_refusal(kubectl: Claiming, name: str) -> str:
    """Return what the scheduler says of a pod that it cannot place."""
    events = f"--field-selector=involvedObject.name={name},reason=FailedScheduling"

    def read() -> list[Any]:
        found: list[Any] = kubectl.get("events", events)["items"]
        return found

    wait_until(read, f"{name} waits", PATIENCE)
    message: str = read()[0]["message"]
    return message


def _format(capacity: dict[str, str]) -> str:
    return " and ".join(f"{name}: {amount}" for name, amount in capacity.items())
