"""Which files the server keeps open against leases (REL-7)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_node import sealed
from cgpu_node.facts.driver import PROXIED
from cgpu_server.state import libraries
from cgpu_shim import library

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


def opened() -> Iterator[str]:
    """The files that this process has open."""
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            yield str(fd.readlink())


def test_the_proxies_in_the_overlay_are_kept_open_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To the kernel's leases they are files of their own."""
    monkeypatch.setattr(libraries, "ROOT_STATE", str(tmp_path))
    installed = {os.path.realpath(library(name)) for name in PROXIED}
    inside = {sealed.overlay_path(path, str(tmp_path)) for path in installed}
    for path in inside:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"")
    held = libraries.OpenLibraries()
    held.update(str(tmp_path))
    assert (installed | inside) <= set(opened())
    held.update(None)
    assert not (installed | inside) & set(opened())
