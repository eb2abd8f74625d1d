"""What the agent sends to a kubelet: its interface for device plugins, ``v1beta1``.

Messages are in protobuf's encoding, and all that is sent consists of texts and of messages of
texts. Nothing is read: no kubelet asks for the devices. The numbers are those that Kubernetes
documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
REGISTER = "/v1beta1.Registration/Register"
PLUGIN = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
EMPTY = b""
# Fields of RegisterRequest, of ListAndWatchResponse, and of the Devices in it.
_VERSION, _ENDPOINT, _RESOURCE = 1, 2, 3
_DEVICES = 1
_ID, _HEALTH = 1, 2
_LENGTH_DELIMITED = 2


def register(endpoint: str, resource: str) -> bytes:
    """A RegisterRequest: ``endpoint`` is the plugin's socket, in the kubelet's folder."""
    fields = ((_VERSION, VERSION), (_ENDPOINT, endpoint), (_RESOURCE, resource))
    return _message((number, text.encode()) for number, text in fields)


def devices(healthy: Mapping[str, bool]) -> bytes:
    """A ListAndWatchResponse: all devices by ID, and whether each is healthy."""
    return _message(
        (_DEVICES, _message([(_ID, name.encode()), (_HEALTH, _health(good).encode())]))
        for name, good in sorted(healthy.items())
    )


def _health(good: bool) -> str:  # noqa: FBT001 (it is what is written)
    return HEALTHY if good else UNHEALTHY


def _message(fields: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(
        _number(number << 3 | _LENGTH_DELIMITED) + _number(len(value)) + value
        for number, value in fields
    )


def _number(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _number(rest) if rest else bytes([low])
