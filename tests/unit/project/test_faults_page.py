"""docs/faults.md and the fault suite list the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.faults import FAULTS

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "faults.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_page_lists_the_faults_in_their_order() -> None:
    first = [row.split("|")[1] for row in section("What is done to them").splitlines() if row]
    listed = [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]
    assert listed == [fault.__name__ for fault in FAULTS]
