"""Publishes the account of a server (``cgpu_node.accounts``), and logs other accounts."""

from __future__ import annotations

import contextlib
import socket
import time

from cgpu_node import accounts
from cgpu_server.journal import log

_LOOK_SECONDS = 5.0


class AccountKeeper:
    """Publishes the account of ``state_dir``, and logs others that promise the same GPUs."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._name, self._socket = b"", socket.socket(socket.AF_UNIX)
        self._logged: set[str] = set()
        self._due = 0.0

    def update(self, driver_dir: str | None) -> None:
        """Publish that containers have shares of this driver's GPUs; None: that none has.

        Call this each second, because a driver may be updated.
        """
        with contextlib.suppress(OSError):  # the driver is gone, or somebody else has the name
            name = accounts.format_socket_name(self._state_dir, driver_dir) if driver_dir else b""
            if name != self._name:
                self._name = name
                self._socket.close()
                self._socket = socket.socket(socket.AF_UNIX)
                if name:
                    self._socket.bind(b"\0" + name)
        if driver_dir and time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOOK_SECONDS
            self._log_others(driver_dir)

    def _log_others(self, driver_dir: str) -> None:
        """Log each other account once while it exists."""
        found = {
            each.state_dir for each in accounts.find_other_accounts(self._state_dir, driver_dir)
        }
        for path in found - self._logged:
            log.warning("account_apart", path=path, do=accounts.ADVICE)
        self._logged = found
