"""How the agent asks a driver that hangs. K8S-12."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.node import driver
from cgpu_k8s.node.driver import Driver
from cgpu_k8s.objects.links import GpuLink

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(name="probes")
def _probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that hang, and do not die as long as their ``kill`` does nothing."""
    started: list[subprocess.Popen[bytes]] = []

    def start_probe(_what: str, _folder: str, stdin: int) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe)
        monkeypatch.setattr(child, "kill", lambda: None)
        started.append(child)
        return child

    monkeypatch.setattr(driver, "start_probe", start_probe)
    monkeypatch.setattr(driver, "_PATIENCE", 0.1)
    monkeypatch.setattr(driver, "_FIRST_PATIENCE", 0.5)
    yield started
    for each in started:
        each.terminate()
        each.wait(30)


async def answer(asked: Driver) -> int:
    """Ask until there is an error; how often the driver was still to begin."""
    looks = 0
    while await asked.list_gpus() is None:
        looks += 1
    return looks


def test_k8s_12_a_look_does_not_wait_for_a_driver_that_begins(
    probes: list[subprocess.Popen[bytes]],
) -> None:
    """The agent's loop goes on, and no second process asks meanwhile."""

    async def ask() -> None:
        asked = Driver(lambda: "/driver")
        try:
            assert await asked.list_gpus() is None
            assert await asked.list_gpus() is None
            assert len(probes) == 1
            with pytest.raises(CgpuError, match=r"no answer within 0\.5 s"):
                await answer(asked)
            probes[0].terminate()
            assert await asked.list_gpus() is None  # and so after a hang
            asked.close()
        finally:
            for each in probes:
                each.terminate()  # the threads that read from them end, too

    asyncio.run(ask())
    assert len(probes) == 2


def test_a_process_that_is_stuck_in_the_driver_is_joined_by_no_other(
    probes: list[subprocess.Popen[bytes]],
) -> None:
    async def ask() -> list[str]:
        asked, sentences = Driver(lambda: "/driver"), []
        for number in range(4):
            if number == 3:
                probes[0].terminate()
            with pytest.raises(CgpuError) as failure:
                await answer(asked)
            sentences.append(str(failure.value))
        asked.close()
        for each in probes:
            each.terminate()  # the threads that read from them end, too
        return sentences

    sentences = asyncio.run(ask())
    stuck = f"process {probes[0].pid}, which asked it, does not even die"
    assert [stuck in each for each in sentences] == [False, True, True, False]
    assert len(probes) == 2


def test_a_driver_that_the_node_refuses_is_not_offered_and_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K8S-12: pods on it would be refused; nobody may use a driver while it is replaced."""
    old = json.dumps({"driver_version": "410.48", "gpus": [], "lost": []})
    started: list[subprocess.Popen[bytes]] = []

    def start_probe(_what: str, _folder: str, stdin: int) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", f"input(); print('{old}', flush=True); input()"]
        started.append(subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe))
        return started[-1]

    monkeypatch.setattr(driver, "start_probe", start_probe)
    sentence = r"driver 410\.48 in /driver: expected 418 \(CUDA 10\.1\) or later"

    async def ask() -> None:
        asked = Driver(lambda: "/driver")
        try:
            with pytest.raises(CgpuError, match=sentence):
                await answer(asked)
            assert [each.wait(30) for each in started] == [-signal.SIGKILL]
        finally:
            asked.close()

    asyncio.run(ask())


def test_a_gpu_has_the_links_to_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        {"uuid": f"GPU-{index}", "index": index, "name": "V100", "memory_bytes": 16 << 30}
        for index in range(3)
    ]
    links = [[0, 1, 10, 4], [0, 2, None, 0], [1, 2, 50, 0]]
    facts = {"driver_version": "550.163.01", "gpus": gpus, "lost": [], "links": links}

    def start_probe(_what: str, _folder: str, stdin: int) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", f"input(); print({json.dumps(facts)!r}, flush=True)"]
        return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe)

    monkeypatch.setattr(driver, "start_probe", start_probe)

    async def ask() -> list[dict[int, GpuLink]]:
        asked = Driver(lambda: "/driver")
        found = None
        while found is None:
            found = await asked.list_gpus()
        asked.close()
        return [dict(gpu.links) for gpu in found]

    first, second, third = asyncio.run(ask())
    assert first == {1: GpuLink("s", 4), 2: GpuLink("-")}
    assert (second, third) == ({2: GpuLink("y")}, {})
