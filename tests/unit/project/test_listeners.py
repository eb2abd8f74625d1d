"""K8S-15, REL-8: at each port of ours, strangers who send half a request keep nobody out."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from cgpu_k8s.admission.server import Guard
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.apiserver.port import STRANGERS, Port
from cgpu_k8s.extender import _SCRAPERS, _is_local
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.server import Extender
from cgpu_server.metrics.http import _MOST_CLIENTS, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_k8s.objects.fields import Json

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("cgpu_env", "native", "shim", "node", "hook", "server", "cli", "k8s")
LISTENS = re.compile(
    r"AF_INET|getaddrinfo|create_server|\bstart_server|(TCP|Sock)Site|run_app|TCPServer|HTTPServer"
    r"|grpclib\.server"
)
KNOWN = {
    "k8s/cgpu_k8s/apiserver/port.py",
    "server/cgpu_server/metrics/http.py",  # serves what exporter.py opens
    "server/cgpu_server/metrics/exporter.py",
    "cli/cgpu_doctor/metrics.py",  # sees by it whether an address is this machine's
    # In folders of the kubelet, which root alone can enter.
    "k8s/cgpu_k8s/kubelet/device_plugin.py",
    "k8s/cgpu_k8s/kubelet/dra_plugin.py",
    "k8s/cgpu_k8s/kubelet/registration.py",
}
HALF = b"POST /x/validate HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
MORE = 20


def test_nothing_listens_but_what_is_tried_here() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if LISTENS.search(path.read_text(encoding="utf-8"))
    }
    assert found == KNOWN


class Api:
    """An API server that is asked nothing."""

    async def get(self, path: str) -> Json:
        raise AssertionError(path)

    async def post(self, path: str, body: Json, before: Callable[[], None]) -> Json:
        raise AssertionError(path, body, before)


def guard() -> Port:
    served = Guard(Settings(("scheduler",), "agent"), Api(), print, lambda: ("", "word"))
    return Port(served.make_application(), served.is_from_api_server)


def calls() -> Port:
    return Port(extender().make_application(), _is_local)


def metrics() -> Port:
    return Port(extender().make_public_application(), most=_SCRAPERS)


def extender() -> Extender:
    return Extender(SchedulerCache(), Api(), None, str, dict, print)


@contextmanager
def of_cluster(make: Callable[[], Port]) -> Iterator[int]:
    """The number of a port that serves in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> tuple[Port, str]:
        port = make()
        return port, await port.open("127.0.0.1", 0)

    port, address = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
    try:
        yield int(address.rpartition(":")[2])
    finally:
        asyncio.run_coroutine_threadsafe(port.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def of_node() -> Iterator[int]:
    """The same of cgpud's metrics."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener, CollectorRegistry())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# How each is served, how many strangers it has at a time, and what anybody may ask.
PORTS: dict[str, tuple[Callable[[], AbstractContextManager[int]], int, str]] = {
    "guard": (partial(of_cluster, guard), STRANGERS, "/healthz"),
    "extender": (partial(of_cluster, calls), STRANGERS, "/metrics"),
    "extender's metrics": (partial(of_cluster, metrics), _SCRAPERS, "/metrics"),
    "cgpud's metrics": (of_node, _MOST_CLIENTS, "/metrics"),
}


def connect(port: int, host: str, sends: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 60, (host, 0))
    made.sendall(sends)
    return made


def end(connection: socket.socket) -> bytes:
    """What it receives last."""
    try:
        return connection.recv(1)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("name", PORTS)
def test_strangers_make_room_for_who_comes_later(name: str) -> None:
    """The oldest go, of the address that has most."""
    serve, most, path = PORTS[name]
    asks = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    with serve() as port, ExitStack() as kept:
        strangers = [
            kept.enter_context(connect(port, "127.0.0.2", HALF)) for _ in range(most + MORE)
        ]
        asked = kept.enter_context(connect(port, "127.0.0.3", asks))
        assert asked.recv(4096).split(b" ")[1] == b"200"
        assert {end(each) for each in strangers[:MORE]} == {b""}
