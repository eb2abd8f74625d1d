"""The containers of pods that have whole GPUs, as the node's agent writes them for ``cgpud``.

``<state>/exclusive.json``, which exists if there is such a container::

    {"v": 1, "containers": [{"namespace": "ml", "pod": "train", "container": "main",
                             "devices": ["GPU-..."]}]}

``devices`` are UUIDs, or indices if NVIDIA's plugin is configured so. Only the kubelet knows them.
The agent writes the file anew every PERIOD seconds, and an old file is ignored.
"""

from __future__ import annotations

import os
import time

from cgpu_env.record import NamedTuple
from cgpu_node import jsontext
from cgpu_node.paths import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

VERSION = 1
PERIOD = 15.0
_OLD = 4 * PERIOD
_FILE = "exclusive.json"


class Exclusive(NamedTuple):
    """A pod's container, and the IDs of the devices that it has for itself."""

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]


def read(state_dir: str) -> tuple[Exclusive, ...]:
    """Return the containers that have whole GPUs; none if the file is old or cannot be read."""
    try:
        with open(f"{state_dir}/{_FILE}", "rb") as file:
            # the clock may have been set back
            if abs(time.time() - os.fstat(file.fileno()).st_mtime) > _OLD:
                return ()
            content: Any = jsontext.loads(file.read().decode())
        if content["v"] != VERSION:
            return ()
        return tuple(
            Exclusive(
                str(each["namespace"]),
                str(each["pod"]),
                str(each["container"]),
                tuple(map(str, each["devices"])),
            )
            for each in content["containers"]
        )
    except (OSError, ValueError, TypeError, LookupError):
        return ()


def write(state_dir: str, containers: Collection[Exclusive]) -> None:
    """Write which containers have whole GPUs; all others have none.

    Raises:
        OSError: it cannot be written.
    """
    path = f"{state_dir}/{_FILE}"
    if containers:
        listed = [{**each._asdict(), "devices": [*each.devices]} for each in containers]
        write_atomically(path, jsontext.dumps({"v": VERSION, "containers": listed}).encode())
    elif os.path.lexists(path):
        os.unlink(path)
