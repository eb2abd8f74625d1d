"""What the build takes of the interpreter that it runs under."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("machine", ["x86_64-linux-gnu", None])
def test_the_sizes_come_from_the_header_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str | None
) -> None:
    """Debian's Python names a header that only includes the machine's own, other ones have one."""
    named = tmp_path / "python3.11" / "pyconfig.h"
    real = tmp_path / machine / "python3.11" / "pyconfig.h" if machine else named
    for header in (named, real):
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    monkeypatch.setattr(sys, "argv", ["setup.py", "--quiet", "--name"])
    pyconfig = runpy.run_path(str(ROOT / "setup.py"))["_pyconfig"]
    monkeypatch.setattr(sysconfig, "get_config_var", {"MULTIARCH": machine}.get)
    assert pyconfig(named) == real
    with pytest.raises(SystemExit, match="apt-get install python3-dev"):
        pyconfig(tmp_path / "python3.12" / "pyconfig.h")
