"""Claims are prepared one after the other, whatever kubelet and driver do. DRA-4, 5, 8."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.dra import node_facts
from cgpu_k8s.dra.cdi import HookPlace, file_name
from cgpu_k8s.dra.prepare import ClaimPlace, ClaimPreparer
from cgpu_k8s.kubelet.dra_plugin_api import AskedClaim
from cgpu_node.facts.node import Node
from cgpu_node.shares.registry import Registry
from lab.cluster.claims import GPUS, NODE, UID, UUIDS, allocated, result
from lab.containers.enclosure import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cgpu_k8s.dra.claims import ClaimName

pytestmark = pytest.mark.unit


class Open:
    """GPUs of a node that gives them to claims. Only the first one answers."""

    answering = frozenset(UUIDS[:1])

    async def check_barrier(self) -> None:
        """Raise nothing."""

    def __init__(self) -> None:
        self.checked: list[object] = []

    async def check_conflict(self, uuids: object) -> None:
        self.checked.append(uuids)


class Client:
    """Of an API server that has one claim."""

    async def get(self, _path: str) -> Any:
        return allocated(result())


class Slow(ClaimPreparer):
    """Holds a claim once it is let on, and writes down what is done."""

    def __init__(self, folder: Path) -> None:
        place = ClaimPlace(NODE, folder, HookPlace("cgpu-hook", str(folder)), None, 6)
        nobody: Any = None
        gpus: Any = Open()
        super().__init__(place, nobody, gpus)
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), list[str]()

    async def _read_claim(self, claim: ClaimName) -> Any:
        return allocated(result(int(claim.name)), uid=claim.uid)

    async def _is_gone(self, _: object) -> bool:
        self.begun.set()
        await asyncio.sleep(300)
        return True

    def _list_claims(self) -> Any:
        return {"old": None}

    def _hold(self, *_: object) -> Any:
        self.begun.set()
        assert self.go_on.wait(30)
        self.done.append("held")
        return []

    def _give_back(self, _: str) -> None:
        self.done.append("given back")


@pytest.fixture(name="refreshes")
def _refreshes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Event]]:
    """Refreshes of the node's facts, each of which hangs until its event is set."""
    begun: list[threading.Event] = []

    def load(_state: str, _driver: str | None, *, refresh: bool, keep: bool) -> Node:
        assert keep
        if refresh:
            begun.append(threading.Event())
            begun[-1].wait(30)
        return Node("550.163.01", "/driver", {}, {}, tuple(GPUS), ())

    monkeypatch.setattr(node_facts, "load_node", load)
    yield begun
    for each in begun:
        each.set()


def test_dra_8_a_gpu_that_hangs_holds_up_no_claim_on_another(
    tmp_path: Path, refreshes: list[threading.Event]
) -> None:
    """Nor is the driver asked twice at once."""

    async def work() -> None:
        slow = Slow(tmp_path)
        slow.go_on.set()
        names = [AskedClaim(f"uid-{letter}", "ml", "1") for letter in "abc"]
        lost = [asyncio.create_task(slow.prepare(name)) for name in names]
        await asyncio.to_thread(wait_until, lambda: bool(refreshes), "the driver is asked")
        await slow.prepare(AskedClaim("uid-0", "ml", "0"))
        await slow.unprepare(AskedClaim("uid-0", "ml", "0"))
        assert slow.done == ["held", "given back"]
        assert not any(each.done() for each in lost)
        assert len(refreshes) == 1
        refreshes[0].set()
        await asyncio.gather(*lost)
        assert slow.done == ["held", "given back", *["held"] * 3]

    asyncio.run(work())


def test_dra_8_a_claim_waits_so_long_for_a_driver_and_no_longer(
    tmp_path: Path, refreshes: list[threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_facts, "PATIENCE", 0.1)

    async def work() -> None:
        slow, claim = Slow(tmp_path), AskedClaim("uid-1", "ml", "1")
        for _ in range(3):
            with pytest.raises(
                CgpuError, match=r"which GPUs the driver has: no answer within 0\.1"
            ):
                await slow.prepare(claim)
        assert len(refreshes) == 1
        refreshes[0].set()
        slow.go_on.set()
        await slow.prepare(claim)
        assert slow.done == ["held"]

    asyncio.run(work())


@pytest.mark.usefixtures("refreshes")
def test_a_call_that_is_cancelled_ends_before_the_next_begins(tmp_path: Path) -> None:
    """At a kubelet's deadline, say."""

    async def work() -> list[str]:
        slow, claim = Slow(tmp_path), AskedClaim("uid", "default", "0")
        call = asyncio.create_task(slow.prepare(claim))
        await asyncio.to_thread(slow.begun.wait, 30)
        call.cancel()
        after = asyncio.create_task(slow.unprepare(claim))
        await asyncio.sleep(0)
        slow.go_on.set()
        await after
        return slow.done

    assert asyncio.run(work()) == ["held", "given back"]


@pytest.mark.usefixtures("refreshes")
def test_claims_are_prepared_while_the_api_server_does_not_say_which_are_gone(
    tmp_path: Path,
) -> None:
    async def work() -> list[str]:
        slow = Slow(tmp_path)
        recovery = asyncio.create_task(slow.recover())
        await asyncio.to_thread(slow.begun.wait, 30)
        slow.go_on.set()
        await asyncio.wait_for(slow.prepare(AskedClaim("uid", "default", "0")), 30)
        recovery.cancel()
        return slow.done

    assert asyncio.run(work()) == ["held"]


@pytest.mark.usefixtures("refreshes")
def test_dra_4_a_driver_ends_when_what_it_began_is_done(tmp_path: Path) -> None:
    """Else a claim could be held of a node that the driver has left as it was."""

    async def work() -> None:
        slow, claim = Slow(tmp_path), AskedClaim("uid", "default", "0")
        call = asyncio.create_task(slow.prepare(claim))
        await asyncio.to_thread(slow.begun.wait, 30)
        call.cancel()
        end = asyncio.create_task(slow.finish())
        await asyncio.wait([end], timeout=0.1)
        assert not end.done()
        slow.go_on.set()
        await end
        assert slow.done == ["held"]

    asyncio.run(work())


@pytest.mark.usefixtures("refreshes")
def test_dra_5_the_file_that_an_ending_driver_removed_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for files of nobody between the writing of this one and its record."""
    state, folder = tmp_path / "state", tmp_path / "cdi"
    place = ClaimPlace(NODE, folder, HookPlace("cgpu-hook", str(state)), None, 6)
    client: Any = Client()
    gpus: Any = Open()
    admit = Registry.admit

    def admit_late(self: Registry, *values: Any, **more: Any) -> Any:
        (folder / file_name(UID)).unlink()
        return admit(self, *values, **more)

    monkeypatch.setattr(Registry, "admit", admit_late)
    preparer = ClaimPreparer(place, client, gpus)
    asyncio.run(preparer.prepare(AskedClaim(UID, "ml", "train")))
    assert gpus.checked == [UUIDS[:1]], "whose they are is asked of the claim's own GPUs"
    assert [each.name for each in folder.iterdir()] == [file_name(UID)]
    assert [each.id for each in Registry(str(state)).list_records()] == [UID]
