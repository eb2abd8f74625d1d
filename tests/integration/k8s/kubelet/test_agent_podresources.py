"""The questions of the agent and of the driver of claims to a kubelet. K8S-8, DRA-5."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from grpclib.client import Channel

from cgpu_k8s.kubelet.pod_resources import PodResources
from cgpu_node import exclusive
from lab.kubernetes.device_plugins import allocatable, fake_kubelet, pod_resources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.integration


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it is not so within 30 s")


def test_one_channel_asks_each_kubelet_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels, failures = [], []

    def made(**options: Any) -> Channel:
        channels.append(options)
        return Channel(**options)

    monkeypatch.setattr("cgpu_k8s.kubelet.pod_resources.Channel", made)
    monkeypatch.setattr(exclusive, "PERIOD", 0.05)

    def pods() -> list[str]:
        return [each.pod for each in exclusive.read(str(tmp_path))]

    def says(pod: str) -> bytes:
        return pod_resources(("ml", pod, "main", "nvidia.com/gpu", ("GPU-a",)))

    async def ask() -> None:
        with fake_kubelet(tmp_path / "plugins") as kubelet:
            socket = kubelet.folder / "kubelet.sock"
            asking = PodResources(socket, lambda _, fields: failures.append(fields), str(tmp_path))
            task = asyncio.create_task(asking.run())
            for pod in ("one", "two"):
                kubelet.resources = says(pod)
                await until(lambda pod=pod: pods() == [pod])  # type: ignore[misc]
            kubelet.stop()
            await until(lambda: len(failures) == 1)
            kubelet.resources = says("three")
            kubelet.start()
            await until(lambda: pods() == ["three"])
            task.cancel()

    asyncio.run(ask())
    assert len(channels) == 1


def test_dra_5_gpus_are_anothers_while_it_offers_them_or_its_pods_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And until the kubelet has answered once, it is not known whose they are."""
    monkeypatch.setattr(exclusive, "PERIOD", 0.05)

    async def ask() -> None:
        with fake_kubelet(tmp_path / "plugins") as kubelet:
            asking = PodResources(kubelet.folder / "kubelet.sock", lambda *_: None, None)

            async def says(words: str) -> None:
                await until(lambda: asking.find_conflict(["GPU-a"]).startswith(words))

            kubelet.resources = b"\x0a\x7f"
            task = asyncio.create_task(asking.run())
            assert "by other plugins is not known: the kub" in await asking.find_problem()
            kubelet.resources = pod_resources(("ml", "train", "main", "nvidia.com/v", ("GPU-a",)))
            kubelet.allocatable = allocatable(("nvidia.com/v", ("GPU-a", "GPU-b")))
            await says("GPU GPU-a is also offered as nvidia.com/v")
            assert await asking.find_problem() == ""
            kubelet.allocatable = b""
            await says("a pod has GPU GPU-a as nvidia.com/v: it is not offered until that pod ends")
            kubelet.stop()
            await asyncio.sleep(0.2)
            assert await asking.find_problem() == ""
            await says("a pod has GPU GPU-a")
            kubelet.resources = b""
            kubelet.start()
            await until(lambda: asking.find_conflict(["GPU-a"]) == "")
            task.cancel()

    asyncio.run(ask())


def test_dra_5_where_no_kubelet_is_nobody_has_a_gpu(tmp_path: Path) -> None:
    async def ask() -> str:
        asking = PodResources(tmp_path / "none.sock", lambda *_: None, None)
        task = asyncio.create_task(asking.run())
        problem = await asking.find_problem()
        task.cancel()
        return problem

    assert asyncio.run(ask()) == ""
