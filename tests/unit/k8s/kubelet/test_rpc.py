"""What the agent makes of what a kubelet or an engine answers over gRPC. K8S-12."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from grpclib.client import Channel
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from cgpu_env.errors import CgpuError
from cgpu_k8s.kubelet import rpc

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

HEAD = [(":status", "200"), ("content-type", "application/grpc")]
WHOLE, CUT, COMPRESSED = b"\0\0\0\0\1x", b"\0\0\0\0\5x", b"\1\0\0\0\1x"


async def asked(socket: Path, head: list[tuple[str, str]], message: bytes, status: str) -> bytes:
    """What ``call_method`` returns where the other end answers with this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    connection.send_headers(event.stream_id, head)
                    connection.send_data(event.stream_id, message, end_stream=not status)
                    if status:
                        trailers = [("grpc-status", status), ("grpc-message", "not%20now")]
                        connection.send_headers(event.stream_id, trailers, end_stream=True)
            writer.write(connection.data_to_send())
        writer.close()

    async with (
        await asyncio.start_unix_server(serve, socket),
        Channel(path=str(socket), codec=rpc.BytesCodec()) as channel,
    ):
        return await rpc.call_method(channel, "/v1.Some/Method", b"")


def test_an_answer_is_its_message(tmp_path: Path) -> None:
    assert asyncio.run(asked(tmp_path / "socket", HEAD, WHOLE, "0")) == b"x"


def test_no_message_is_an_empty_one(tmp_path: Path) -> None:
    assert asyncio.run(asked(tmp_path / "socket", HEAD, b"", "0")) == b""


@pytest.mark.parametrize(
    ("head", "message", "status", "why"),
    [
        (HEAD, b"", "14", "not now"),
        (HEAD, CUT, "0", "less data than expected"),
        (HEAD, COMPRESSED, "0", "Compression"),
        (HEAD, WHOLE, "x", "Invalid grpc-status"),
        (HEAD, b"", "", "no answer within 0.5 s|grpc-status"),
        ([(":status", "404")], b"<p>", "", "404"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: list[tuple[str, str]],
    message: bytes,
    status: str,
    why: str,
) -> None:
    monkeypatch.setattr(rpc, "_PATIENCE", 0.5)
    with pytest.raises(CgpuError, match=why):
        asyncio.run(asked(tmp_path / "socket", head, message, status))


def test_a_socket_where_nobody_listens_is_one_sentence(tmp_path: Path) -> None:
    async def ask() -> None:
        async with Channel(path=str(tmp_path / "socket"), codec=rpc.BytesCodec()) as channel:
            await rpc.call_method(channel, "/v1.Some/Method", b"")

    with pytest.raises(CgpuError, match="No such file"):
        asyncio.run(ask())
