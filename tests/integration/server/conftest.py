"""What several files of this folder start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.machine.servers import end_servers
from lab.worlds.server import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A node without a server; any that is started for it ends with the test."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    yield World(state)
    end_servers(tmp_path)
