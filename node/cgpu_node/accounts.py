"""Other accounts on this machine, which promise the same GPUs and know nothing of our shares.

An account is a state directory with its server and shares. A user's session is in an account of the
user's own unless root's server admits it. Each state directory that a user names is one more
account. Nobody else can read an account's files. So a server whose account has shares binds an
abstract socket; every user sees its name in the kernel's list of sockets. The name contains the
driver's file, the user, and the state directory's number and path. Anybody may bind such names, so
nothing is looked up by their content, and few are read.
"""

from __future__ import annotations

import itertools
import os

from cgpu_env.errors import LONGEST_PATH, CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_node import server
from cgpu_node.facts.driver import CUDA
from cgpu_node.facts.node import driver_folder
from cgpu_node.paths import ROOT_STATE
from cgpu_node.settings.config import load_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SOCKETS = "/proc/net/unix"  # those of this network namespace
_LONGEST_NAME = 107  # of an abstract socket
_MOST, _SHOWN = 100, 3
_OF_NONE = 2  # links
ADVICE = (
    "keep root's cgpud running, as cgpu install systemd --now does: then containers and all users'"
    " sessions are in one account"
)


class Account(NamedTuple):
    """Another account: its server's user, and its state directory, whose path may be cut off."""

    uid: int
    state_dir: str


def format_socket_name(state_dir: str, driver_dir: str) -> bytes:
    """Return the name of the socket that a server binds while its account has shares of these GPUs.

    Raises:
        OSError: the driver is gone.
    """
    prefix, directory = _format_name_prefix(driver_dir), _identify_directory(state_dir)
    return os.fsencode(f"{prefix}{os.geteuid()}/{directory}:{state_dir}")[:_LONGEST_NAME]


def find_other_accounts(state_dir: str, driver_dir: str) -> list[Account]:
    """Return the other accounts that have shares of the GPUs of ``driver_dir``."""
    own = _identify_directory(state_dir)
    try:
        found = {each: None for number, each in _read_accounts(driver_dir) if number != own}
    except OSError:
        return []
    if state_dir != ROOT_STATE and _is_roots(driver_dir):
        found[Account(0, ROOT_STATE)] = None
    return [*found]


def _read_accounts(driver_dir: str) -> list[tuple[str, Account]]:
    """Return the accounts in the kernel's list, each with the number of its state directory."""
    prefix = f" @{_format_name_prefix(driver_dir)}".encode()
    with open(_SOCKETS, "rb") as file:
        lines = itertools.islice((line for line in file if prefix in line), _MOST)
        names = [os.fsdecode(line.partition(prefix)[2].rstrip(b"\n")) for line in lines]
    found = []
    for each in names:
        identity, _, path = each.partition(":")
        uid, _, number = identity.partition("/")
        if uid.isascii() and uid.isdecimal() and path.startswith("/") and path.isprintable():
            found.append((number, Account(int(uid), path)))
    return found


def format_warning(found: Sequence[Account]) -> str:
    """Return a sentence that warns of these accounts."""
    named = [
        f"{_format_user(each.uid)} ({printable(each.state_dir, LONGEST_PATH)})" for each in found
    ]
    more = f" and {len(named) - _SHOWN} more" if named[_SHOWN:] else ""
    share = "shares" if len(named) == 1 else "share"
    return (
        f"{', '.join(named[:_SHOWN])}{more} {share} these GPUs in another account: what is promised"
        " there does not count in this one, so memory can run out below a cap"
    )


def _format_user(uid: int) -> str:
    return "root" if uid == 0 else f"user {uid}"


def _format_name_prefix(driver_dir: str) -> str:
    """Return how the names of all servers begin that share the GPUs of a driver."""
    facts = os.stat(f"{driver_dir}/{CUDA}")
    return f"cgpu/{facts.st_dev:x}.{facts.st_ino:x}/"


def _identify_directory(state_dir: str) -> str:
    """Return a state directory's device and inode, which identify it; "" if it is gone."""
    try:
        facts = os.stat(state_dir)
    except OSError:
        return ""
    return f"{facts.st_dev:x}.{facts.st_ino:x}"


def _is_roots(driver_dir: str) -> bool:
    """Whether root's server has shares of these GPUs.

    Other users cannot see the names of its sockets.
    """
    try:
        # A folder without subfolders has two links, or one if the file system does not count them.
        if os.stat(f"{ROOT_STATE}/containers").st_nlink == _OF_NONE:
            return False
        if not server.is_listening(ROOT_STATE):
            return False
        return os.path.samefile(driver_folder(None, load_config()), driver_dir)
    except (CgpuError, OSError):  # it is not running, or has another driver
        return False
