"""Ask the node's server: one JSON object on a line, one back on a line.

A request names what it wants (``{"request": "status"}``). An answer without ``"error"`` is a
success. Commands use this; a container's start only calls ``server.wake_server``.
"""

from __future__ import annotations

import os
import time
from socket import AF_UNIX, SO_PEERCRED, SO_SNDTIMEO, SOCK_STREAM, SOL_SOCKET, socket
from struct import Struct
from typing import Any, cast

from cgpu_env.errors import CgpuError
from cgpu_node import jsontext, server
from cgpu_node.facts import driver

_SOON = 5.0
_TIMEOUT = 30.0  # the server may have to ask the driver, which takes seconds on a cold machine
_START_SECONDS = 10.0
_POLL_SECONDS = 0.02
_RESTART_SECONDS = 0.5  # a server that is about to end still holds the lock of the next one
_LARGEST = 1 << 24
_CREDENTIALS = Struct("iII")  # struct ucred
_TIME = Struct("ll")  # struct timeval


class AbsentError(CgpuError):
    """There is no server to ask, or it ended before it answered."""


class SilentError(CgpuError):
    """The server is alive but does not answer; the hint is the command that helps."""


def send_request(state_dir: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the server of ``state_dir`` and return its answer.

    Raises:
        AbsentError: there is no server, or it has just ended.
        CgpuError: it refuses, or does not answer.
    """
    try:
        line = _exchange_lines(state_dir, jsontext.dumps(request).encode() + b"\n")
        if not line:
            raise AbsentError(f"the cgpud of {state_dir} ended before it answered")
        answer = jsontext.loads(line.decode())
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        raise AbsentError(f"no cgpud serves {state_dir}") from None
    except (ConnectionResetError, BrokenPipeError):
        raise AbsentError(f"the cgpud of {state_dir} ended before it answered") from None
    except BlockingIOError:
        what = f"the cgpud of {state_dir}: other users' connections leave no room"
        raise SilentError(f"{what} within {_TIMEOUT:g} s", hint="as root: cgpu get") from None
    except (OSError, ValueError) as error:
        raise CgpuError(f"the cgpud of {state_dir} does not answer: {error}") from None
    if "error" in answer:
        sentence = driver.format_refusal(answer["error"], request.get("driver_dir"))
        raise CgpuError(sentence, hint=answer.get("hint", ""))
    return cast("dict[str, Any]", answer)


def start_and_send(
    state_dir: str, driver_dir: str | None, request: dict[str, Any]
) -> dict[str, Any]:
    """Send a request, and start a server if there is none.

    Raises:
        CgpuError: the server refuses, does not start, does not answer, or is not started because
            the named driver is missing.
    """
    request = with_driver(request, driver_dir)
    due = time.monotonic()
    deadline = due + _START_SECONDS
    while (answer := _try_send(state_dir, request)) is None:
        now = time.monotonic()
        if now > deadline:
            raise CgpuError(f"cgpud does not start: see {state_dir}/{server.LOG}")
        if now >= due:
            if driver_dir:  # else all others would get a server without a driver
                driver.check_driver_dir(driver_dir)
            server.wake_server(state_dir, driver_dir)
            due = now + _RESTART_SECONDS
        time.sleep(_POLL_SECONDS)
    return answer


def with_driver(request: dict[str, Any], driver_dir: str | None) -> dict[str, Any]:
    """Return the request with the driver's directory, for a server that has found no driver."""
    return {**request, "driver_dir": os.path.abspath(driver_dir)} if driver_dir else request


def _try_send(state_dir: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer to a request; None if there is no server, or an idle one just ended."""
    try:
        return send_request(state_dir, request)
    except AbsentError:
        return None


def _exchange_lines(state_dir: str, line: bytes) -> bytes:
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket(AF_UNIX, SOCK_STREAM) as end:
            # users may fill the queue of the common socket: wait for room in it, as they do
            end.setsockopt(SOL_SOCKET, SO_SNDTIMEO, _TIME.pack(*divmod(int(_TIMEOUT * 1e6), 10**6)))
            server.connect(end, folder)
            end.settimeout(_SOON)
            end.sendall(line)
            return _read_line(end)
    finally:
        os.close(folder)


def _read_line(end: socket) -> bytes:
    """Return the answer. Wait for a server that is busy, but not for one that is stopped.

    Raises:
        SilentError: the server is stopped, or silent for too long.
    """
    deadline, found = time.monotonic() + _TIMEOUT, bytearray()
    while not found.endswith(b"\n") and len(found) < _LARGEST:
        try:
            part = end.recv(1 << 16)
        except TimeoutError:
            pid, uid, _ = read_peer(end)
            if _is_stopped(pid):
                what = f"cgpud (pid {pid}) is stopped and does not answer"
                raise SilentError(what, hint=_format_hint(f"kill -CONT {pid}", uid)) from None
            if time.monotonic() > deadline:
                what = f"cgpud (pid {pid}) does not answer within {_TIMEOUT:g} s"
                raise SilentError(what, hint=_format_hint(f"kill -KILL {pid}", uid)) from None
            continue
        if not part:
            break
        found += part
    return bytes(found)


def read_peer(end: socket) -> tuple[int, int, int]:
    """Return the process at the other end, its user and its group."""
    pid, uid, gid = _CREDENTIALS.unpack(end.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _format_hint(command: str, uid: int) -> str:
    return command if os.geteuid() in {0, uid} else f"as root: {command}"


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):  # it is just ending, or lives where we cannot see it
        return False
