"""A tree of files with engines' configurations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.machine.node import ROOT

GOLDEN = ROOT / "tests" / "unit" / "install" / "golden"
DOCKER, CONTAINERD = "etc/docker/daemon.json", "etc/containerd/config.toml"
NVIDIA = "etc/nvidia-container-runtime/config.toml"


def cgpu(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cgpu_cli.main", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=check)


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below ``root``: kind, mode, owner and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        what = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[path.relative_to(root).as_posix()] = (facts.st_mode, facts.st_uid, what)
    return found


def put(root: Path, path: str, case: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(GOLDEN / case, file)
    return file


def make_machine(root: Path) -> Path:
    """docker, containerd, podman, the NVIDIA toolkit and systemd, each with a configuration."""
    put(root, DOCKER, "docker/nvidia-ctk.json").chmod(0o600)
    os.chown(put(root, CONTAINERD, "containerd/kubeadm-v2.toml"), 1234, 4321)
    put(root, NVIDIA, "nvidia/toolkit-1.17.toml")
    for program in ("usr/bin/podman", "usr/lib/systemd/systemd"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).touch()
    return root
