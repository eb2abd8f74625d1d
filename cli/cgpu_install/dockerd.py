"""dockerd: its configuration, its command line, and what it reports while it runs."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from cgpu_env import CgpuError
from cgpu_install import running
from cgpu_install.entry import NAME
from cgpu_node.facts.engines import ENGINES, config_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_install.machine import Machine

_ROW = next(row for row in ENGINES if row.name == "docker")
FILE = config_of("docker").path
DEFAULT = ("default-runtime",)  # in that file
RELOAD, RESTART = _ROW.commands[0], "systemctl restart docker"
SIGNAL = "kill -HUP $(cat /var/run/docker.pid)"  # makes it reload if systemd does not run
ENDS = "it ends containers unless live-restore is on"  # a restart does
_SOCKET, _SECONDS = "/var/run/docker.sock", 10
# Files in which distributions write dockerd's command line.
_STARTS = (
    "/etc/default/docker",
    "/etc/sysconfig/docker",
    "/etc/conf.d/docker",
    "/etc/systemd/system/docker.service.d/*.conf",
    "/run/systemd/system/docker.service.d/*.conf",
    "/usr/lib/systemd/system/docker.service.d/*.conf",
    "/etc/systemd/system/docker.service",
    "/lib/systemd/system/docker.service",
    "/usr/lib/systemd/system/docker.service",
)


def query_info(template: str) -> str:
    """Ask this machine's dockerd about itself; "" if none runs.

    The host is given, because a user's environment or context may name another machine's dockerd.
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
    """Return the default runtime that is in force; empty if no dockerd runs."""
    return query_info("{{.DefaultRuntime}}")


def check_default(machine: Machine) -> None:
    """Refuse a default runtime on a command line: with one in its file too, dockerd does not start.

    Raises:
        CgpuError: a command line has one.
    """
    for option in find_options(machine, DEFAULT[0]):
        expected = f"expected none there, because dockerd does not start if {FILE} has one too"
        raise CgpuError(f"{option} on dockerd's command line: {expected}")


def check_runtimes(machine: Machine) -> None:
    """Refuse runtimes on a command line: when dockerd rereads its file, it keeps only those in it.

    Raises:
        CgpuError: a command line has one.
    """
    for option in find_options(machine, "add-runtime"):
        expected = f"expected none there, because dockerd forgets it when it reads {FILE} again"
        hint = f"move it to runtimes in {FILE}, restart dockerd, then try again"
        raise CgpuError(f"{option} on dockerd's command line: {expected}", hint=hint)


def check_unnamed(machine: Machine) -> None:
    """Refuse our runtime as the default on a command line: once it is gone, dockerd cannot start.

    Raises:
        CgpuError: a command line has it.
    """
    for option in find_options(machine, DEFAULT[0]):
        if option.endswith(f"={NAME}"):
            because = "because dockerd does not start if its default runtime is gone"
            raise CgpuError(f"{option} on dockerd's command line: take it out first, {because}")


def find_options(machine: Machine, name: str) -> Iterator[str]:
    """Yield the option from each command line of the machine's dockerd, with that line's file."""
    files = [path for pattern in _STARTS for path in machine.find_paths(pattern)]
    if not machine.root:
        own = (each for each in running.find_processes("dockerd") if not running.read_user(each))
        files += [f"{folder}/cmdline" for folder in own]
    option = re.compile(rf"^[^#;\n]*--{name}[= ]([^\s\"']*)", re.MULTILINE)
    for path in files:
        if found := option.search(running.read_text(machine.resolve_path(path)).replace("\0", " ")):
            yield f"{path}: --{name}={found[1]}"


def find_file_option(machine: Machine) -> str:
    """Return the option by which dockerd reads another file than ours; "" if there is none."""
    for option in find_options(machine, "config-file"):
        if os.path.realpath(option.partition("=")[2]) != os.path.realpath(FILE):
            return option
    return ""


def find_rootless() -> Iterator[tuple[int, int]]:
    """Yield pid and user of each dockerd that is a user's own. Its file is in that user's home."""
    for folder in running.find_processes("dockerd"):
        if uid := running.read_user(folder):
            yield int(os.path.basename(folder)), uid
