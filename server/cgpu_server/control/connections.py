"""The control socket: it reads lines of JSON, and answers each with one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env import CgpuError
from cgpu_env.logline import location
from cgpu_server.journal import log

if TYPE_CHECKING:
    from collections.abc import Callable

    Handle = Callable[[dict[str, Any], "Peer"], dict[str, Any]]

DESCRIPTOR = "descriptor"  # in an answer: a file descriptor to send with it
_LONGEST_LINE = 1 << 16
_PATIENCE = 60.0  # seconds for a client that sends nothing
# How many connections wait in the kernel, and how many are taken before others are served again:
# users who never stop connecting must not hold up who is connected.
_BACKLOG, _AT_ONCE = 64, 1
_MOST_OF_A_USER, _MOST_OF_USERS = 16, 128  # connections of users who are not trusted
_CREDENTIALS = struct.Struct("3i")  # struct ucred


class Peer(NamedTuple):
    """Who is at the other end; ``pid`` is 0 if it runs in a namespace that we cannot see."""

    pid: int
    uid: int

    @property
    def is_trusted(self) -> bool:
        """Whether it is root or the owner of the state directory."""
        return self.uid in (0, os.geteuid())


class Control:
    """Answers requests with ``handle``; calls ``connected`` for a connection without a request."""

    def __init__(self, handle: Handle, connected: Callable[[], None]) -> None:
        self._handle, self._connected = handle, connected
        self._guests: Counter[int] = Counter()  # connections of users who are not trusted
        self._turn = asyncio.Lock()  # of their requests

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve from now on."""
        serving = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=_LONGEST_LINE, backlog=_AT_ONCE
        )
        listener.listen(_BACKLOG)  # asyncio has made it _AT_ONCE
        return serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError):
            if peer.is_trusted:
                await self._answer_all(reader, writer, peer)
            elif self._has_room(peer):
                self._guests[peer.uid] += 1
                try:
                    await self._answer_all(reader, writer, peer)
                finally:
                    self._guests -= Counter({peer.uid: 1})  # which forgets users without any
            else:
                _send(writer, _error("you or others have too many connections: close some"))
        writer.close()

    def _has_room(self, peer: Peer) -> bool:
        """Whether another connection of this user leaves descriptors for root and ourselves."""
        return self._guests[peer.uid] < _MOST_OF_A_USER and self._guests.total() < _MOST_OF_USERS

    async def _answer_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        line = await asyncio.wait_for(reader.readline(), _PATIENCE)
        if not line and peer.is_trusted:  # a guest's request refreshes what it needs itself
            self._connected()
        while line:
            _send(writer, await self._answer(line, peer))
            await asyncio.wait_for(writer.drain(), _PATIENCE)
            line = await asyncio.wait_for(reader.readline(), _PATIENCE)

    async def _answer(self, line: bytes, peer: Peer) -> dict[str, Any]:
        """The answer; however many guests ask, root waits for one of them at most."""
        if peer.is_trusted:
            return self.answer(line, peer)
        async with self._turn:
            await asyncio.sleep(0)
            return self.answer(line, peer)

    def answer(self, line: bytes, peer: Peer) -> dict[str, Any]:
        """The answer to what ``peer`` sent."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return _error("expected a JSON object on a line")
            return self._handle(request, peer)
        except CgpuError as error:
            return _error(str(error), error.hint)
        except (ValueError, RecursionError):
            return _error("expected a JSON object on a line")
        except Exception as error:  # noqa: BLE001 (one bad request must not end the server)
            log.error(
                "request_fails",
                error=f"{error!r} at {location(error)}",
                request=line.decode("utf-8", "replace"),
                do="report it with this line; nothing else is disturbed",
            )
            return _error(f"internal error: {type(error).__name__}: {error}")


def _send(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    """Send an answer, and its descriptor if it has one."""
    device = answer.pop(DESCRIPTOR, None)
    line = json.dumps(answer).encode() + b"\n"
    if device is None:
        writer.write(line)
        return
    end: socket.socket = writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(end.fileno())) as same:
        socket.send_fds(same, [line], [device])


def _error(sentence: str, hint: str = "") -> dict[str, Any]:
    return {"error": sentence, "hint": hint}


def _peer(writer: asyncio.StreamWriter) -> Peer:
    end: socket.socket = writer.get_extra_info("socket")
    data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return Peer(pid, uid)
