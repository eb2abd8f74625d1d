"""The table of container engines, and what else has to know them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cgpu_node.facts.engines import ENGINES

pytestmark = pytest.mark.unit
LAUNCHER = Path(__file__).parents[3] / "hook/common/document.c"


def test_the_launcher_finds_the_pods_of_all_engines_by_one_word() -> None:
    """Else it would start a pod's container without asking whether one was allocated to it."""
    [word] = re.findall(r'has_word\(document, "\\"(io[a-z.]+)"\)', LAUNCHER.read_text())
    firsts = [row.pod_keys[0] for row in ENGINES if row.pod_keys]
    assert len(firsts) > 1
    assert all(key.startswith(word) for key in firsts)


def test_the_rows_of_engines_differ() -> None:
    for column in ("name", "config", "scope", "pod_keys", "name_keys", "version"):
        values = [value for row in ENGINES if (value := getattr(row, column))]
        assert len(set(values)) == len(values), column
