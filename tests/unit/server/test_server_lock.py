"""How a server takes the place of another one (CLI-4)."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_node import lockfile, server
from cgpu_server.control import server_lock
from cgpu_server.control.server_lock import ServerLock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def serve_slowly(state: Path, seconds: float) -> threading.Thread:
    """A server that needs ``seconds`` to answer a request to end, and ends as long after it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(state / server.SOCKET))
    listener.listen()
    held = lockfile.try_lock(str(state / server.LOCK))
    assert held is not None

    def run() -> None:
        while True:
            end, _ = listener.accept()
            with end:
                if end.recv(1000):  # not one that only looks whether somebody listens
                    time.sleep(seconds)
                    end.sendall(b"{}\n")
                    break
        time.sleep(seconds)
        listener.close()
        os.close(held)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_who_asked_a_busy_server_to_end_takes_its_place_however_long_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would serve until the next container starts."""
    monkeypatch.setattr(server_lock, "_PATIENCE", 0.3)
    busy = serve_slowly(tmp_path, 0.4)
    lock = ServerLock.acquire(str(tmp_path), replace=True)
    busy.join()
    assert lock is not None
    assert server.is_listening(str(tmp_path))
    lock.release()
