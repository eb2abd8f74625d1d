"""A failure shows the end of a program's log: what led to it, and not the noise since then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.kubernetes.programs import tail

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

CAUSE = "E1129 07:58:59.235216     183 manager.go:482] Failed to dial device plugin"
NOISE = "E1129 07:{:02}:00.652456     183 kubelet_node_status.go:563] Failed to set some fields"


def test_what_comes_again_and_again_hides_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join([NOISE.format(0), CAUSE, *map(NOISE.format, range(1, 60))]))
    assert tail(log) == f"{CAUSE}\n{NOISE.format(59)}"
    assert tail(log, 1) == NOISE.format(59)
    assert tail(tmp_path / "none") == ""
