"""Which containers have whole GPUs, as the kubelet's API for pod resources lists it.

The messages are in protobuf's encoding, with the numbers that Kubernetes documents (``v1``). What
the agent finds out is left on the node, for the metrics of ``cgpud``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from cgpu_env.errors import CgpuError, shown
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIST = "/v1.PodResourcesLister/List"
VENDOR = "nvidia.com/"  # of the resources that are GPUs
_PATIENCE = 5.0
_LARGEST = 16 << 20  # bytes of an answer
# Fields of ListPodResourcesResponse, PodResources, ContainerResources and ContainerDevices.
_PODS = 1
_POD_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _DEVICES = 1, 2
_RESOURCE, _IDS = 1, 2
_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class PodResources:
    """Asks the kubelet at ``socket``, and leaves what it says in the state directory ``state``."""

    def __init__(
        self, socket: Path, state: str, report: Callable[[str, dict[str, object]], None]
    ) -> None:
        self._socket, self._state, self._report = socket, state, report
        self._failure = ""

    async def run(self) -> None:
        """Go on asking until cancelled."""
        while True:
            try:
                exclusive.write(self._state, read_exclusive(await self._ask()))
                self._failure = ""
            except (CgpuError, OSError) as error:
                self._fail(str(error))
            await asyncio.sleep(exclusive.PERIOD)

    async def _ask(self) -> bytes:
        if not self._socket.exists():
            raise CgpuError(f"no kubelet listens at {self._socket}")
        options = (("grpc.max_receive_message_length", _LARGEST),)
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options) as channel:
            try:
                answer: bytes = await channel.unary_unary(LIST)(b"", timeout=_PATIENCE)
            except grpc.aio.AioRpcError as error:
                raise CgpuError(shown(str(error.details()), 300)) from None
        return answer

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
        return tuple(found for pod in _all(answer, _PODS) for found in _of_pod(pod))
    except (ValueError, IndexError) as error:
        raise CgpuError(f"the kubelet's answer is not readable: {shown(str(error))}") from None


def _of_pod(pod: bytes) -> Iterator[Exclusive]:
    for container in _all(pod, _CONTAINERS):
        ids = {
            id_.decode()
            for devices in _all(container, _DEVICES)
            if _text(devices, _RESOURCE).startswith(VENDOR)
            for id_ in _all(devices, _IDS)
        }
        if ids:
            names = _text(pod, _NAMESPACE), _text(pod, _POD_NAME)
            yield Exclusive(*names, _text(container, _CONTAINER_NAME), tuple(sorted(ids)))


def _text(message: bytes, number: int) -> str:
    return b"".join(_all(message, number)[-1:]).decode()


def _all(message: bytes, number: int) -> list[bytes]:
    """The values of a field that has a length, in order."""
    return [value for key, value in _fields(message) if key == number]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that have a length; others are passed over."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _number(message, at)
            continue
        size, at = (_FIXED[kind], at) if kind in _FIXED else _number(message, at)
        if kind not in {*_FIXED, _LENGTH_DELIMITED} or at + size > len(message):
            raise ValueError(f"field {key >> 3} at byte {at}")
        if kind == _LENGTH_DELIMITED:
            yield key >> 3, message[at : at + size]
        at += size


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value, shift = 0, 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
