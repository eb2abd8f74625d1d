"""Claims of which a kubelet has lost track are given back once nobody has them. DRA-5."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s import dra_driver
from cgpu_k8s.apiserver.client import open_client
from cgpu_k8s.dra import prepare
from cgpu_k8s.dra.cdi import HookPlace
from cgpu_k8s.kubelet.dra_plugin_api import AskedClaim
from lab.cluster.claim_lab import V100, ClaimLab
from lab.cluster.claims import NODE, result
from lab.kubernetes.agents import fake_engine

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration


class Answering:
    """GPUs that all answer."""

    answering = frozenset(gpu.uuid for gpu in V100)

    async def check_barrier(self) -> None:
        """Raise nothing."""

    async def check_conflict(self, _: object) -> None:
        """Raise nothing."""


def test_dra_5_a_claim_that_a_kubelet_forgot_is_given_back_once_nobody_has_it(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its state is lost, and the pod is deleted then: it never unprepares the claim."""
    with fake_engine(tmp_path / "engine") as engine:
        lab = ClaimLab(fake, engine, tmp_path)
        item = lab.claim(result())
    uid = item["metadata"]["uid"]
    asked = AskedClaim(uid, "default", "train")
    place = prepare.ClaimPlace(
        NODE, lab.cdi, HookPlace("cgpu-hook", str(lab.state)), str(lab.driver), 6
    )

    def reserve(*pods: str) -> None:
        [key] = lab.fake.change(
            lambda store: [each for each in store.items if each.name == "train"]
        )
        reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
        lab.fake.change(lambda store: store.items[key]["status"].update(reservedFor=reserved))

    def allocate(**anew: str) -> None:
        def change(store: Any) -> None:
            [item] = [each for key, each in store.items.items() if key.name == "train"]
            item["status"]["allocation"]["devices"]["results"][0].update(anew)

        lab.fake.change(change)

    async def work() -> None:
        gpus: Any = Answering()
        async with open_client(fake.cluster()) as client:
            preparer = prepare.ClaimPreparer(place, client, gpus)
            await preparer.prepare(asked)
            reserve("one")
            assert [await preparer.give_back_unused() for _ in range(3)] == [[], [], []]
            reserve()
            with monkeypatch.context() as patch:
                patch.setattr(prepare, "find_inhabited", set)  # a container has it
                assert [await preparer.give_back_unused() for _ in range(3)] == [[], [], []]
            assert await preparer.give_back_unused() == [], "its kubelet may be about to do so"
            await preparer.prepare(asked)
            assert await preparer.give_back_unused() == [], "it was prepared since"
            assert len(lab.held()) == len(lab.files()) == 1
            assert await preparer.give_back_unused() == [uid]
            assert (lab.held(), lab.files()) == ([], [])
            for elsewhere in ({"pool": "another"}, {"device": "gpu-1"}):
                await preparer.prepare(asked)
                allocate(**elsewhere)
                reserve("of-another-node")
                assert [await preparer.give_back_unused() for _ in range(2)] == [[], [uid]]
                allocate(pool=NODE, device="gpu-0")

    asyncio.run(work())


def test_dra_5_the_driver_looks_for_them_as_long_as_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []

    class Looking:
        async def warm(self) -> None:
            looks.append("facts")

        async def recover(self) -> list[str]:
            looks.append("start")
            return []

        async def give_back_unused(self) -> list[str]:
            looks.append("unused")
            if looks.count("unused") > 2:
                raise asyncio.CancelledError
            return []

    monkeypatch.setattr(dra_driver, "_UNUSED_SECONDS", 0)
    preparer: Any = Looking()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(dra_driver.recover(preparer))
    assert looks == ["facts", "start", *["unused"] * 3]
