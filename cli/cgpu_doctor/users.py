"""Checks for this machine's users: files that they cannot use, and other accounts."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from shlex import quote

from cgpu_doctor.finding import Finding, Ground
from cgpu_env import CgpuError
from cgpu_node import accounts as apart
from cgpu_node import installation
from cgpu_node.facts import driver
from cgpu_node.facts.driver import PROXIED
from cgpu_node.facts.node import driver_folder
from cgpu_node.settings.config import CONFIG_PATH, load_config

_RUN = "cgpu-run"
_ELSEWHERE = (
    "install cgpu where every user can read it and the Python that it runs on, such as into"
    " /opt/cgpu with /usr/bin/python3"
)


def check_access(ground: Ground) -> Iterator[Finding]:
    """Check that every user can execute and read the files of ``cgpu-run``.

    Files that pip installs follow root's umask.
    """
    yield from _check_shebang()
    closed: dict[str, str] = {}
    if os.geteuid() == 0:  # another user could not have started this
        for path, is_ours in _list_needed(ground):
            part = _find_closed(os.path.realpath(path))
            if part is not None and part not in closed:
                closed[part] = path
                what = f"users other than root cannot use {path}: {part} is closed to them"
                mend = _advise_repair(part) if is_ours else f"chmod a+rX {quote(part)}"
                yield Finding("warning", what, part, mend)
    if not closed:
        whom = "other users" if os.geteuid() == 0 else "you"
        yield Finding("ok", f"nothing that cgpu-run needs is closed to {whom}")


def _check_shebang() -> Iterator[Finding]:
    """Check that the first line of ``cgpu-run``, as pip writes it, names an interpreter.

    The kernel reads the path only up to the first space.
    """
    path = f"{sysconfig.get_path('scripts')}/{_RUN}"
    with suppress(OSError), open(path, "rb") as file:
        if file.read(2) != b"#!":  # a program that a package of the system has made
            return
        words = os.fsdecode(file.readline()).split()
        if words and not os.access(words[0], os.X_OK):
            what = f"{path} cannot be started: its first line names {words[0]}, which is no program"
            mend = "install cgpu anew, where the path has no space; until then: cgpu run"
            yield Finding("error", what, path, mend)


def _list_needed(ground: Ground) -> Iterator[tuple[str, bool]]:
    """Yield the files that programs need, and for each whether it belongs to cgpu or its Python."""
    modules = [module for name, module in sys.modules.items() if name.startswith("cgpu_")]
    own = [getattr(module, "__file__", None) for module in modules]
    for path in (*own, sys.executable, os.__file__):
        if path:
            yield path, True
    config = ground.machine.resolve_path(CONFIG_PATH)
    yield config, False
    with suppress(CgpuError):  # other checks report it
        folder = driver_folder(ground.driver_dir, load_config(config))
        yield from ((f"{folder}/{name}", False) for name in PROXIED)


def _advise_repair(part: str) -> str:
    own = installation.own_environment()
    root = own and installation.find_installation(own).current_environment
    is_inside = root and f"{part}/".startswith(f"{root}/")
    return f"chmod -R a+rX {quote(root)}" if root and is_inside else _ELSEWHERE


def _find_closed(path: str) -> str | None:
    """Return the first part of a path that others cannot enter or read; None if they can."""
    parts = [path]
    while parts[0] != "/":
        parts.insert(0, os.path.dirname(parts[0]))
    for part in parts:
        try:
            mode = os.stat(part).st_mode
        except OSError:  # it is missing
            return None
        if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return part
    return None


def check_accounts(ground: Ground) -> Iterator[Finding]:
    """Check that no other account promises the same GPUs."""
    config = load_config(ground.machine.resolve_path(CONFIG_PATH))
    folder = driver_folder(ground.driver_dir, config)
    driver.check_driver_dir(folder)  # without a driver nobody knows which GPUs these are
    found = apart.find_other_accounts(ground.state_dir, folder)
    if found:
        what, mend = apart.format_warning(found), "cgpu install systemd --now"
        yield Finding("warning", what, found[0].state_dir, mend)
    else:
        yield Finding("ok", "no other account promises these GPUs")
