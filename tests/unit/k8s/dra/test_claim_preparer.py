"""Claims are prepared one after the other, whatever a kubelet does meanwhile. DRA-5."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.dra.cdi import HookPlace
from cgpu_k8s.dra.prepare import ClaimPlace, ClaimPreparer
from cgpu_k8s.kubelet.dra_plugin_api import AskedClaim

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


class Open:
    """GPUs of a node that gives them to claims."""

    async def check_barrier(self) -> None:
        """Raise nothing."""


class Slow(ClaimPreparer):
    """Holds a claim once it is let on, and writes down what is done."""

    def __init__(self, folder: Path) -> None:
        place = ClaimPlace("gpu-a", folder, HookPlace("cgpu-hook", str(folder)), None, 6)
        nobody: Any = None
        gpus: Any = Open()
        super().__init__(place, nobody, gpus)
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), list[str]()

    async def _read_claim(self, _: object) -> Any:
        return {}

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


def test_a_call_that_is_cancelled_ends_before_the_next_begins(tmp_path: Path) -> None:
    """At a kubelet's deadline, say."""

    async def work() -> list[str]:
        slow, claim = Slow(tmp_path), AskedClaim("uid", "default", "train")
        call = asyncio.create_task(slow.prepare(claim))
        await asyncio.to_thread(slow.begun.wait, 30)
        call.cancel()
        after = asyncio.create_task(slow.unprepare(claim))
        await asyncio.sleep(0)
        slow.go_on.set()
        await after
        return slow.done

    assert asyncio.run(work()) == ["held", "given back"]


def test_claims_are_prepared_while_the_api_server_does_not_say_which_are_gone(
    tmp_path: Path,
) -> None:
    async def work() -> list[str]:
        slow = Slow(tmp_path)
        recovery = asyncio.create_task(slow.recover())
        await asyncio.to_thread(slow.begun.wait, 30)
        slow.go_on.set()
        await asyncio.wait_for(slow.prepare(AskedClaim("uid", "default", "train")), 30)
        recovery.cancel()
        return slow.done

    assert asyncio.run(work()) == ["held"]
