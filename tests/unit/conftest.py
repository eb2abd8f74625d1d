"""What unit tests of several parts begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpu_node.shares.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(str(tmp_path))
