"""Asks the kubelet which containers have whole GPUs, and which other plugins offer the GPUs.

It uses the PodResources API (``v1``) with the field numbers that Kubernetes documents.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from grpclib.client import Channel

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.kubelet.protobuf import EMPTY, decode_text, decode_values
from cgpu_k8s.kubelet.rpc import BytesCodec, call_method
from cgpu_k8s.names import COUNT
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

T = TypeVar("T")
LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"  # from Kubernetes 1.23 on
VENDOR = "nvidia.com/"  # the prefix of resources that are whole GPUs
# Field numbers of ListPodResourcesResponse, AllocatableResourcesResponse, PodResources,
# ContainerResources and ContainerDevices.
_PODS = _OFFERED = 1
_POD_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _DEVICES = 1, 2
_RESOURCE, _IDS = 1, 2


class PodResources:
    """Asks the kubelet at ``socket``.

    Args:
        socket: the kubelet's.
        report: writes a line of the log.
        state: the state directory, where the containers with whole GPUs are written for the
            metrics of ``cgpud``; None: they are not asked for.

    Attributes:
        has_asked: is set when the kubelet was asked once, whether or not it answered.
    """

    def __init__(
        self, socket: Path, report: Callable[[str, dict[str, object]], None], state: str | None
    ) -> None:
        self._socket, self._report, self._state = socket, report, state
        self.has_asked = asyncio.Event()
        self._failure = ""
        self._offered: dict[str, list[str]] = {}

    def find_conflict(self, uuids: Collection[str]) -> str:
        """Return a sentence about another plugin that offers one of these GPUs, or ""."""
        for resource, ids in sorted(self._offered.items()):
            uuid = next((each for each in uuids if any(each in one for one in ids)), "")
            if uuid and resource != COUNT:
                return f"GPU {uuid} is also offered as {resource}: stop the plugin that does it"
        return ""

    async def run(self) -> None:
        """Ask every ``exclusive.PERIOD`` seconds until cancelled."""
        # One channel is enough: it reconnects to a kubelet that is back.
        async with Channel(path=str(self._socket), codec=BytesCodec()) as channel:
            while True:
                if self._state is not None:
                    await self._keep_exclusive(channel, self._state)
                with suppress(CgpuError, OSError):  # an older kubelet lacks the method
                    self._offered = read_offered(await self._call_kubelet(channel, ALLOCATABLE))
                self.has_asked.set()
                await asyncio.sleep(exclusive.PERIOD)

    async def _keep_exclusive(self, channel: Channel, state: str) -> None:
        try:
            exclusive.write(state, read_exclusive(await self._call_kubelet(channel, LIST)))
            self._failure = ""
        except (CgpuError, OSError) as error:
            self._report_failure(str(error))

    async def _call_kubelet(self, channel: Channel, question: str) -> bytes:
        if not self._socket.exists():
            raise CgpuError(f"no kubelet listens at {self._socket}")
        return await call_method(channel, question, EMPTY)

    def _report_failure(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            sentence = f"which pods have whole GPUs is not known, and not in the metrics: {reason}"
            self._report("failed", {"error": sentence})


def read_exclusive(answer: bytes) -> tuple[Exclusive, ...]:
    """Return the containers with NVIDIA's devices in a ListPodResourcesResponse.

    Raises:
        CgpuError: ``answer`` is not readable.
    """
    return _parse_answer(
        lambda: tuple(
            found for pod in decode_values(answer, _PODS) for found in _read_containers(pod)
        )
    )


def read_offered(answer: bytes) -> dict[str, list[str]]:
    """Return the IDs of all devices in an AllocatableResourcesResponse, by resource.

    Raises:
        CgpuError: ``answer`` is not readable.
    """

    def read_devices() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for devices in decode_values(answer, _OFFERED):  # a resource has an entry per NUMA node
            ids = found.setdefault(decode_text(devices, _RESOURCE), [])
            ids += [each.decode() for each in decode_values(devices, _IDS)]
        return found

    return _parse_answer(read_devices)


def _parse_answer(read: Callable[[], T]) -> T:
    try:
        return read()
    except (ValueError, IndexError) as error:
        raise CgpuError(f"the kubelet's answer is not readable: {printable(str(error))}") from None


def _read_containers(pod: bytes) -> Iterator[Exclusive]:
    for container in decode_values(pod, _CONTAINERS):
        ids = {
            id_.decode()
            for devices in decode_values(container, _DEVICES)
            if decode_text(devices, _RESOURCE).startswith(VENDOR)
            for id_ in decode_values(devices, _IDS)
        }
        if ids:
            names = decode_text(pod, _NAMESPACE), decode_text(pod, _POD_NAME)
            yield Exclusive(*names, decode_text(container, _CONTAINER_NAME), tuple(sorted(ids)))
