"""How commands ask the server, also one that ends just then (CLI-3)."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env import CgpuError
from cgpu_node import client, server
from cgpu_server.control.server_lock import ServerLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.unit

ASKED = {"request": "status"}


def serve(state: Path, answers: list[bytes]) -> threading.Thread:
    """A server that gives each connection the next of these, and then ends."""
    listener = socket.socket(socket.AF_UNIX)
    (state / server.SOCKET).unlink(missing_ok=True)
    listener.bind(str(state / server.SOCKET))
    listener.listen()

    def run() -> None:
        for answer in answers:
            end, _ = listener.accept()
            with end:
                if answer:
                    end.recv(1000)
                    end.sendall(answer)
        listener.close()
        (state / server.SOCKET).unlink(missing_ok=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def wakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a server was listening, at each request to start one; the next one answers."""
    asked: list[bool] = []

    def wake(*_: object) -> None:
        there = (tmp_path / server.SOCKET).exists()
        asked.append(there)
        if not there:
            serve(tmp_path, [json.dumps({"pid": 7}).encode() + b"\n"])

    monkeypatch.setattr(server, "wake_server", wake)
    return asked


@pytest.mark.parametrize("connections", [1, 2, 3])
def test_a_server_that_ends_while_it_is_asked_is_followed_by_another(
    tmp_path: Path, wakes: list[bool], connections: int
) -> None:
    """An idle server takes connections up to its end, and answers none of the last."""
    serve(tmp_path, [b""] * connections)
    assert client.start_and_send(str(tmp_path), None, ASKED) == {"pid": 7}
    assert wakes[-1] is False
    assert len(wakes) <= 1 + connections


def test_a_server_that_is_there_is_not_started(tmp_path: Path, wakes: list[bool]) -> None:
    serve(tmp_path, [b"{}\n"])
    assert client.start_and_send(str(tmp_path), None, ASKED) == {}
    assert wakes == []


def test_a_server_that_does_not_start_is_told_of_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_START_SECONDS", 0.1)
    monkeypatch.setattr(server, "wake_server", lambda *_: None)
    with pytest.raises(CgpuError, match=f"cgpud does not start: see {tmp_path}/{server.LOG}"):
        client.start_and_send(str(tmp_path), None, ASKED)


@pytest.mark.parametrize("make", [lambda _: None, lambda state: serve(state, [b""])])
def test_a_server_that_is_not_there_is_told_from_one_that_refuses(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    ending = make(tmp_path)
    with pytest.raises(client.AbsentError):
        client.send_request(str(tmp_path), ASKED)
    if ending is not None:
        ending.join()
    serve(tmp_path, [b'{"error": "no"}\n'])
    with pytest.raises(CgpuError, match="no") as refusal:
        client.send_request(str(tmp_path), ASKED)
    assert not isinstance(refusal.value, client.AbsentError)


@pytest.mark.parametrize(
    ("folder", "error", "ending"),
    [
        ("", "no", ""),
        ("/x", "no", "; there is no directory {}/x"),
        ("/x", "driver directory {}/x: there is no such directory", ""),
    ],
)
def test_a_refusal_names_a_driver_directory_that_is_not_there(
    tmp_path: Path, folder: str, error: str, ending: str
) -> None:
    """CLI-8: once."""
    answer = error.format(tmp_path)
    serve(tmp_path, [f'{{"error": "{answer}"}}\n'.encode()])
    with pytest.raises(CgpuError) as refusal:
        client.send_request(str(tmp_path), client.with_driver(ASKED, f"{tmp_path}{folder}"))
    assert str(refusal.value) == f"{answer}{ending.format(tmp_path)}"


def fill(path: Path) -> list[socket.socket]:
    """Connections that wait at a socket, so many that there is room for no other one."""
    ends: list[socket.socket] = []
    while True:
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(0)
        ends.append(end)
        try:
            end.connect(str(path))
        except BlockingIOError:
            return ends


def answer_all(listener: socket.socket) -> None:
    """Answer whoever has asked and not gone."""
    while True:
        try:
            end, _ = listener.accept()
        except OSError:  # it is closed
            return
        end.settimeout(0.1)
        with end:
            try:
                end.sendall(b'{"asked": %d}\n' % len(end.recv(1000)))
            except OSError:
                continue


def test_where_others_wait_at_the_socket_a_command_waits_in_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REL-8."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / server.SOCKET))
        listener.listen(1)
        ends = fill(tmp_path / server.SOCKET)
        begun = threading.Event()
        connect = server.connect

        def connected(end: socket.socket, folder: int) -> None:
            begun.set()
            connect(end, folder)

        monkeypatch.setattr(server, "connect", connected)
        answering = threading.Thread(
            target=lambda: begun.wait() and answer_all(listener), daemon=True
        )
        answering.start()
        assert client.send_request(str(tmp_path), ASKED)["asked"] > 0
        del ends


def test_where_nobody_makes_room_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", 1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / server.SOCKET))
        listener.listen(1)
        ends = fill(tmp_path / server.SOCKET)
        with pytest.raises(client.SilentError, match="connections leave no room within 1 s"):
            client.send_request(str(tmp_path), ASKED)
        del ends


def test_root_does_not_wait_where_users_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REL-8: its socket is one that nobody else can connect to."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    lock = ServerLock.acquire(str(tmp_path))
    assert lock is not None
    ends = fill(tmp_path / server.SOCKET)
    for listener in lock.listeners:
        listener.settimeout(None)
    threading.Thread(target=answer_all, args=lock.listeners[:1], daemon=True).start()
    assert client.send_request(str(tmp_path), ASKED)["asked"] > 0
    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in (server.ROOT_SOCKET, server.SOCKET)
    ]
    assert modes == [0o600, 0o666]
    lock.release()
    assert not server.is_listening(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [server.LOCK]
    del ends
