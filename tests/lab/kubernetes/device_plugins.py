"""The part of a kubelet that device plugins register with, over real gRPC."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message in protobuf's encoding, all of which have a length."""
    found, at = [], 0
    while at < len(message):
        key, at = _number(message, at)
        assert key & 7 == 2, f"field {key >> 3} is of another kind"
        size, at = _number(message, at)
        found.append((key >> 3, message[at : at + size]))
        at += size
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def field(number: int, value: bytes) -> bytes:
    """A field that has a length."""
    size = len(value)
    length = [size & 0x7F | 0x80, size >> 7] if size >> 7 else [size]
    return bytes([number << 3 | 2, *length]) + value


def pod_resources(*containers: tuple[str, str, str, str, tuple[str, ...]]) -> bytes:
    """What a kubelet answers: namespace, pod, container, resource and IDs of each container."""
    message = b""
    for namespace, pod, name, resource, ids in containers:
        devices = field(1, resource.encode()) + b"".join(field(2, each.encode()) for each in ids)
        container = field(1, name.encode()) + (field(2, devices) if ids else b"")
        names = field(1, pod.encode()) + field(2, namespace.encode())
        message += field(1, names + field(3, container))
    return message


def allocatable(*resources: tuple[str, tuple[str, ...]]) -> bytes:
    """What a kubelet answers: each resource, and the IDs of its devices."""
    return b"".join(
        field(1, field(1, name.encode()) + b"".join(field(2, each.encode()) for each in ids))
        for name, ids in resources
    )


class FakeKubelet:
    """A kubelet with a folder for device plugins.

    Attributes:
        registered: version, endpoint and resource of each call so far.
        devices: what the plugins said last, by resource: health by ID.
        resources: what it answers to the question which pods have which devices.
        allocatable: and which devices there are; None: it does not know the question.
        listens: whether it calls plugins back once it took them.
        calls: over which it listens, in the order of their beginning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[tuple[str, ...]] = []
        self.devices: dict[str, dict[str, str]] = {}
        self.resources = b""
        self.allocatable: bytes | None = None
        self.listens = True
        self.calls: list[Any] = []
        self._server: Any = None

    def start(self) -> None:
        """Empty the folder, as a kubelet does, and listen."""
        for path in self.folder.iterdir():
            path.unlink()
        self.devices.clear()
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(self._register)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        methods = {
            "List": grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.resources),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._list_allocatable),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)
        )
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        """End, as a kubelet that is killed: its socket stays."""
        self._server.stop(None).wait()

    def ask(self, method: str, request: bytes = b"", resource: str = "") -> bytes:
        """Call a method of the plugin of a resource, or of the one that registered last."""
        known = {name: socket for _, socket, name in self.registered}
        socket = known[resource] if resource else self.registered[-1][1]
        with grpc.insecure_channel(f"unix:{self.folder / socket}") as channel:
            answer = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=10)
        assert isinstance(answer, bytes)
        return answer

    def _list_allocatable(self, _request: bytes, context: Any) -> bytes:
        if self.allocatable is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        return self.allocatable or b""

    def _register(self, request: bytes, _context: Any) -> bytes:
        version, endpoint, resource = (value.decode() for _, value in fields(request)[:3])
        self.registered.append((version, endpoint, resource))
        if self.listens:
            Thread(target=self._listen, args=(endpoint, resource), daemon=True).start()
        return b""

    def _listen(self, endpoint: str, resource: str) -> None:
        with (
            contextlib.suppress(grpc.RpcError),
            grpc.insecure_channel(f"unix:{self.folder / endpoint}") as channel,
        ):
            call = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            self.calls.append(call)
            for answer in call:
                listed = [dict(fields(device)) for _, device in fields(answer)]
                self.devices[resource] = {each[1].decode(): each[2].decode() for each in listed}


@contextlib.contextmanager
def fake_kubelet(folder: Path) -> Iterator[FakeKubelet]:
    """A kubelet that runs until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    kubelet = FakeKubelet(folder)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()
