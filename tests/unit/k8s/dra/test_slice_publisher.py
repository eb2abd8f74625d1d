"""How the slice is written, by what the API server gives back. DRA-1, DRA-5, DRA-8."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.resources import NODES, SLICES
from cgpu_k8s.dra import publisher
from cgpu_k8s.dra.slices import GpuProblem
from lab.cluster.claims import NODE
from lab.cluster.published import LOST, ONE, TWO, publishing
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import asked
from lab.kubernetes.fake_server import FakeServer, fake_server
from lab.kubernetes.objects import node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

NAME = f"{NODE}-gpu.cgpu"
_ADDED = "2026-11-30T08:00:00Z"


@pytest.fixture(name="fake")
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(publisher, "LOOK", 0.05)
    monkeypatch.setattr(publisher, "_AGAIN", 0.05)
    with fake_server() as server:
        asked(server, "POST", NODES.path(), node(NODE))
        yield server


def keep_taints(body: Any) -> None:
    """As an API server with the feature: it adds the time."""
    for device in body.get("spec", {}).get("devices", []):
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", _ADDED)


def drop_taints(body: Any) -> None:
    """As an API server without it."""
    for device in body.get("spec", {}).get("devices", []):
        device.pop("taints", None)


def test_dra_8_a_gpu_that_is_lost_has_a_taint_until_it_is_well(fake: FakeServer) -> None:
    fake.amend = keep_taints

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.until({"gpu-0": [], "gpu-1": []})
            found.gpus = [ONE, TWO._replace(problem=LOST)]
            await found.until({"gpu-0": [], "gpu-1": [LOST.taint]})
            await found.rested()
            [taint] = (await found.taints())["gpu-1"]
            assert taint == {
                "key": "gpu.cgpu/unhealthy",
                "value": "GPU-is-lost-error-15",
                "effect": "NoSchedule",
                "timeAdded": _ADDED,
            }
            assert found.reported("failed") == [LOST.sentence]
            found.gpus = [ONE, TWO]
            await found.until({"gpu-0": [], "gpu-1": []})
            await found.rested()

    asyncio.run(work())


def test_dra_5_a_node_that_was_deleted_and_added_again_offers_its_gpus(fake: FakeServer) -> None:
    """Its slice goes with the node: Kubernetes removes one whose owner's UID is gone."""

    def owners() -> list[str]:
        return [each["metadata"]["ownerReferences"][0]["uid"] for each in
                fake.items("resourceslices", "resource.k8s.io")]  # fmt: skip

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.until({"gpu-0": [], "gpu-1": []})
            before = owners()
            asked(fake, "DELETE", NODES.path(NODE))
            asked(fake, "DELETE", SLICES.path(NAME))
            await asyncio.to_thread(
                wait_until, lambda: bool(found.reported("failed")), "it says so"
            )
            made = asked(fake, "POST", NODES.path(), node(NODE))
            await found.until({"gpu-0": [], "gpu-1": []})
            assert owners() == [made["metadata"]["uid"]] != before

    asyncio.run(work())


def test_dra_8_where_taints_are_dropped_a_lost_gpu_is_not_offered(fake: FakeServer) -> None:
    """And taints are tried again when the next GPU is lost."""
    fake.amend = drop_taints

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.until({"gpu-0": [], "gpu-1": []})
            found.gpus = [ONE, TWO._replace(problem=LOST)]
            await found.until({"gpu-0": []})
            await found.rested()
            [sentence] = [each for each in found.reported("failed") if "taint" in each]
            assert "the feature DRADeviceTaints" in sentence
            found.gpus = [ONE, TWO]
            await found.until({"gpu-0": [], "gpu-1": []})
            fake.amend = keep_taints
            found.gpus = [ONE._replace(problem=LOST), TWO]
            await found.until({"gpu-0": [LOST.taint], "gpu-1": []})

    asyncio.run(work())


def drop_sharing(body: Any) -> None:
    """As an API server without consumable capacity."""
    for device in body.get("spec", {}).get("devices", []):
        device.pop("allowMultipleAllocations")
        for capacity in device["capacity"].values():
            capacity.pop("requestPolicy")


def test_dra_5_where_devices_cannot_be_shared_none_is_offered(fake: FakeServer) -> None:
    """Claims would have whole GPUs, and their status no size."""
    fake.amend = drop_sharing

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.looked()
            await found.until({})
            await found.rested()
            [sentence] = found.reported("failed")
            assert "the feature DRAConsumableCapacity" in sentence

    asyncio.run(work())


def test_what_an_api_server_drops_is_not_sent_again_at_once(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch shows each write: without a pause there were 190 a second."""
    monkeypatch.setattr(publisher, "_AGAIN", 300.0)

    def drop(body: Any) -> None:
        for device in body.get("spec", {}).get("devices", []):
            device.pop("attributes")

    fake.amend = drop

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.until({"gpu-0": [], "gpu-1": []})
            await asyncio.sleep(0.5)
            assert found.reported("published") == [2]

    asyncio.run(work())


def test_a_gpu_without_a_device_is_only_reported_and_once(fake: FakeServer) -> None:
    problem = GpuProblem("", "GPU 1 is in MIG mode")

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            found.gpus = [ONE, TWO._replace(problem=problem)]
            await found.until({"gpu-0": []})
            await found.looked()
            assert found.reported("failed") == [problem.sentence]

    asyncio.run(work())


@pytest.mark.parametrize("where", ["gpu-b", NODE])
def test_a_slice_of_somebody_elses_with_our_name_is_named_once_and_stays(
    fake: FakeServer, where: str
) -> None:
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": NAME},
        "spec": {"driver": "gpu.example.com", "nodeName": where, "devices": []},
    }
    before = asked(fake, "POST", SLICES.path(), theirs)
    sentence = (
        f"ResourceSlice {NAME} is of the driver gpu.example.com and the node {where}, and expected"
        f" of gpu.cgpu and {NODE}: no GPU of this node is offered until somebody deletes it:"
        f" kubectl delete resourceslice {NAME}"
    )

    async def work() -> None:
        async with publishing(fake.cluster()) as found:
            await found.looked(4)
            assert found.reported("failed") == [sentence]
            assert fake.items("resourceslices", "resource.k8s.io") == [before]
            asked(fake, "DELETE", SLICES.path(NAME))
            await found.until({"gpu-0": [], "gpu-1": []})
            await found.rested()
            assert found.reported("failed") == [sentence]
            assert found.reported("published") == [2]

    asyncio.run(work())
