"""What users get, built with the commands that build it for them; once for the same tree."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lab.runs.packages import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CACHE = ROOT / "build" / "packages"
# What the binary packages are made from.
_INPUTS = ("CHANGELOG.md", "CONTRIBUTING.md", "MANIFEST.in", "README.md", "cgpu_env/", "cli/",
           "deploy/", "docs/", "hook/", "k8s/", "native/", "node/", "pyproject.toml", "server/",
           "setup.py", "shim/", "tests/sim/")  # fmt: skip


def files() -> list[str]:
    """The files of the repository, by their paths."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    return sorted(name for name in names if name and (ROOT / name).exists())


@functools.cache
def made() -> Path:
    """A folder with a wheel and a Debian package for each processor."""
    ensure_packages()
    content = hashlib.sha256()
    for name in (name for name in files() if name.startswith(_INPUTS)):
        content.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    folder = _CACHE / content.hexdigest()[:16]
    with _locked():
        if not folder.exists():
            for old in _CACHE.glob("*/"):
                shutil.rmtree(old)
            _make("deploy/deb.sh", _CACHE / "new", *MACHINES)
            (_CACHE / "new").rename(folder)
    return folder


def source(folder: Path) -> Path:
    """The source distribution, made in ``folder`` with all that has no processor."""
    with _locked():
        _make("deploy/dist.sh", folder)
    [path] = folder.glob("cgpu-*.tar.gz")
    return path


def plugin(folder: Path) -> Path:
    """``kubectl inspect cgpu`` as one file, made in ``folder``."""
    return source(folder).with_name("kubectl-inspect-cgpu")


@contextmanager
def _locked() -> Iterator[None]:
    """Serialise builds: both scripts work in the same folder."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(script: str, folder: Path, *machines: str) -> None:
    environment = os.environ | {"PYTHON": sys.executable, "MACHINES": " ".join(machines)}
    environment |= {"DPKG_DEB_COMPRESSOR_LEVEL": "1"}  # 10 s less of a processor
    done = subprocess.run(
        ["sh", script, str(folder)],
        cwd=ROOT,
        env=environment,
        umask=0o077,  # of a careful builder; packages have modes of their own
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def wheel(machine: str) -> Path:
    """The wheel for a processor."""
    [path] = made().glob(f"cgpu-*_{machine}.whl")
    return path


def deb(machine: str) -> Path:
    """The Debian package for a processor."""
    [path] = made().glob(f"cgpu_*_{MACHINES[machine]}.deb")
    return path
