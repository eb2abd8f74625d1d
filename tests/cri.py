"""Enough of a kubelet to have containerd's CRI plugin make a pod with a container.

Messages of the interface are fields by number, here as ``{number: value}``: a string, a whole
number, a message, or a list of them. The numbers are those of Kubernetes' ``runtime.v1``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engines import Volume

_VARINT, _BYTES = 0, 2
_NODE_NETWORK = 2
Message = dict[int, Any]


def _number(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _number(rest) if rest else bytes([low])


def packed(message: Message) -> bytes:
    """The message in protobuf's encoding."""
    out = b""
    for number, value in message.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int):
                out += _number(number << 3 | _VARINT) + _number(each)
            else:
                data = packed(each) if isinstance(each, dict) else each.encode()
                out += _number(number << 3 | _BYTES) + _number(len(data)) + data
    return out


def unpacked(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message; of one that is there several times the last."""
    fields: dict[int, int | bytes] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key, value = number(), number()
        if key & 7 == _VARINT:
            fields[key >> 3] = value
        else:
            fields[key >> 3], at = data[at : at + value], at + value
    return fields


class Cri:
    """The CRI plugin at a socket, as a kubelet uses it."""

    def __init__(self, socket: str, cgroup: str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._cgroup = cgroup

    def call(self, method: str, request: Message) -> dict[int, int | bytes]:
        """What a method answers; grpc.RpcError says why it does not."""
        function = self._channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        return unpacked(function(packed(request), timeout=60))

    def run(
        self,
        image: str,
        *command: str,
        handler: str,
        env: Mapping[str, str],
        volumes: Sequence[Volume] = (),
    ) -> str:
        """What ``command`` prints in a container of a pod with a runtime handler."""
        name = f"p{uuid.uuid4().hex[:8]}"
        linux = {1: f"/{self._cgroup}/{name}", 2: {1: {1: _NODE_NETWORK}}}
        pod = {1: {1: name, 2: name, 3: "default"}, 8: linux}
        pod_id = self._text(self.call("RunPodSandbox", {1: pod, 2: handler}), 1)
        try:
            config = {
                1: {1: "main"},
                2: {1: image},
                3: ["sleep", "1000"],
                6: [{1: key, 2: value} for key, value in env.items()],
                7: [{1: v.container, 2: str(v.host), 3: 1} for v in volumes],
            }
            made = self.call("CreateContainer", {1: pod_id, 2: config, 3: pod})
            container = self._text(made, 1)
            self.call("StartContainer", {1: container})
            said = self.call("ExecSync", {1: container, 2: list(command), 3: 60})
            return self._text(said, 1)
        finally:
            self.call("StopPodSandbox", {1: pod_id})
            self.call("RemovePodSandbox", {1: pod_id})

    @staticmethod
    def _text(message: dict[int, int | bytes], number: int) -> str:
        value = message[number]
        assert isinstance(value, bytes)
        return value.decode()
