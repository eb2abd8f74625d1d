"""The content of a file or link, and its replacement."""

from __future__ import annotations

import os
from typing import NamedTuple

from cgpu_install.machine import Machine


class Link(NamedTuple):
    """A symbolic link."""

    target: str


Content = bytes | Link | None  # None: nothing is there


class Change(NamedTuple):
    """A change of a file or link; ``undo`` is the content that ``cgpu uninstall`` leaves there."""

    engine: str
    path: str
    before: Content
    after: Content
    undo: Content


def read_content(machine: Machine, path: str) -> Content:
    """Return the content of ``path``.

    Raises:
        CgpuError: a directory, a device; or it cannot be read.
    """
    real = machine.resolve_path(path)
    return Link(os.readlink(real)) if os.path.islink(real) else machine.read(path)
