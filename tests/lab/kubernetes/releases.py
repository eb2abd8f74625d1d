"""Which versions of Kubernetes the tests run on: 1.20.2, and one that is there as programs."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes.sh"
_OLDEST = "1.20.2"  # what the script builds


class Release(NamedTuple):
    """A version of Kubernetes.

    Attributes:
        version: such as ``1.36.2``.
        folder: its programs, and perhaps the etcd that it wants; None: that of the script.
    """

    version: str
    folder: Path | None = None

    def program(self, name: str) -> Path | str:
        """Such as ``kube-apiserver``, or ``etcd``: the machine's where the folder has none.

        Fails the test where it is not there.
        """
        path = (self.folder or _built()) / name
        if path.exists():
            return path
        if name != "etcd":
            pytest.fail(f"{path} is not there")
        return name

    @property
    def has_policies(self) -> bool:
        """Whether the chart brings admission policies, and no webhook that judges."""
        return self.is_since(30)

    def is_since(self, minor: int) -> bool:
        """Whether it is 1.``minor`` or later."""
        return int(self.version.split(".")[1]) >= minor


@functools.cache
def _built() -> Path:
    found = subprocess.run(
        ["sh", _SCRIPT, "-n"], capture_output=True, text=True, check=False, timeout=60
    )
    if found.returncode:
        pytest.fail(found.stderr.strip())
    return Path(found.stdout.strip())


@functools.cache
def releases() -> tuple[Release, ...]:
    """The oldest first; the second one is in the folder that ``CGPU_KUBERNETES`` names."""
    oldest, named = Release(_OLDEST), os.environ.get("CGPU_KUBERNETES", "")
    if not named:
        return (oldest,)
    folder = Path(named).resolve()
    try:
        shown = subprocess.run(
            [folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise pytest.UsageError(f"CGPU_KUBERNETES={named}: {error}") from None
    version = shown.removeprefix("Kubernetes v").partition("-")[0].partition("+")[0].strip()
    return (oldest, Release(version, folder))


@pytest.fixture(scope="session", params=releases(), ids=lambda each: each.version, name="release")
def each_release(request: pytest.FixtureRequest) -> Release:
    """Each version in turn: a test that wants it, or what is made of it, runs on all of them."""
    found: Release = request.param
    return found
