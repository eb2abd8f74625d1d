"""A containerd that knows CDI: the machine's own from 1.7 on, else Debian 13's, not installed.

It runs on Debian 12, with Debian 12's runc.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from lab.containers.images import cached
from lab.driver import real_driver

_SUITE, _COMPONENT, _PACKAGE = "trixie", "main", "containerd"
_KNOWS_CDI = (1, 7)


def programs_folder() -> Path:
    """The folder that has ``containerd`` and its shims."""
    own = Path(shutil.which("containerd") or "/usr/bin/containerd")
    return (
        own.parent
        if _version(own) >= _KNOWS_CDI
        else cached("containerd", _unpack, _SUITE) / "usr/bin"
    )


def _version(program: Path) -> tuple[int, ...]:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\b(\d+)\.(\d+)\.\d+", shown.stdout)
    assert found, shown.stdout
    return int(found[1]), int(found[2])


def _unpack(root: Path) -> None:
    """Debian 13's package, from the machine's own mirror."""
    [source, *_] = [
        each for each in real_driver.machine_sources() if _COMPONENT in each.components.split()
    ]
    work = root.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    for package in real_driver.download(source.restricted_to(_SUITE, _COMPONENT), [_PACKAGE], work):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    shutil.rmtree(work)
