"""An HTTP server for metrics that limits how many clients there are, and their time."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections import Counter
from http.server import ThreadingHTTPServer
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from prometheus_client import MetricsHandler

from cgpu_env.logline import locate_error
from cgpu_server.journal import log

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_MOST_CLIENTS = 8
_PATIENCE = 10.0  # seconds for a client that sends or reads nothing
_SOON = 1.0  # for the thread of one that was disconnected


class _Handler(MetricsHandler):
    timeout = _PATIENCE
    server_version, sys_version = "cgpud", ""


class Server(ThreadingHTTPServer):
    """Serves what ``registry`` collects to clients of ``listener``."""

    block_on_close = False

    def __init__(self, listener: socket.socket, registry: Collector) -> None:
        # Skip TCPServer.__init__ (the service may not make network sockets) and
        # HTTPServer.server_bind (which looks up the host's name by DNS).
        BaseServer.__init__(self, ("", 0), _Handler.factory(registry))
        self.socket = listener
        self.server_name, self.server_port = "cgpud", 0
        self._room = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._clients: dict[socket.socket, str] = {}  # their addresses, the oldest first

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve the client in a thread of its own.

        If there are too many clients, the oldest client of the address that has the most is
        disconnected: clients that send or read slowly must not keep others out.
        """
        self._clients[request] = str(client_address[0])
        if not self._room.acquire(blocking=False):
            self._disconnect_one()
            if not self._room.acquire(timeout=_SOON):
                self._clients.pop(request, None)
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._clients.pop(request, None)
            self._room.release()
            raise

    def _disconnect_one(self) -> None:
        clients = list(self._clients.items())  # in one step: other threads remove theirs
        count = Counter(address for _, address in clients)
        most = max(count.values())
        oldest = next(client for client, address in clients if count[address] == most)
        with contextlib.suppress(OSError):  # it is gone
            oldest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve the client, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.pop(request, None)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002
        """Ignore a client that disconnects early; log anything else."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error(
                "metrics_fail",
                error=f"{error!r} at {locate_error(error)}" if error else "unknown",
                do="report it with this line; the next scrape is answered anew",
            )
