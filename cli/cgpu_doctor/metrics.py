"""Checks that cgpud serves metrics at the configured address."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import re
import socket
from collections.abc import Iterator

from cgpu_doctor.finding import Finding, Ground
from cgpu_install.engines import SERVICE, SOCKET, UNITS, WANTED_BY, unit_path
from cgpu_node.paths import ROOT_STATE
from cgpu_node.settings.config import CONFIG_PATH, load_config

_PATIENCE = 2.0  # seconds
_LARGEST_PORT = 65535
_ENOUGH = 1 << 16  # bytes; ours is the first metric of all
_OURS = b"cgpu_build_info"
_OTHER = f"name another [server] metrics in {CONFIG_PATH}"


def check_metrics(ground: Ground) -> Iterator[Finding]:
    """Check that cgpud's metrics are served at the configured address."""
    own = ground.machine.resolve_path(ROOT_STATE)
    if ground.state_dir != own:  # only the node's own server has them
        return
    has_unit = ground.machine.has(f"{UNITS}/{WANTED_BY[SOCKET]}.wants/{SOCKET}")
    by_systemd = has_unit and ground.is_booted
    named = (
        _read_socket(ground)
        if by_systemd
        else load_config(ground.machine.resolve_path(CONFIG_PATH)).metrics
    )
    if named is None and has_unit and not by_systemd:
        what = f"{SOCKET} serves no metrics, because systemd does not run here"
        mend = f"name an address: [server] metrics in {CONFIG_PATH}"
        yield Finding("warning", what, SOCKET, mend)
        return
    if named is None:
        yield Finding("ok", "metrics are served nowhere: no address is set")
        return
    try:
        address, port = _parse_address(named)
    except ValueError:
        what = f"metrics = {named}: expected an address in digits and a port from 1 to 65535"
        yield Finding("error", what, named, _OTHER)
        return
    yield from _check_address(ground, named, address, port, by_systemd=by_systemd)


def _read_socket(ground: Ground) -> str | None:
    unit = ground.machine.read_text(unit_path(SOCKET, ground.machine))
    found = re.search(r"^ListenStream=(\S+)$", unit, re.MULTILINE)
    return found[1] if found else None


def _parse_address(named: str) -> tuple[str, int]:
    """Return address and port.

    Raises:
        ValueError: ``named`` is not of that form.
    """
    host, _, port = named.rpartition(":")
    if not 0 < int(port) <= _LARGEST_PORT:
        raise ValueError(port)
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


def _check_address(
    ground: Ground, named: str, address: str, port: int, *, by_systemd: bool
) -> Iterator[Finding]:
    try:
        body = _fetch_metrics(address, port)
    except ConnectionRefusedError:
        yield from _explain_silence(ground, named, by_systemd=by_systemd)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and not _is_local_address(address):
            what = f"{named} is no address of this machine: nobody can serve metrics there"
            yield Finding("error", what, named, _OTHER)
        else:
            yield Finding("warning", f"{named}: metrics cannot be read: {error}", named, _OTHER)
    else:
        if _OURS not in body:
            what = f"another program serves {named}: cgpud cannot serve its metrics there"
            yield Finding("warning", what, named, f"end that program, or {_OTHER}")
        elif ipaddress.ip_address(address).is_loopback:
            yield Finding("ok", f"metrics are served at {named}", named)
        else:
            what = f"metrics are served at {named}: whoever reaches it sees ids and names"
            yield Finding("note", what, named)


def _fetch_metrics(address: str, port: int) -> bytes:
    """Return the beginning of the response at an address."""
    connection = http.client.HTTPConnection(address, port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(_ENOUGH)
    finally:
        connection.close()


def _is_local_address(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as end:
        try:
            end.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def _explain_silence(ground: Ground, named: str, *, by_systemd: bool) -> Iterator[Finding]:
    """Say why nobody serves the metrics. It is no fault if no server runs: the next one serves."""
    if by_systemd:
        mend = f"systemctl restart {SOCKET} {SERVICE}"
        yield Finding("warning", f"{named}: {SOCKET} does not listen there", named, mend)
    elif ground.is_served():
        what, mend = f"cgpud runs but serves no metrics at {named}", f"see {ground.log}"
        if ground.is_booted:
            what = f"{what}; {SERVICE} has no network for them"
            mend = f"cgpu install metrics --now, or {mend}"
        yield Finding("warning", what, named, mend)
    else:
        yield Finding("ok", f"metrics will be served at {named} by the next cgpud", named)
