"""Unary gRPC calls with messages as bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.kubelet.protobuf import EMPTY

if TYPE_CHECKING:
    from pathlib import Path

    from grpclib.client import Channel

Identity = tuple[int, int, int]
_PATIENCE = 5.0  # seconds for an answer
# What grpclib raises for an invalid answer; the last two are for a message that is cut short, and
# for a compressed one.
_BROKEN = (ProtocolError, StreamTerminatedError, AssertionError, NotImplementedError)


class BytesCodec(CodecBase):
    """Passes messages through as bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: object) -> bytes:
        """Return the message unchanged."""
        del message_type
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        """Return the message unchanged."""
        del message_type
        return data


async def call_method(channel: Channel, method: str, request: bytes) -> bytes:
    """Call a method and return the answer.

    Raises:
        CgpuError: the server does not answer within 5 s, or returns an error.
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


def identify_socket(path: Path) -> Identity | None:
    """Return a socket's device, inode and change time; None if the socket is not there.

    The change time is included because a new socket may reuse an inode number.
    """
    with contextlib.suppress(OSError):
        facts = path.stat()
        return facts.st_dev, facts.st_ino, facts.st_ctime_ns
    return None
