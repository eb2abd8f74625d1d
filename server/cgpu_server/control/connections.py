"""The control socket. It reads lines of JSON, and answers each with one line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from cgpu_env import CgpuError
from cgpu_env.logline import locate_error
from cgpu_node import client
from cgpu_server.journal import log

Handle = Callable[[dict[str, Any], "Peer"], dict[str, Any]]

DESCRIPTOR = "descriptor"  # in an answer: a file descriptor to send with it
_LONGEST_LINE = 1 << 16
_PATIENCE = 60.0  # seconds for a client that sends nothing
_BACKLOG = 64  # connections that wait in the kernel
# Users who ask without end must not take the processor from root's programs. So the server rests
# after a user's connection, and after a user's request for a multiple of the time that it took.
_REST_SECONDS, _REST_TIMES, _LONGEST_REST = 0.005, 4, 0.1
_RETRY_SECONDS = 1.0
_MOST_OF_A_USER, _MOST_OF_USERS = 16, 128  # connections of users who are not trusted


class Peer(NamedTuple):
    """The other end of a connection. ``pid`` is 0 if its namespace cannot be seen from here."""

    pid: int
    uid: int
    gid: int

    @property
    def is_trusted(self) -> bool:
        """Whether it is root, or the owner of the state directory."""
        return self.uid in (0, os.geteuid())


class Control:
    """Answers requests by ``handle``; calls ``connected`` if a connection carries no request."""

    def __init__(self, handle: Handle, connected: Callable[[], None]) -> None:
        self._handle, self._connected = handle, connected
        self._guests: Counter[int] = Counter()  # connections of users who are not trusted
        self._turn = asyncio.Lock()  # of their requests
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket) -> asyncio.Task[None]:
        """Serve until the task is cancelled."""
        listener.listen(_BACKLOG)
        return asyncio.create_task(self._accept_all(listener))

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept one connection at a time; asyncio's servers accept a hundred."""
        while True:
            rest = _RETRY_SECONDS
            with contextlib.suppress(OSError):  # the process has no descriptor left
                rest = await self._accept_one(listener)
            await asyncio.sleep(rest)

    async def _accept_one(self, listener: socket.socket) -> float:
        """Accept a connection, and return the seconds to rest after it."""
        end, _ = await asyncio.get_running_loop().sock_accept(listener)
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=_LONGEST_LINE)
        task = asyncio.create_task(self._serve_client(reader, writer))
        self._tasks.add(task)  # else it may be collected before its end
        task.add_done_callback(self._tasks.discard)
        return 0 if _read_peer(writer).is_trusted else _REST_SECONDS

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = _read_peer(writer)
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
                _send_answer(
                    writer, _make_error("you or others have too many connections: close some")
                )
        writer.close()

    def _has_room(self, peer: Peer) -> bool:
        """Whether enough descriptors are left for root and us with one more of this user's."""
        return self._guests[peer.uid] < _MOST_OF_A_USER and self._guests.total() < _MOST_OF_USERS

    async def _answer_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> None:
        line = await asyncio.wait_for(reader.readline(), _PATIENCE)
        if not line and peer.is_trusted:  # a guest's request refreshes what it needs itself
            self._connected()
        while line:
            _send_answer(writer, await self._answer_in_turn(line, peer))
            await asyncio.wait_for(writer.drain(), _PATIENCE)
            line = await asyncio.wait_for(reader.readline(), _PATIENCE)

    async def _answer_in_turn(self, line: bytes, peer: Peer) -> dict[str, Any]:
        """Return the answer. However many guests ask, root waits for at most one of them."""
        if peer.is_trusted:
            return self.answer(line, peer)
        await self._turn.acquire()
        begun = time.thread_time()
        try:
            return self.answer(line, peer)
        finally:
            rest = min(_REST_TIMES * (time.thread_time() - begun), _LONGEST_REST)
            asyncio.get_running_loop().call_later(rest, self._turn.release)

    def answer(self, line: bytes, peer: Peer) -> dict[str, Any]:
        """Return the answer to ``line``, which ``peer`` sent."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                return _make_error("expected a JSON object on a line")
            return self._handle(request, peer)
        except CgpuError as error:
            return _make_error(str(error), error.hint)
        except (ValueError, RecursionError):
            return _make_error("expected a JSON object on a line")
        except Exception as error:  # noqa: BLE001 (one bad request must not end the server)
            log.error(
                "request_fails",
                error=f"{error!r} at {locate_error(error)}",
                request=line.decode("utf-8", "replace"),
                do="report it with this line; nothing else is disturbed",
            )
            return _make_error(f"internal error: {type(error).__name__}: {error}")


def _send_answer(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    """Send an answer, with its descriptor if it has one."""
    device = answer.pop(DESCRIPTOR, None)
    line = json.dumps(answer).encode() + b"\n"
    if device is None:
        writer.write(line)
        return
    end: socket.socket = writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(end.fileno())) as same:
        socket.send_fds(same, [line], [device])


def _make_error(sentence: str, hint: str = "") -> dict[str, Any]:
    return {"error": sentence, "hint": hint}


def _read_peer(writer: asyncio.StreamWriter) -> Peer:
    return Peer(*client.read_peer(writer.get_extra_info("socket")))
