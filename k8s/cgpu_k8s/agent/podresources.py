"""The kubelet's API for pod resources: containers with whole GPUs, and other plugins with GPUs.

The messages are in protobuf's encoding, with the numbers that Kubernetes documents (``v1``). Which
containers have whole GPUs is left on the node, for the metrics of ``cgpud``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from grpclib.client import Channel

from cgpu_env.errors import CgpuError, shown
from cgpu_k8s.agent.wire import EMPTY, Bytes, ask, text, values
from cgpu_k8s.names import COUNT
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

T = TypeVar("T")
LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"  # from Kubernetes 1.23 on
VENDOR = "nvidia.com/"  # of the resources that are GPUs
# Fields of ListPodResourcesResponse, PodResources, ContainerResources and ContainerDevices, and of
# AllocatableResourcesResponse.
_PODS = _OFFERED = 1
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
        self._offered: dict[str, list[str]] = {}

    def problem(self, uuids: Collection[str]) -> str:
        """Return which other plugin offers one of these GPUs; "" if the kubelet lists none."""
        for resource, ids in sorted(self._offered.items()):
            uuid = next((each for each in uuids if any(each in one for one in ids)), "")
            if uuid and resource != COUNT:
                return f"GPU {uuid} is also offered as {resource}: stop the plugin that does it"
        return ""

    async def run(self) -> None:
        """Go on asking until cancelled."""
        # One for good: it finds a kubelet that is back.
        async with Channel(path=str(self._socket), codec=Bytes()) as channel:
            while True:
                try:
                    exclusive.write(self._state, read_exclusive(await self._answer(channel, LIST)))
                    self._failure = ""
                except (CgpuError, OSError) as error:
                    self._fail(str(error))
                with suppress(CgpuError, OSError):  # an older kubelet does not know the question
                    self._offered = read_offered(await self._answer(channel, ALLOCATABLE))
                await asyncio.sleep(exclusive.PERIOD)

    async def _answer(self, channel: Channel, question: str) -> bytes:
        if not self._socket.exists():
            raise CgpuError(f"no kubelet listens at {self._socket}")
        return await ask(channel, question, EMPTY)

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
    return _readable(
        lambda: tuple(found for pod in values(answer, _PODS) for found in _of_pod(pod))
    )


def read_offered(answer: bytes) -> dict[str, list[str]]:
    """The IDs of all devices that pods may get, by resource, in an AllocatableResourcesResponse.

    Raises:
        CgpuError: it is none.
    """

    def read() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for devices in values(answer, _OFFERED):  # those of each NUMA node apart
            ids = found.setdefault(text(devices, _RESOURCE), [])
            ids += [each.decode() for each in values(devices, _IDS)]
        return found

    return _readable(read)


def _readable(read: Callable[[], T]) -> T:
    try:
        return read()
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
