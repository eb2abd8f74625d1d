"""Keeps the libraries open that containers have, so that nobody can take a lease on them.

Root in a container owns them, and a process that opens a library under a lease waits for 45 s.
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
        """Keep the libraries of this driver open from now on, and no others; None: keep none open.

        Call this each second. A driver may be updated. And if somebody took a lease before, the
        kernel breaks it only some time after this has tried to open the file.
        """
        before, self._held = self._held, []
        for soname in PROXIED if driver_dir else ():
            for find in (library, _find_sealed, f"{driver_dir}/{{}}".format):
                # somebody may have a lease on it, or may just be replacing or removing it
                with contextlib.suppress(OSError):
                    self._held.append(os.open(find(soname), _FLAGS))
        for fd in before:
            os.close(fd)


def _find_sealed(soname: str) -> str:
    """Return the proxy in the overlay: a lease on the proxy itself does not cover that file."""
    return sealed.overlay_path(os.path.realpath(library(soname)), ROOT_STATE)
