"""Which containers have whole GPUs, as the kubelet's API for pod resources lists it.

The messages are in protobuf's encoding, with the numbers that Kubernetes documents (``v1``). What
the agent finds out is left on the node, for the metrics of ``cgpud``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpclib.client import Channel

from cgpu_env.errors import CgpuError, shown
from cgpu_k8s.agent.wire import EMPTY, Bytes, ask, text, values
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIST = "/v1.PodResourcesLister/List"
VENDOR = "nvidia.com/"  # of the resources that are GPUs
# Fields of ListPodResourcesResponse, PodResources, ContainerResources and ContainerDevices.
_PODS = 1
_POD_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _DEVICES = 1, 2
_RESOURCE, _IDS = 1, 2


class PodResources:
    """Asks the kubelet at ``socket``, and leaves what it says in the state directory ``state``."""

    def __init__(
        self, socket: Path, state: str, report: Callable[[str, dict[str, object]], None]
    ) -> None:
        self._socket, self._state, self._report = socket, state, report
        self._failure = ""

    async def run(self) -> None:
        """Go on asking until cancelled."""
        # One for good: it finds a kubelet that is back.
        async with Channel(path=str(self._socket), codec=Bytes()) as channel:
            while True:
                try:
                    exclusive.write(self._state, read_exclusive(await self._answer(channel)))
                    self._failure = ""
                except (CgpuError, OSError) as error:
                    self._fail(str(error))
                await asyncio.sleep(exclusive.PERIOD)

    async def _answer(self, channel: Channel) -> bytes:
        if not self._socket.exists():
            raise CgpuError(f"no kubelet listens at {self._socket}")
        return await ask(channel, LIST, EMPTY)

    def _fail(self, why: str) -> None:
        if why != self._failure:
            self._failure = why
            sentence = f"which pods have whole GPUs is not known, and not in the metrics: {why}"
            self._report("failed", {"error": sentence})


def read_exclusive(answer: bytes) -> tuple[Exclusive, ...]:
    """The containers with NVIDIA's devices in a ListPodResourcesResponse.

    Raises:
        CgpuError: it is none.
    """
    try:
        return tuple(found for pod in values(answer, _PODS) for found in _of_pod(pod))
    except (ValueError, IndexError) as error:
        raise CgpuError(f"the kubelet's answer is not readable: {shown(str(error))}") from None


def _of_pod(pod: bytes) -> Iterator[Exclusive]:
    for container in values(pod, _CONTAINERS):
        ids = {
            id_.decode()
            for devices in values(container, _DEVICES)
            if text(devices, _RESOURCE).startswith(VENDOR)
            for id_ in values(devices, _IDS)
        }
        if ids:
            names = text(pod, _NAMESPACE), text(pod, _POD_NAME)
            yield Exclusive(*names, text(container, _CONTAINER_NAME), tuple(sorted(ids)))
