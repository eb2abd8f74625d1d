"""The paths of cgpu's state on this host, and the checks that they can be trusted."""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import CgpuError

ROOT_STATE = "/run/cgpu"
# Users' commands and cgpud read these variables if the option is not given. Other programs that an
# engine starts do not; if the engine starts cgpud, cgpud gets an environment of its own.
STATE_VARIABLE, DRIVER_VARIABLE = "CGPU_STATE_DIR", "CGPU_DRIVER_DIR"


def read_variable(variable: str) -> str | None:
    """Return the directory in a variable of the environment; None if it is empty or not set."""
    return os.environ.get(variable) or None


def default_state_dir() -> str:
    """Return ``/run/cgpu`` for root; for others, one in a user's runtime directory or ``/tmp``."""
    if os.geteuid() == 0:
        return ROOT_STATE
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/cgpu" if runtime.startswith("/") else f"/tmp/cgpu-{os.geteuid()}"  # noqa: S108


def state_path(given: str | None = None) -> str:
    """Return the absolute path of the state directory, whether or not it exists."""
    # A link is followed only if the user named it, because anybody may have made the default in
    # /tmp.
    return os.path.realpath(given) if given else default_state_dir()


def node_state(given: str | None = None) -> str | None:
    """Return root's state directory, if it exists and the user names no other one.

    Users may not read what is in it. Root's server gives them what they may know.
    """
    if given or os.geteuid() == 0:
        return None
    try:
        return None if os.stat(ROOT_STATE).st_uid == os.geteuid() else ROOT_STATE
    except OSError:
        return None


def open_state(given: str | None = None) -> str:
    """Return the state directory: absolute, without symbolic links. If it is missing, make it.

    The directory above it has to exist, so that a misspelt path makes no tree.

    Args:
        given: the directory that the user named, or None for the default.

    Raises:
        CgpuError: it cannot be made, another user owns or can write to it, or it is a session's.
    """
    path = state_path(given)
    try:
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        check_parent(path)
        raise CgpuError(f"state directory {path}: {error.strerror}") from None
    check_state(path)
    if os.path.exists(f"{path}/limits"):
        raise make_nested_error()  # over which the session has mounted its own
    return os.path.realpath(path)


def check_parent(path: str) -> None:
    """Refuse a state directory that cannot be made.

    Raises:
        CgpuError: the directory above it is missing.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise CgpuError(f"state directory {path}: there is no directory {folder}")


def make_nested_error() -> CgpuError:
    """Return the error in a container or session for a request that only a node can answer."""
    return CgpuError(
        "already inside a cgpu container or session: a share is not divided",
        hint="run this outside; nvidia-smi shows the share from inside",
    )


def check_state(path: str) -> None:
    """Refuse a state directory that others could change.

    Raises:
        CgpuError: it is missing, is no directory, or another user owns it or can write to it.
    """
    try:
        facts = os.lstat(path)
    except OSError as error:
        raise CgpuError(f"state directory {path}: {error.strerror}") from None
    if not stat.S_ISDIR(facts.st_mode):
        raise CgpuError(f"state directory {path}: not a directory")
    if facts.st_uid != os.geteuid():
        raise CgpuError(f"state directory {path}: owned by user {facts.st_uid}, not by you")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CgpuError(f"state directory {path}: other users can write to it")


def write_atomically(
    path: str,
    data: bytes,
    mode: int = 0o600,
    temporary: str | None = None,
    *,
    durable: bool = False,
) -> None:
    """Put ``data`` at ``path`` in one step: readers see the whole old file or the whole new one.

    The caller holds a lock, so a file that a killed writer left can be overwritten.

    Args:
        path: the file's path.
        data: its content.
        mode: its permissions.
        temporary: where it is written first, on the same file system; None: beside ``path``.
        durable: whether this holds even if the power fails. If not, the file may then be empty.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    temporary = temporary or f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, mode)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
