"""The containers that have a claim: beside its record a file for each, called by its first process.

The engine names a container's pod to the hook that gives the container its claim, as it does for a
container with a share of its own. The driver cannot know it: a kubelet asks it once for a claim,
whatever pods come later.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError
from cgpu_node import jsontext
from cgpu_node.paths import write_atomically
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.record import PodContainer, pack_pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_FOLDER = "pods"
_START = "start_time"


def add_container(directory: str, pid: int, pod: PodContainer) -> None:
    """Leave the names of a container that has the claim, and remove those of the ones that ended.

    Args:
        directory: of the claim's record.
        pid: the container's first process.
        pod: the container's pod, and its name there.

    Raises:
        CgpuError, OSError: they cannot be left.
    """
    folder = f"{directory}/{_FOLDER}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in os.listdir(folder):
        if not _is_alive(name, _read_file(f"{folder}/{name}")):
            os.unlink(f"{folder}/{name}")
    content = jsontext.loads(pack_pod(pod).decode())
    content[_START] = start_time(pid)
    write_atomically(f"{folder}/{pid}", jsontext.dumps(content).encode())


def list_containers(directory: str) -> tuple[PodContainer, ...]:
    """Return the containers that have a claim, by name; those that had it last if none lives."""
    known = dict(_read_files(f"{directory}/{_FOLDER}"))
    living = [pod for (name, start), pod in known.items() if _is_alive(name, {_START: start})]
    return tuple(sorted({*(living or known.values())}, key=lambda pod: pod[1:]))


def join_containers(namespace: str, containers: Iterable[PodContainer]) -> PodContainer:
    """Return one name for all: pods and containers of a claim's namespace, with commas."""
    found = list(containers)
    pods, names = ({each[n]: None for each in found} for n in (2, 3))
    return PodContainer("", namespace, ",".join(pods), ",".join(names))


def _read_files(folder: str) -> Iterator[tuple[tuple[str, Any], PodContainer]]:
    try:
        names = os.listdir(folder)
    except OSError:  # no container had it yet, or it has just been given back
        return
    for name in names:
        fields = _read_file(f"{folder}/{name}")
        if fields:
            pod = PodContainer(*(str(fields[each]) for each in PodContainer._fields))
            yield (name, fields[_START]), pod


def _read_file(path: str) -> dict[str, Any]:
    """Return the content of a file; nothing if it is gone or damaged."""
    try:
        with open(path, "rb") as file:
            fields = jsontext.loads(file.read().decode())
        return fields if {_START, *PodContainer._fields} <= fields.keys() else {}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _is_alive(name: str, fields: dict[str, Any]) -> bool:
    """Return whether the process lives that a file is called by."""
    try:
        found = start_time(int(name))
    except (CgpuError, ValueError):  # it cannot be seen, or the file is a killed writer's
        return False
    return found is not None and found == fields.get(_START)
