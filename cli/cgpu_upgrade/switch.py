"""The environment in use: a link beside the environments, changed in one step.

Programs that already run stay in the environment that they were started from.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import time
from collections.abc import Iterator

from cgpu_env import CgpuError
from cgpu_node.installation import Installation
from cgpu_node.lockfile import LockFile
from cgpu_upgrade.environment import Environment, free_name

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_START_SECONDS = 10.0  # no container's creation takes longer on the Python side
_PATIENCE_SECONDS = 2.0  # for an upgrade that is about to end
_POLL_SECONDS = 0.005
_STAGES = (b"edit", b"prestart", b"precreate")


def lock_upgrade(installation: Installation) -> LockFile:
    """Return the lock of upgrades: a file, because other users could lock the folder itself."""
    prefix = installation.prefix
    what = f"cgpu upgrade of {prefix}"
    return LockFile(f"{prefix}.lock", what, patience=_PATIENCE_SECONDS, temporary=True)


def make_link(installation: Installation) -> None:
    """Give an environment that is at the prefix itself a name of its own, and leave a link.

    At every moment the prefix leads to the environment. Starts of containers are waited for twice.
    A start that has found its files below a folder would refuse them below a link. And a start that
    has begun to load modules by the prefix's name would miss them once the prefix leads elsewhere.

    Raises:
        CgpuError: the file system cannot exchange two names.
    """
    prefix = installation.prefix
    if os.path.islink(prefix):
        # an earlier upgrade may have been killed before the scripts named their own interpreter
        _name_interpreter(Environment(installation.current_environment), prefix)
        return
    name = free_name(prefix, prefix)
    _wait_for_pause(prefix)
    os.symlink(os.path.basename(name), name)  # it leads to itself until the exchange
    try:
        _exchange_paths(name, prefix)
    except OSError as error:
        os.unlink(name)
        hint = f"move it by hand, while no container is made: mv {prefix} {name}"
        raise CgpuError(f"{prefix}: {error.strerror}", hint=hint) from None
    moved = Environment(name)
    moved.mark_removable()
    _name_interpreter(moved, prefix)
    _wait_for_starts(prefix)


def use_environment(installation: Installation, environment: Environment) -> None:
    """Make the prefix lead to ``environment``, and ``.back`` to the environment in use before.

    If both have the same release, ``.back`` does not change: a repeated upgrade must not lose the
    link to the previous release.
    """
    before, back = Environment(installation.current_environment), installation.previous_environment
    repeated = before.release == environment.release and back not in (None, environment.path)
    if not repeated:
        _replace_link(before.path, installation.back_link)
    _replace_link(environment.path, installation.prefix)


def restore_back(installation: Installation, back: str | None) -> None:
    """Make ``.back`` lead where it led before."""
    if back is not None:
        _replace_link(back, installation.back_link)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(installation.back_link)


def list_older(installation: Installation) -> list[Environment]:
    """Return the environments that upgrades made, and neither prefix nor ``.back`` leads to."""
    kept = (installation.current_environment, installation.previous_environment)
    found = map(Environment, sorted(glob.glob(f"{glob.escape(installation.prefix)}-*")))
    return [each for each in found if each.is_ours() and each.path not in kept]


def _exchange_paths(one: str, other: str) -> None:
    """Exchange two paths, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    done = libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _replace_link(target: str, path: str) -> None:
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(os.path.basename(target), temporary)
    os.rename(temporary, path)


def _name_interpreter(environment: Environment, prefix: str) -> None:
    """Make the environment's scripts start its own interpreter, wherever the prefix leads."""
    old, new = f"#!{prefix}/bin/".encode(), f"#!{environment.path}/bin/".encode()
    for entry in os.scandir(f"{environment.path}/bin"):
        if not entry.is_file(follow_symlinks=False):
            continue
        with open(entry.path, "rb") as file:
            text = file.read()
        if text.startswith(old):
            temporary = f"{entry.path}.new"
            with open(temporary, "wb") as file:
                os.fchmod(file.fileno(), entry.stat().st_mode & 0o7777)
                file.write(new + text.removeprefix(old))
            os.rename(temporary, entry.path)


def _wait_for_pause(prefix: str) -> None:
    """Wait until no container is being made.

    A container that begins after the last check does no harm.
    """
    deadline = time.monotonic() + _START_SECONDS
    while any(_find_starts(prefix)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _wait_for_starts(prefix: str) -> None:
    """Wait for the containers that are being made when this is called."""
    deadline = time.monotonic() + _START_SECONDS
    waiting = set(_find_starts(prefix))
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        waiting &= set(_find_starts(prefix))


def _find_starts(prefix: str) -> Iterator[str]:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if any(word.startswith(os.fsencode(f"{prefix}/")) for word in words) and any(
                stage in words for stage in _STAGES
            ):
                yield name
