"""The control socket: lines of JSON from root or the owner of the state directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from cgpu_env import CgpuError
from cgpu_server.journal import log

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_LINE = 1 << 16
_PATIENCE = 60.0  # seconds for a client that says nothing
_CREDENTIALS = struct.Struct("3i")  # struct ucred


class Control:
    """Answers requests with ``handle``, and calls ``touched`` for every connection."""

    def __init__(
        self,
        handle: Callable[[dict[str, Any]], dict[str, Any]],
        touched: Callable[[], None],
    ) -> None:
        self._handle, self._touched = handle, touched

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve from now on."""
        return await asyncio.start_unix_server(self._serve, sock=listener, limit=_LONGEST_LINE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._touched()
        allowed = _peer(writer) in (0, os.geteuid())
        with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError):
            while line := await asyncio.wait_for(reader.readline(), _PATIENCE):
                answer = self._answer(line) if allowed else _error("not root, nor the owner")
                writer.write(json.dumps(answer).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), _PATIENCE)
        writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return _error("expected a JSON object on a line")
            return self._handle(request)
        except CgpuError as error:
            return _error(str(error), error.hint)
        except ValueError:
            return _error("expected a JSON object on a line")
        except Exception as error:  # noqa: BLE001 (one bad request must not end the server)
            log.exception("request fails line=%.200r", line)
            return _error(f"internal error: {type(error).__name__}: {error}")


def _error(sentence: str, hint: str = "") -> dict[str, Any]:
    return {"error": sentence, "hint": hint}


def _peer(writer: asyncio.StreamWriter) -> int:
    """The user at the other end."""
    end: socket.socket = writer.get_extra_info("socket")
    data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid
