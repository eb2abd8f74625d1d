"""Pods with claims while something is down: driver, kubelet, machine, CDI in the engine. DRA-5."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lab.cluster.dra_node import Claiming, claim, claiming, dra_node
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import PATIENCE
from lab.kubernetes.programs import Release, newer

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.kubectl import Json

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), newer]

ENDED: tuple[tuple[str, ...], ...] = (
    ("driver",), ("kubelet",), ("driver", "kubelet"), ("containerd",), ()
)  # fmt: skip
RESTARTS = int(os.environ.get("CGPU_KUBELET_RESTARTS", str(len(ENDED))))


def test_dra_5_where_containerd_has_cdi_off_no_gpu_is_offered(
    tmp_path: Path, debian_root: Path, release: Release
) -> None:
    """By the configuration that the real one shows."""
    with (
        control_plane(tmp_path, release) as plane,
        dra_node(plane, debian_root, cdi=False) as node,
    ):
        Claiming(node).install()
        node.start_driver()
        node.wait_until(lambda: "published" in node.log("driver"), "it has a slice", "driver")
        assert node.devices() == []
        assert "containerd gives containers no CDI devices" in node.log("driver")


def identities(pods: list[Json]) -> list[str]:
    """The containers of the pods."""
    return [each["containerID"] for pod in pods for each in pod["status"]["containerStatuses"]]


@pytest.mark.timeout(300 + 60 * RESTARTS)
def test_dra_5_running_pods_notice_nothing_of_programs_that_are_killed(
    kubectl: Claiming,
) -> None:
    node = kubectl.node
    kubectl.create(
        claim("a", memory="2500Mi", cores="30"),
        claiming("one", "a", "main", "side"),
        claim("b", memory="6Gi"),
        claiming("two", "b"),
    )
    before = identities(kubectl.running("one", "two"))
    held, files = sorted(node.containers()), node.cdi_files()
    for number in range(RESTARTS):
        programs = ENDED[number % len(ENDED)]
        node.stop(*programs)
        if not programs:
            node.plane.forget()  # the API server ends, and starts again
        kubectl.create(claim(f"late-{number}", memory="1Gi"))
        kubectl.create(claiming(f"late-{number}", f"late-{number}"))
        if "containerd" in programs:
            node.start_containerd()
        if "kubelet" in programs:
            node.start_kubelet()
        if "driver" in programs:
            node.start_driver()
        [late] = kubectl.running(f"late-{number}")
        assert [*kubectl.seen(late).values()] == [1024], number
        pods = [*kubectl.pods("one", "two").values()]
        assert identities(pods) == before, number
        kubectl("delete", "pod", f"late-{number}", "--grace-period=1")
        wait_until(lambda: node.cdi_files() == files, "its file is gone", PATIENCE)
        assert sorted(node.containers()) == held, number
    assert [*kubectl.seen(pods[0], "side").values()] == [2500]


def test_dra_5_a_container_starts_again_without_the_driver(kubectl: Claiming) -> None:
    """It joins the share that its claim has, beside the other container."""
    kubectl.create(
        claim("a", memory="2500Mi"), claiming("one", "a", "main", "side", restartPolicy="Always")
    )
    [pod] = kubectl.running("one")
    before, node = identities([pod]), kubectl.node
    node.stop("driver")
    try:
        node.kill(pod, "main")
        wait_until(
            lambda: len({*before} & {*identities(kubectl.running("one"))}) == 1,
            "it is new",
            PATIENCE,
        )
        [pod] = kubectl.running("one")
        for container in ("main", "side"):
            assert [*kubectl.seen(pod, container).values()] == [2500]
        assert len(node.containers()) == 1
    finally:
        node.start_driver()


def test_dra_5_without_the_hook_a_container_does_not_start(kubectl: Claiming) -> None:
    node = kubectl.node
    node.stop("driver")
    node.start_driver("--hook=/nowhere/cgpu-hook")
    try:
        kubectl.create(claim("a", memory="1Gi"), claiming("hookless", "a"))
        events = "--field-selector=involvedObject.name=hookless,type=Warning"

        def messages() -> str:
            return "".join(each["message"] for each in kubectl.get("events", events)["items"])

        wait_until(
            lambda: "/nowhere/cgpu-hook: no such file or directory" in messages(),
            "its event says why",
            PATIENCE,
        )
        [pod] = kubectl.pods("hookless").values()
        [status] = pod["status"]["containerStatuses"]
        assert "running" not in status["state"]
        assert "running" not in status["lastState"]
    finally:
        node.stop("driver")
        node.start_driver()


def test_dra_5_what_was_deleted_while_no_driver_ran_leaves_nothing(kubectl: Claiming) -> None:
    node = kubectl.node
    kubectl.create(claim("a", memory="2500Mi"), claiming("one", "a"))
    kubectl.running("one")
    node.stop("driver")
    kubectl("delete", "pod", "one", "--grace-period=0", "--force")
    kubectl("delete", "resourceclaim", "a", "--wait=false")
    node.start_driver()
    wait_until(lambda: not node.cdi_files() and not node.containers(), "all is gone", PATIENCE)


def test_dra_5_pods_that_come_back_after_a_reboot_have_what_they_had(kubectl: Claiming) -> None:
    kubectl.create(
        claim("a", memory="2500Mi", cores="30"),
        claiming("one", "a", "main", "side", restartPolicy="Always"),
        claim("b"),
        claiming("two", "b", restartPolicy="Always"),
    )
    before = identities(kubectl.running("one", "two"))
    seen = [kubectl.seen(pod) for pod in kubectl.running("one", "two")]
    kubectl.node.reboot()
    wait_until(
        lambda: not {*before} & {*identities(kubectl.running("one", "two"))},
        "the pods' containers are new",
        PATIENCE,
    )
    pods = kubectl.running("one", "two")
    assert [kubectl.seen(pod) for pod in pods] == seen
    assert sorted(share["weight"] for share in kubectl.node.shares()) == [0, 6]
    kubectl.await_devices()
