"""Wheels of the release before this one, and of the present tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import images

from cgpu_env.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
_SUBJECT = re.compile(r"Release (\d+\.\d+\.\d+)$")
_INVENTED = "0.0.9"
_VERSION_FILE = "cgpu_env/version.py"


class Release(NamedTuple):
    """A release; ``commit`` is empty where there is none, and the present tree is renumbered."""

    number: str
    commit: str


def previous() -> Release:
    """The newest release in the history that is not this one."""
    words = ["git", "log", "--extended-regexp", "--grep=^Release [0-9]", "--format=%H %s"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        found = _SUBJECT.match(subject)
        if found and found.group(1) != VERSION:
            return Release(found.group(1), commit)
    print(f"no release in this clone's history: the present tree as {_INVENTED}")  # noqa: T201
    return Release(_INVENTED, "")


def previous_wheel(release: Release) -> Path:
    """Its wheel, built once."""
    [wheel] = images.cached("release", _build, [release.commit or VERSION]).glob("*.whl")
    return wheel


def present_wheel(folder: Path) -> Path:
    """The wheel of the tree as it is, with what was built in place."""
    build = ["build", "--build-base", f"{folder}/build"]
    pack = ["bdist_wheel", "--dist-dir", f"{folder}/dist", "--bdist-dir", f"{folder}/bdist"]
    metadata = ["egg_info", "--egg-base", str(folder)]
    words = [sys.executable, "setup.py", "-q", *metadata, *build, *pack]
    subprocess.run(words, cwd=ROOT, check=True)
    [wheel] = (folder / "dist").iterdir()
    return wheel


def _build(folder: Path) -> None:
    source = folder.with_suffix(".source")
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    release = previous()
    words = ["git", "archive", release.commit or "HEAD"]
    archive = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    if not release.commit:
        (source / _VERSION_FILE).write_text(f'VERSION = "{release.number}"\n')
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    how = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *how, "."], cwd=source, check=True)
    shutil.rmtree(source)
