"""The containers that an engine will end by our runtime, with or without a share.

No engine is asked: the shim or monitor of a container knows the runtime too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

_PROC = "/proc"
_SHIM, _MONITOR = "containerd-shim", "conmon"  # of docker and containerd; of podman and CRI-O
_LARGEST_FILE = 1 << 22
_OURS = re.compile(r'/cgpu-runtime(?=["\n]|$)')


def list_containers(proc: str = _PROC) -> list[str]:
    """Return the ids of these containers."""
    found = {id_ for place in _find_namespaces(proc) for id_ in _list_bundle_ids(place)}
    found.update(
        id_ for folder in find_processes(_MONITOR, proc) for id_ in _read_monitored(folder)
    )
    return sorted(found)


def find_processes(name: str, proc: str = _PROC) -> Iterator[str]:
    """Yield the folders of processes of the machine whose names begin with ``name``.

    Processes with another root directory are left out: their engine and its configuration are in
    there.
    """
    for pid in filter(str.isdecimal, os.listdir(proc)):
        folder = f"{proc}/{pid}"
        with suppress(OSError):  # it ended meanwhile
            is_one = read_text(f"{folder}/comm").startswith(name)
            if is_one and os.path.samefile(f"{folder}/root", "/"):
                yield folder


def read_user(folder: str) -> int:
    """Return the user of a process; root if it has ended."""
    with suppress(OSError):
        return os.stat(folder).st_uid
    return 0


def _find_namespaces(proc: str) -> Iterable[str]:
    """Return the folders of containerd's bundles; a shim runs in its first container's bundle."""
    found = {}
    for folder in find_processes(_SHIM, proc):
        with suppress(OSError):
            facts = os.stat(place := f"{folder}/cwd/..")
            found[facts.st_dev, facts.st_ino] = place
    return found.values()


def _list_bundle_ids(place: str) -> Iterator[str]:
    """Yield the ids of containers whose shim has recorded our runtime."""
    with suppress(OSError):
        for id_ in os.listdir(place):
            files = (f"{place}/{id_}/{name}" for name in ("runtime", "options.json"))
            if any(_OURS.search(read_text(file)) for file in files):
                yield id_


def _read_monitored(folder: str) -> Iterator[str]:
    """Yield a monitor's container if it lives: a server that it started keeps the monitor alive."""
    argv = read_text(f"{folder}/cmdline").split("\0")
    # if an option is there twice, the first counts: later ones are another program's arguments
    given = dict(reversed(list(pairwise(argv))))
    if not {"-c", "-p"} <= given.keys() or not any(_OURS.search(word) for word in argv):
        return
    proc, own = os.path.split(folder)
    pid = read_text(f"{folder}/root{given['-p']}").strip()
    if pid.isdecimal() and f"\nPPid:\t{own}\n" in read_text(f"{proc}/{pid}/status"):
        yield given["-c"]


def read_text(path: str) -> str:
    """Return a file that any user may have made; of a pipe or a very large file, only a part."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return (file.read(_LARGEST_FILE) or b"").decode(errors="replace")
    return ""
