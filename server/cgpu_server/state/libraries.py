"""Keeps the libraries open that containers have, so that nobody can take a lease on them.

Root in a container owns them, and a process that opens one under a lease waits for 45 s.
"""

from __future__ import annotations

import contextlib
import os

from cgpu_node import sealed
from cgpu_node.facts.driver import PROXIED
from cgpu_node.paths import ROOT_STATE
from cgpu_shim import library

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OpenLibraries:
    """The proxies, and the driver's libraries behind them."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def update(self, driver_dir: str | None) -> None:
        """Keep the libraries of this driver open from now on, and no others; None: none.

        Call this each second: a driver may be updated, and if somebody has taken a lease before,
        the kernel breaks it only some time after this has tried to open the file.
        """
        before, self._held = self._held, []
        for soname in PROXIED if driver_dir else ():
            for find in (library, _find_sealed, f"{driver_dir}/{{}}".format):
                # it may be under a lease, or be replaced or removed just now
                with contextlib.suppress(OSError):
                    self._held.append(os.open(find(soname), _FLAGS))
        for fd in before:
            os.close(fd)


def _find_sealed(soname: str) -> str:
    """Return the proxy in the overlay, which is another file to the kernel's leases."""
    return sealed.overlay_path(os.path.realpath(library(soname)), ROOT_STATE)
