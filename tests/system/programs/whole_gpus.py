"""A device plugin that publishes nvidia.com/gpu as NVIDIA's does: ``whole_gpus.py UUID...``."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

FOLDER = "/var/lib/kubelet/device-plugins"
SERVICE = "v1beta1.DevicePlugin"


def field(number: int, value: bytes) -> bytes:
    """A field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def listed(_request: bytes, _context: object):  # noqa: ANN201 (a stream of messages)
    """All devices, which are healthy."""
    names = (name.encode() for name in sys.argv[1:])
    yield b"".join(field(1, field(1, name) + field(2, b"Healthy")) for name in names)
    time.sleep(3600)


def main() -> None:
    """Register, and serve until killed."""
    server = grpc.server(ThreadPoolExecutor(4))
    answers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda *_: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(listed),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda *_: field(1, b"")),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, answers),),
    )
    server.add_insecure_port(f"unix:{FOLDER}/whole.sock")
    server.start()
    with grpc.insecure_channel(f"unix:{FOLDER}/kubelet.sock") as channel:
        names = (b"v1beta1", b"whole.sock", b"nvidia.com/gpu")
        request = b"".join(field(number, name) for number, name in enumerate(names, 1))
        channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=10)
    server.wait_for_termination()


main()
