"""The protocol between a service and systemd (sd_notify(3), sd_listen_fds(3))."""

from __future__ import annotations

import contextlib
import os
import socket

_FIRST_FD = 3


def inherit_socket(name: str) -> socket.socket | None:
    """Return the listening socket ``name`` that systemd passed to us, or None."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    return socket.socket(fileno=_FIRST_FD + names.index(name)) if name in names else None


def is_service() -> bool:
    """Whether systemd started this server. It then starts another one when this one ends."""
    return "NOTIFY_SOCKET" in os.environ


def notify_systemd(message: bytes) -> None:
    """If systemd started us, inform it: ``READY=1``, we serve; ``WATCHDOG=1``, we are not hung."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end, contextlib.suppress(OSError):
            end.sendto(message, address.replace("@", "\0", 1))
