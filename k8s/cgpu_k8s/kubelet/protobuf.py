"""Messages in protobuf's encoding, as far as the agent needs it: texts, and messages of texts.

What is sent is the kubelet's interface for device plugins, ``v1beta1``, with the numbers that
Kubernetes documents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from cgpu_env.errors import CgpuError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpclib.client import Channel

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
REGISTER = "/v1beta1.Registration/Register"
PLUGIN = "v1beta1.DevicePlugin"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
EMPTY = b""
ALLOCATED = b"\x0a\x00"  # an AllocateResponse that gives its one container nothing
# Fields of RegisterRequest, of ListAndWatchResponse, and of the Devices in it.
_VERSION, _ENDPOINT, _RESOURCE = 1, 2, 3
_DEVICES = 1
_ID, _HEALTH = 1, 2
_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_PATIENCE = 5.0  # seconds for an answer
# How grpclib says that an answer is none; the last two: a message that is cut short, or compressed.
_BROKEN = (ProtocolError, StreamTerminatedError, AssertionError, NotImplementedError)


class Bytes(CodecBase):
    """Messages go over gRPC as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: object) -> bytes:
        """The message."""
        del message_type
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        """The message."""
        del message_type
        return data


async def call_method(channel: Channel, method: str, request: bytes) -> bytes:
    """Call a method and return the answer.

    Raises:
        CgpuError: it does not answer, or refuses.
    """
    kind = Cardinality.UNARY_UNARY
    try:
        async with channel.request(method, kind, bytes, bytes, timeout=_PATIENCE) as stream:
            await stream.send_message(request, end=True)
            return await stream.recv_message() or EMPTY
    except asyncio.TimeoutError:
        raise CgpuError(f"no answer within {_PATIENCE:g} s") from None
    except GRPCError as error:
        raise CgpuError(printable(error.message or error.status.name, 300)) from None
    except (*_BROKEN, OSError) as error:
        raise CgpuError(printable(str(error), 300)) from None


def encode_registration(endpoint: str, resource: str) -> bytes:
    """A RegisterRequest: ``endpoint`` is the plugin's socket, in the kubelet's folder."""
    fields = ((_VERSION, VERSION), (_ENDPOINT, endpoint), (_RESOURCE, resource))
    return _encode_message((number, text.encode()) for number, text in fields)


def encode_devices(healthy: Mapping[str, bool]) -> bytes:
    """A ListAndWatchResponse: all devices by ID, and whether each is healthy."""
    return _encode_message(
        (
            _DEVICES,
            _encode_message([(_ID, name.encode()), (_HEALTH, _format_health(good).encode())]),
        )
        for name, good in sorted(healthy.items())
    )


def _format_health(good: bool) -> str:  # noqa: FBT001 (it is what is written)
    return HEALTHY if good else UNHEALTHY


def _encode_message(fields: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(
        _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(value)) + value
        for number, value in fields
    )


def _encode_varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _encode_varint(rest) if rest else bytes([low])


def decode_text(message: bytes, number: int) -> str:
    """Return the last text of a field; "" if there is none."""
    return b"".join(decode_values(message, number)[-1:]).decode()


def decode_values(message: bytes, number: int) -> list[bytes]:
    """The values of a field that has a length, in order.

    Raises:
        ValueError, IndexError: it is no message.
    """
    return [value for key, value in _decode_fields(message) if key == number]


def _decode_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields that have a length; others are passed over."""
    at = 0
    while at < len(message):
        key, at = _decode_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _decode_varint(message, at)
            continue
        size, at = (_FIXED[kind], at) if kind in _FIXED else _decode_varint(message, at)
        if kind not in {*_FIXED, _LENGTH_DELIMITED} or at + size > len(message):
            raise ValueError(f"field {key >> 3} at byte {at}")
        if kind == _LENGTH_DELIMITED:
            yield key >> 3, message[at : at + size]
        at += size


def _decode_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value, shift = 0, 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
