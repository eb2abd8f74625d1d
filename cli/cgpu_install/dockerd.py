"""dockerd: its configuration, its command line, and what it says while it runs."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_install import running
from cgpu_install.entry import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_install.machine import Machine

FILE = "/etc/docker/daemon.json"
DEFAULT = ("default-runtime",)  # in that file
RESTART = "systemctl restart docker"
_SOCKET, _SECONDS = "/var/run/docker.sock", 10
# Where distributions write its command line.
_STARTS = (
    "/etc/default/docker",
    "/etc/sysconfig/docker",
    "/etc/systemd/system/docker.service.d/*.conf",
    "/etc/systemd/system/docker.service",
    "/lib/systemd/system/docker.service",
    "/usr/lib/systemd/system/docker.service",
)
_OPTION = re.compile(r"^[^#;\n]*--default-runtime[= ]([^\s\"']*)", re.MULTILINE)


def said(template: str) -> str:
    """What this machine's dockerd says of itself; empty if none runs.

    A user's environment and context may name another machine's.
    """
    if not os.path.exists(_SOCKET):
        return ""
    command = ["docker", "--host", f"unix://{_SOCKET}", "info", "--format", template]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def default_runtime() -> str:
    """The default runtime that is in force; empty if no dockerd runs."""
    return said("{{.DefaultRuntime}}")


def check_default(machine: Machine) -> None:
    """Refuse a default runtime on a command line: dockerd does not start if its file has one too.

    Raises:
        CgpuError: there is one.
    """
    for option in options(machine):
        expected = "expected none there, because dockerd does not start if its file has one too"
        raise CgpuError(f"{option} on dockerd's command line: {expected}")


def check_unnamed(machine: Machine) -> None:
    """Refuse our runtime as the default on a command line: without it dockerd does not start.

    Raises:
        CgpuError: it is there.
    """
    for option in options(machine):
        if option.endswith(f"={NAME}"):
            because = "because dockerd does not start if its default runtime is gone"
            raise CgpuError(f"{option} on dockerd's command line: take it out first, {because}")


def options(machine: Machine) -> Iterator[str]:
    """Where a command line of dockerd names a default runtime, and which."""
    files = [path for pattern in _STARTS for path in machine.matching(pattern)]
    if not machine.root:
        files += [f"{folder}/cmdline" for folder in running.processes("dockerd")]
    for path in files:
        if found := _OPTION.search(running.text(machine.at(path)).replace("\0", " ")):
            yield f"{path}: --default-runtime={found[1]}"
