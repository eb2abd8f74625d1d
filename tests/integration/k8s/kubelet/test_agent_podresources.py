"""The agent's questions to a kubelet about pods' devices use one channel. K8S-8."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from grpclib.client import Channel

from cgpu_k8s.kubelet.pod_resources import PodResources
from cgpu_node import exclusive
from lab.kubernetes.device_plugins import fake_kubelet, pod_resources

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
