"""What several files of this folder start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cuda_proxied import Proxied, make_proxied

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def proxied(tmp_path: Path) -> Proxied:
    """6 of 15 GiB on each of two simulated T4."""
    return make_proxied(tmp_path)
