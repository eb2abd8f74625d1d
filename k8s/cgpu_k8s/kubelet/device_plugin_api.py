"""Messages of the kubelet's device plugin API, ``v1beta1``, with its documented field numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.kubelet.protobuf import encode_message

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
REGISTER = "/v1beta1.Registration/Register"
PLUGIN = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
ALLOCATED = b"\x0a\x00"  # an AllocateResponse that gives its one container nothing
# Field numbers of RegisterRequest, of ListAndWatchResponse, and of the Devices in it.
_VERSION, _ENDPOINT, _RESOURCE = 1, 2, 3
_DEVICES = 1
_ID, _HEALTH = 1, 2


def encode_registration(endpoint: str, resource: str) -> bytes:
    """Return a RegisterRequest; ``endpoint`` is the name of the plugin's socket in the folder."""
    fields = ((_VERSION, VERSION), (_ENDPOINT, endpoint), (_RESOURCE, resource))
    return encode_message((number, text.encode()) for number, text in fields)


def encode_devices(healthy: Mapping[str, bool]) -> bytes:
    """Return a ListAndWatchResponse with all devices: whether each is healthy, by ID."""
    return encode_message(
        (
            _DEVICES,
            encode_message([(_ID, name.encode()), (_HEALTH, _format_health(good).encode())]),
        )
        for name, good in sorted(healthy.items())
    )


def _format_health(is_healthy: bool) -> str:  # noqa: FBT001 (the value to format)
    return HEALTHY if is_healthy else UNHEALTHY
