"""Asks the kubelet which containers have whole GPUs, and which other plugins offer the GPUs.

It uses the PodResources API (``v1``) with the field numbers that Kubernetes documents.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from grpclib.client import Channel

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.kubelet.protobuf import EMPTY, decode_text, decode_values
from cgpu_k8s.kubelet.rpc import BytesCodec, call_method
from cgpu_k8s.names import COUNT, NVIDIA_DRIVER, OTHERS_GPU
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")
LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"  # from Kubernetes 1.23 on
VENDOR = "nvidia.com/"  # the prefix of resources that are whole GPUs
# Field numbers of ListPodResourcesResponse, AllocatableResourcesResponse, PodResources,
# ContainerResources and ContainerDevices.
_PODS = _OFFERED = 1
_POD_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _DEVICES, _DYNAMIC = 1, 2, 5
_RESOURCE, _IDS = 1, 2
# Of DynamicResource and ClaimResource.
_CLAIMED, _DRIVER, _DEVICE = 4, 2, 4
_MIG = "-mig-"  # in NVIDIA's names of devices


class PodResources:
    """Asks the kubelet at ``socket``.

    Args:
        socket: the kubelet's.
        report: writes a line of the log.
        state: the state directory, where the containers with whole GPUs are written for the
            metrics of ``cgpud``; None: they are not written.
    """

    def __init__(
        self, socket: Path, report: Callable[[str, dict[str, object]], None], state: str | None
    ) -> None:
        self._socket, self._report, self._state = socket, report, state
        self._failure = ""
        # IDs of devices by resource, at the last two looks: a kubelet that has just started may not
        # know yet what pods have, and what plugins offer.
        self._offered: deque[dict[str, list[str]]] = deque(maxlen=2)
        self._given: deque[dict[str, list[str]]] = deque(maxlen=2)
        self._has_asked, self._unknown = asyncio.Event(), "it was never asked"

    async def find_problem(self) -> str:
        """Return why it is not known which GPUs pods have; "": it is, or no kubelet runs."""
        await self._has_asked.wait()
        return self._unknown

    def find_conflict(self, uuids: Collection[str]) -> str:
        """Return a sentence about one of these GPUs that others offer, or have given, or ""."""
        for resource, ids in _list_items(self._offered):
            uuid = _find_uuid(uuids, ids)
            if uuid and resource != COUNT:
                return f"GPU {uuid} is also offered as {resource}: stop the plugin that does it"
            if resource.startswith(OTHERS_GPU) and any(map(_is_opaque, ids)):
                return f"GPUs of this node are also offered as {resource}: stop that plugin"
        # A plugin offers no device that is unhealthy, nor any while it restarts; its pods go on.
        for resource, ids in _list_items(self._given):
            uuid = _find_uuid(uuids, ids)
            if uuid and resource != COUNT:
                return f"a pod has GPU {uuid} as {resource}: it is not offered until that pod ends"
            if resource.startswith((OTHERS_GPU, NVIDIA_DRIVER)) and any(map(_is_opaque, ids)):
                return f"a pod has a GPU as {resource}: none is offered until that pod ends"
        return ""

    async def run(self) -> None:
        """Ask every ``exclusive.PERIOD`` seconds until cancelled."""
        # One channel is enough: it reconnects to a kubelet that is back.
        async with Channel(path=str(self._socket), codec=BytesCodec()) as channel:
            while True:
                problems = await self._learn_given(channel), await self._learn_offered(channel)
                problem = next(filter(None, problems), "")
                if not problem or not self._socket.exists():
                    self._unknown = ""
                elif self._unknown:
                    self._unknown = f"which GPUs pods have by other plugins is not known: {problem}"
                self._has_asked.set()
                await asyncio.sleep(exclusive.PERIOD)

    async def _learn_given(self, channel: Channel) -> str:
        """Return what prevented it; "": nothing did."""
        try:
            answer = await self._call_kubelet(channel, LIST)
            self._given.append(read_given(answer))
            if self._state is not None:
                exclusive.write(self._state, read_exclusive(answer))
            self._failure = ""
        except (CgpuError, OSError) as error:
            self._report_failure(str(error))
            return str(error)
        return ""

    async def _learn_offered(self, channel: Channel) -> str:
        """Return what prevented it, as in an older kubelet, which lacks the method."""
        try:
            self._offered.append(read_offered(await self._call_kubelet(channel, ALLOCATABLE)))
        except (CgpuError, OSError) as error:
            return str(error)
        return ""

    async def _call_kubelet(self, channel: Channel, question: str) -> bytes:
        if not self._socket.exists():
            raise CgpuError(f"no kubelet listens at {self._socket}")
        return await call_method(channel, question, EMPTY)

    def _report_failure(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            what = "which pods have whole GPUs is not known"
            what += ", and not in the metrics" if self._state is not None else ""
            self._report("failed", {"error": f"{what}: {reason}"})


def _list_items(looks: Iterable[dict[str, list[str]]]) -> list[tuple[str, list[str]]]:
    return [item for each in looks for item in sorted(each.items())]


def _find_uuid(uuids: Collection[str], ids: Collection[str]) -> str:
    """Return the UUID that one of the devices' IDs has in it; "": none has."""
    return next((each for each in uuids if any(each in one for one in ids)), "")


def _is_opaque(device: str) -> bool:
    """Return whether a device's ID does not say which GPU it is: an index, say."""
    return not any(mark in device for mark in ("GPU-", "MIG-"))


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


def read_given(answer: bytes) -> dict[str, list[str]]:
    """Return the IDs of the devices that pods have, by resource, in a ListPodResourcesResponse.

    What NVIDIA's DRA driver has given is in it too, by the driver's name, but for MIG instances.

    Raises:
        CgpuError: ``answer`` is not readable.
    """

    def read_devices() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pod in decode_values(answer, _PODS):
            for container in decode_values(pod, _CONTAINERS):
                _add_devices(found, decode_values(container, _DEVICES))
                names = [each for each in _list_claimed(container) if _MIG not in each]
                if names:
                    found.setdefault(NVIDIA_DRIVER, []).extend(names)
        return found

    return _parse_answer(read_devices)


def read_offered(answer: bytes) -> dict[str, list[str]]:
    """Return the IDs of all devices in an AllocatableResourcesResponse, by resource.

    Raises:
        CgpuError: ``answer`` is not readable.
    """

    def read_devices() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        _add_devices(found, decode_values(answer, _OFFERED))
        return found

    return _parse_answer(read_devices)


def _list_claimed(container: bytes) -> Iterator[str]:
    """Yield the names of the devices that NVIDIA's DRA driver has given a container."""
    for resource in decode_values(container, _DYNAMIC):
        for claimed in decode_values(resource, _CLAIMED):
            if decode_text(claimed, _DRIVER) == NVIDIA_DRIVER:
                yield decode_text(claimed, _DEVICE)


def _add_devices(found: dict[str, list[str]], listed: list[bytes]) -> None:
    for devices in listed:  # a resource has an entry per NUMA node
        ids = found.setdefault(decode_text(devices, _RESOURCE), [])
        ids += [each.decode() for each in decode_values(devices, _IDS)]


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
