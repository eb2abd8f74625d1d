"""A run in a checkout that only root can read says so at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lab.runs.readable import check_readable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("closed", ["setup.py", "tests", ".venv/bin"])
def test_a_closed_checkout_is_no_place_for_roots_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "setup.py").touch()
    check_readable(tmp_path)
    path = tmp_path / closed
    path.chmod(path.stat().st_mode & 0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_readable(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(pytest.exit.Exception, match=rf"{path}, and .*: chmod -R go\+rX {tmp_path}"):
        check_readable(tmp_path)
