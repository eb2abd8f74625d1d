"""Wheels of the previous release, and of the current tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cgpu_env.version import VERSION
from lab.containers import images

ROOT = Path(__file__).resolve().parents[3]
_SUBJECT = re.compile(r"Release (\d+\.\d+\.\d+)$")
_INVENTED = "0.0.9"
_VERSION_FILE = "cgpu_env/version.py"


class Release(NamedTuple):
    """A release; ``commit`` is empty if there is none, and the present tree is renumbered."""

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


def renumbered(wheel: Path, number: str, folder: Path) -> Path:
    """The same wheel as another release, in ``folder``; nothing else differs."""
    tool = [sys.executable, "-m", "wheel"]
    work = folder / "unpacked"
    subprocess.run([*tool, "unpack", wheel, "--dest", work], check=True)
    [root] = work.iterdir()
    _renumber(root, number)
    for part in (".dist-info", ".data"):
        [old] = root.glob(f"cgpu-*{part}")
        old.rename(root / f"cgpu-{number}{part}")
    metadata = root / f"cgpu-{number}.dist-info" / "METADATA"
    _replace(metadata, f"Version: {number}")
    subprocess.run([*tool, "pack", root, "--dest-dir", folder], check=True)
    shutil.rmtree(work)
    [made] = folder.glob(f"cgpu-{number}-*.whl")
    return made


def renumbered_package(package: Path, number: str, folder: Path) -> Path:
    """The same for a Debian package."""
    root = folder / "unpacked"
    subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)
    [modules] = root.glob("usr/lib/cgpu/lib/python3*/site-packages")
    _renumber(modules, number)
    _replace(root / "DEBIAN" / "control", f"Version: {number}")
    made = folder / f"cgpu_{number}.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--build", root, made], check=True)
    shutil.rmtree(root)
    return made


def _renumber(modules: Path, number: str) -> None:
    (modules / _VERSION_FILE).write_text(f'VERSION = "{number}"\n')


def _replace(path: Path, line: str) -> None:
    """Replace the line that begins like ``line``."""
    key = line.partition(" ")[0]
    path.write_text(re.sub(f"^{key} .*$", line, path.read_text(), count=1, flags=re.MULTILINE))


def _build(folder: Path) -> None:
    source = folder.with_suffix(".source")
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    release = previous()
    words = ["git", "archive", release.commit or "HEAD"]
    archive = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    if not release.commit:
        _renumber(source, release.number)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    how = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *how, "."], cwd=source, check=True)
    shutil.rmtree(source)
