"""Whether metrics are served where they should be, by cgpud, and to whom."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from cgpu_doctor.finding import Finding
from cgpu_install.engines import SERVICE, SOCKET, UNITS, WANTED_BY, unit_path
from cgpu_node.paths import ROOT_STATE
from cgpu_node.settings.config import CONFIG_PATH, load_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_doctor.finding import Ground

_PATIENCE = 2.0  # seconds
_LARGEST_PORT = 65535
_ENOUGH = 1 << 16  # bytes; ours is the first metric of all
_OURS = b"cgpu_build_info"
_OTHER = f"name another [server] metrics in {CONFIG_PATH}"


def served(ground: Ground) -> Iterator[Finding]:
    """Whoever asks at the address gets cgpud's metrics."""
    if ground.state_dir != ground.machine.at(ROOT_STATE):  # of the node's own server alone
        return
    has_unit = ground.machine.has(f"{UNITS}/{WANTED_BY[SOCKET]}.wants/{SOCKET}")
    by_systemd = has_unit and ground.is_booted
    said = _of_socket(ground) if by_systemd else load_config(ground.machine.at(CONFIG_PATH)).metrics
    if said is None and has_unit and not by_systemd:
        what = f"{SOCKET} serves no metrics, because systemd does not run here"
        mend = f"name an address: [server] metrics in {CONFIG_PATH}"
        yield Finding("warning", what, SOCKET, mend)
        return
    if said is None:
        yield Finding("ok", "metrics are served nowhere: no address is set")
        return
    try:
        address, port = _parsed(said)
    except ValueError:
        what = f"metrics = {said}: expected an address in digits and a port from 1 to 65535"
        yield Finding("error", what, said, _OTHER)
        return
    yield from _asked(ground, said, address, port, by_systemd=by_systemd)


def _of_socket(ground: Ground) -> str | None:
    unit = ground.machine.text(unit_path(SOCKET, ground.machine))
    found = re.search(r"^ListenStream=(\S+)$", unit, re.MULTILINE)
    return found[1] if found else None


def _parsed(said: str) -> tuple[str, int]:
    """Address and port.

    Raises:
        ValueError: it is neither.
    """
    host, _, port = said.rpartition(":")
    if not 0 < int(port) <= _LARGEST_PORT:
        raise ValueError(port)
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


def _asked(
    ground: Ground, said: str, address: str, port: int, *, by_systemd: bool
) -> Iterator[Finding]:
    try:
        body = _answer(address, port)
    except ConnectionRefusedError:
        yield from _silent(ground, said, by_systemd=by_systemd)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and not _is_here(address):
            what = f"{said} is no address of this machine: nobody can serve metrics there"
            yield Finding("error", what, said, _OTHER)
        else:
            yield Finding("warning", f"{said}: metrics cannot be read: {error}", said, _OTHER)
    else:
        if _OURS not in body:
            what = f"another program serves {said}: cgpud cannot serve its metrics there"
            yield Finding("warning", what, said, f"end that program, or {_OTHER}")
        elif ipaddress.ip_address(address).is_loopback:
            yield Finding("ok", f"metrics are served at {said}", said)
        else:
            what = f"metrics are served at {said}: whoever reaches it sees ids and names"
            yield Finding("note", what, said)


def _answer(address: str, port: int) -> bytes:
    """What is served there, or its beginning."""
    connection = http.client.HTTPConnection(address, port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(_ENOUGH)
    finally:
        connection.close()


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as end:
        try:
            end.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _silent(ground: Ground, said: str, *, by_systemd: bool) -> Iterator[Finding]:
    """Nobody serves it; the next server would, if none runs."""
    if by_systemd:
        mend = f"systemctl restart {SOCKET} {SERVICE}"
        yield Finding("warning", f"{said}: {SOCKET} does not listen there", said, mend)
    elif ground.is_served():
        what, mend = f"cgpud runs but serves no metrics at {said}", f"see {ground.log}"
        if ground.is_booted:
            what = f"{what}; {SERVICE} has no network for them"
            mend = f"cgpu install metrics --now, or {mend}"
        yield Finding("warning", what, said, mend)
    else:
        yield Finding("ok", f"metrics will be served at {said} by the next cgpud", said)
