"""Which GPUs a node offers, and what is wrong with the others. DRA-8."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.dra import gpus as gpus_module
from cgpu_k8s.dra.gpus import GpuFacts
from cgpu_k8s.dra.inquiry import Inquiry
from cgpu_k8s.node.node_resources import DriverGpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cgpu_k8s.dra.slices import SliceGpu

pytestmark = pytest.mark.unit

ONE, TWO = (DriverGpu(f"GPU-{index}", index, "H100", 81559) for index in range(2))
LOST = "GPU is lost (error 15); nvidia-smi --gpu-reset -i 1, or reboot"
GONE = TWO._replace(name="", mib=0, lost=LOST)


class Stub:
    """A driver: the GPUs that it has, or the error that it gives."""

    def __init__(self) -> None:
        self.answer: Any = (ONE, TWO)
        self.closed = 0

    async def list_gpus(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed += 1


class Watched:
    """GPUs that are observed, and how often their attributes were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver, self.barrier, self.conflict, self.reads = Stub(), "", "", 0
        self.attributes: Callable[[], Iterable[str]] = lambda: ("GPU-0", "GPU-1")
        monkeypatch.setattr(gpus_module, "read_attributes", self._read)
        monkeypatch.setattr(gpus_module, "_PATIENCE", 0.2)
        driver: Any = self.driver
        self.facts = GpuFacts(driver, self._find_barrier, self._find_conflict, lambda: "/driver")

    def _read(self, _folder: str) -> dict[str, dict[str, str]]:
        self.reads += 1
        return {uuid: {"brand": "Nvidia"} for uuid in self.attributes()}

    async def _find_barrier(self) -> str:
        return self.barrier

    async def _find_conflict(self, uuids: Iterable[str]) -> str:
        return self.conflict if self.conflict.partition(" ")[0] in uuids else ""

    def look(self, answer: Any) -> dict[str, tuple[str, str]]:
        """What is wrong with each GPU, by its name: taint and sentence."""
        return described(asyncio.run(self.observe(answer)))

    async def observe(self, answer: Any) -> list[SliceGpu]:
        self.driver.answer = answer
        found = await self.facts.observe()
        assert found is not None
        return found


def described(found: Iterable[SliceGpu]) -> dict[str, tuple[str, str]]:
    return {f"gpu-{each.index}": (*each.problem,) if each.problem else ("", "") for each in found}


@pytest.fixture(name="watched")
def _watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


FINE = ("", "")
MISSING = ("GPU-is-lost-error-15", f"GPU 1 (GPU-1) does not answer: {LOST}")


def test_dra_8_a_gpu_that_is_lost_is_still_described(watched: Watched) -> None:
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}
    for uuid in ("GPU-1", ""):  # or the driver does not name it any more
        assert watched.look((ONE, GONE._replace(uuid=uuid))) == {"gpu-0": FINE, "gpu-1": MISSING}
    [_, gpu] = asyncio.run(watched.observe((ONE, GONE)))
    assert (gpu.name, gpu.mib, gpu.facts) == ("H100", 81559, {"brand": "Nvidia"})
    assert watched.facts.answering == {"GPU-0"}
    assert watched.driver.closed == 3  # only a new session sees it when it is back
    assert watched.reads == 1
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}
    assert watched.reads == 2  # by another driver, say


def test_dra_8_a_gpu_that_the_driver_lists_no_more_is_lost(watched: Watched) -> None:
    watched.look((ONE, TWO))
    found = watched.look((ONE,))
    assert found["gpu-1"][0] == "driver-does-not-list-it"
    # The other one has its number, by which devices are called.
    found = watched.look((TWO._replace(index=0),))
    assert found == {"gpu-0": FINE}
    [gpu] = asyncio.run(watched.observe((TWO._replace(index=0),)))
    assert (gpu.index, gpu.uuid) == (0, "GPU-1")
    watched.look((TWO._replace(index=0), ONE._replace(index=1)))
    found = asyncio.run(watched.observe((ONE, TWO)))  # with no look in between
    assert [(gpu.index, gpu.uuid) for gpu in found] == [(0, "GPU-0"), (1, "GPU-1")]


def test_dra_8_no_two_devices_have_one_name_after_a_renumbering(watched: Watched) -> None:
    """An API server refuses such a slice, and nothing would be published any more."""
    third = TWO._replace(index=2, uuid="GPU-2")
    watched.attributes = lambda: ("GPU-0", "GPU-1", "GPU-2")
    watched.look((ONE, TWO, third))
    found = watched.look((ONE, third._replace(index=1)))  # the second one fell off the bus
    assert found == {"gpu-0": FINE, "gpu-1": FINE}
    silent = asyncio.run(watched.observe(CgpuError("no answer within 4 s")))
    assert [(gpu.index, gpu.uuid) for gpu in silent] == [(0, "GPU-0"), (1, "GPU-2")]
    assert watched.driver.closed == 0
    watched.look((ONE, TWO, third))
    assert watched.look((ONE, TWO, third)) == {"gpu-0": FINE, "gpu-1": FINE, "gpu-2": FINE}


def test_dra_8_a_driver_that_hangs_takes_no_gpu_from_those_that_are_known(
    watched: Watched,
) -> None:
    """They have a taint, and claims that have them are prepared as before."""
    silence = CgpuError("the driver does not say which GPUs there are: no answer within 4 s")
    with pytest.raises(CgpuError, match="no answer within 4 s"):
        watched.look(silence)
    watched.look((ONE, TWO))
    problem = ("driver-does-not-answer", str(silence))
    assert watched.look(silence) == {"gpu-0": problem, "gpu-1": problem}
    assert watched.facts.answering == {"GPU-0", "GPU-1"}
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}


def test_dra_8_a_gpu_that_is_gone_at_the_start_is_offered_when_it_is_back(
    watched: Watched,
) -> None:
    found = watched.look((ONE, GONE))
    assert found == {"gpu-0": FINE, "gpu-1": ("", MISSING[1])}  # too little is known of it
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}


def test_dra_8_a_gpu_in_mig_mode_is_not_offered(watched: Watched) -> None:
    watched.look((ONE, TWO))
    found = watched.look((ONE, TWO._replace(in_mig_mode=True)))
    taint, sentence = found["gpu-1"]
    assert (found["gpu-0"], taint) == (FINE, "")
    assert sentence.startswith("GPU 1 (GPU-1) is in MIG mode, and cgpu shares whole GPUs")
    assert watched.facts.answering == {"GPU-0"}
    assert watched.driver.closed == 0  # it answers
    silence = CgpuError("no answer within 4 s")
    assert [*watched.look(silence)] == ["gpu-0"]
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}


def test_where_something_keeps_gpus_from_containers_there_are_none(watched: Watched) -> None:
    watched.look((ONE, TWO))
    watched.barrier = "containerd gives containers no CDI devices"
    with pytest.raises(CgpuError, match="no CDI devices"):
        watched.look((ONE, TWO))


def test_attributes_that_do_not_come_hold_up_no_gpu_that_is_known(watched: Watched) -> None:
    watched.look((ONE,))
    gate = threading.Event()

    def hang() -> list[str]:
        gate.wait(30)
        return ["GPU-0", "GPU-1"]

    watched.attributes = hang

    async def work() -> None:
        for _ in range(3):
            found = described(await watched.observe((ONE, TWO)))
            assert found["gpu-0"] == FINE
            assert "what kind of GPUs the node has: no answer within 0.2 s" in found["gpu-1"][1]
        assert watched.reads == 2  # and no third thread
        gate.set()
        found = described(await watched.observe((ONE, TWO)))
        assert found == {"gpu-0": FINE, "gpu-1": FINE}

    asyncio.run(work())


def test_attributes_that_cannot_be_read_hold_up_no_gpu_that_is_known(watched: Watched) -> None:
    def fail() -> list[str]:
        raise CgpuError("it died by signal 11")

    watched.look((ONE,))
    watched.attributes = fail
    found = watched.look((ONE, TWO))
    assert found["gpu-0"] == FINE
    assert found["gpu-1"] == ("", "GPU 1 (GPU-1) does not answer: it died by signal 11")


def test_a_question_is_asked_once_at_a_time_and_its_error_is_for_all_who_wait() -> None:
    gate, threads = threading.Event(), list[int]()

    def ask() -> int:
        threads.append(threading.get_ident())
        gate.wait(30)
        if len(threads) == 1:
            raise CgpuError("it died")
        return len(threads)

    async def work() -> None:
        slow = Inquiry(ask, 30.0, "how many")
        waiting = [asyncio.ensure_future(slow.ask()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting.pop().cancel()  # which takes the answer from nobody else
        gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(each) for each in found] == ["it died"] * 4
        assert await slow.ask() == 2

    asyncio.run(work())


def test_dra_5_while_somebody_else_offers_them_none_is_offered(watched: Watched) -> None:
    watched.conflict = "GPU-0 is also offered"
    with pytest.raises(CgpuError, match="also offered"):
        watched.look((ONE, TWO))
    with pytest.raises(CgpuError, match="also offered"):
        asyncio.run(watched.facts.check_conflict(["GPU-0"]))
    asyncio.run(watched.facts.check_conflict(["GPU-1"]))
    watched.conflict = ""
    assert watched.look((ONE, TWO)) == {"gpu-0": FINE, "gpu-1": FINE}
