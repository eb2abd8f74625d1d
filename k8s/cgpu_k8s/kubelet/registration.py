"""Lets kubelets find a driver: a socket in a folder of theirs says where the driver's own is.

A kubelet follows the folder, so that a driver does nothing when a kubelet starts. If somebody
removes a socket, the kubelet forgets the driver: then both are made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from cgpu_env.errors import printable
from cgpu_k8s.kubelet import dra_plugin_api as api
from cgpu_k8s.kubelet.protobuf import EMPTY
from cgpu_k8s.kubelet.rpc import BytesCodec, identify_socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Protocol

    from grpclib.server import Stream

    from cgpu_k8s.kubelet.rpc import Identity

    Report = Callable[[str, dict[str, object]], None]

    class Service(Protocol):
        """Answers calls by gRPC."""

        def __mapping__(self) -> dict[str, Handler]:
            """Return its methods."""


PERIOD = 1.0  # seconds between two checks of the sockets
_SOCKET = "dra.sock"


class DriverSockets(NamedTuple):
    """The sockets of a driver, in the kubelet's folders.

    Attributes:
        registry: the folder that the kubelet follows.
        plugins: the folder that has one for each driver.
        driver: the name of the driver.
    """

    registry: Path
    plugins: Path
    driver: str

    @property
    def registration(self) -> Path:
        """Return the socket by which the kubelet finds the driver."""
        return self.registry / f"{self.driver}-reg.sock"

    @property
    def endpoint(self) -> Path:
        """Return the driver's own socket."""
        return self.plugins / self.driver / _SOCKET


class Registration:
    """Serves a driver to whichever kubelet runs.

    Args:
        sockets: where.
        service: what the kubelet calls.
        report: writes a line of the log.
    """

    def __init__(self, sockets: DriverSockets, service: Service, report: Report) -> None:
        self._sockets, self._service, self._report = sockets, service, report
        self._servers: list[Server] = []
        self._own: list[Identity | None] = []
        self._failure: str | None = None

    async def run(self) -> None:
        """Stay findable until cancelled."""
        try:
            while True:
                try:
                    await self._ensure_served()
                except OSError as error:
                    self._report_failure(f"its sockets cannot be made: {printable(str(error))}")
                await asyncio.sleep(PERIOD)
        finally:
            self._stop()

    async def _ensure_served(self) -> None:
        if self._servers and self._identify() == self._own:
            return
        self._stop()
        # The driver's own first: the kubelet calls it as soon as it sees the other.
        for path, service in (
            (self._sockets.endpoint, self._service),
            (self._sockets.registration, self),
        ):
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server = Server([service], codec=BytesCodec())
            await server.start(path=str(path))
            self._servers.append(server)
        self._own = self._identify()

    def _identify(self) -> list[Identity | None]:
        paths = self._sockets.endpoint, self._sockets.registration
        return [identify_socket(path) for path in paths]

    def _stop(self) -> None:
        """Stop serving, and remove the sockets unless they are another driver's by now."""
        for server in self._servers:
            server.close()
        if self._servers and self._identify() == self._own:
            self._sockets.registration.unlink(missing_ok=True)
            self._sockets.endpoint.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in it
                self._sockets.endpoint.parent.rmdir()
        self._servers = []

    def __mapping__(self) -> dict[str, Handler]:  # gRPC asks for it by this name
        """Return the methods by which a kubelet registers the driver."""
        methods = {"GetInfo": self._answer_info, "NotifyRegistrationStatus": self._read_status}
        return {
            f"/{api.REGISTRATION}/{name}": Handler(act, Cardinality.UNARY_UNARY, bytes, bytes)
            for name, act in methods.items()
        }

    async def _answer_info(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        endpoint = str(self._sockets.endpoint)
        await stream.send_message(api.encode_plugin_info(self._sockets.driver, endpoint))

    async def _read_status(self, stream: Stream[bytes, bytes]) -> None:
        status = await stream.recv_message() or EMPTY
        error = api.read_registration_error(status)
        if error:
            self._report_failure(f"the kubelet does not take the driver: {printable(error, 300)}")
        else:
            self._failure = None
            self._report("registered", {"driver": self._sockets.driver})
        await stream.send_message(EMPTY)

    def _report_failure(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            self._report("not_registered", {"error": reason})
