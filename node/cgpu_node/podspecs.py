"""The limits of this node's pods, which its agent writes for the creation of containers.

``<state>/pods/<uid>`` exists for each pod that asks for GPUs::

    {"v": 1, "name": "ml/train", "containers": {"main": {"mem": 6, "core": 30, "gpu": 0}}}

``mem`` is in units of ``aliyun.com/gpu-mem``, and ``core`` in hundredths of a GPU's time, both
summed over the pod's GPUs; ``gpu`` is the number of whole GPUs (``aliyun.com/gpu``). A user can
write a pod's annotations at any time, but its specification only when creating it. So an allocation
is checked against the specification. The agent holds a lock on ``<state>/pods.lock`` as long as it
is up to date. Nobody sends it requests.
"""

from __future__ import annotations

import os
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from time import monotonic, sleep

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_node import allocation_annotation, jsontext
from cgpu_node.paths import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 1
PATIENCE = 2.0  # seconds; the agent learns of a pod when the kubelet does
_POLL = 0.01
_FOLDER, _LOCK = "pods", "pods.lock"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_LONGEST_UID = 128


class Limit(NamedTuple):
    """The limits of a container.

    Attributes:
        mem: memory, in units.
        core: time, in hundredths of a GPU's.
        gpu: the number of whole GPUs.
    """

    mem: int
    core: int = 0
    gpu: int = 0


class PodSpec(NamedTuple):
    """The specification of a pod: ``NAMESPACE/NAME``, and its containers' limits by name."""

    name: str
    containers: Mapping[str, Limit]


def read_spec(state_dir: str, uid: str) -> PodSpec | None:
    """Read what the agent wrote about a pod; None if it wrote nothing.

    Raises:
        CgpuError: the file is damaged.
    """
    if not is_uid(uid):
        return None
    path = f"{state_dir}/{_FOLDER}/{uid}"
    try:
        with open(path, "rb") as file:
            content: Any = jsontext.loads(file.read().decode())
        return _parse_spec(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CgpuError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CgpuError(
            f"{path}: {printable(repr(error))}: expected what this release's agent writes",
            hint="delete the agent's pod on this node: the next one writes it anew",
        ) from None


def _parse_spec(content: Any) -> PodSpec:  # noqa: ANN401 (JSON holds anything)
    if content["v"] != VERSION:
        raise ValueError(f"version {content['v']}")
    limits = {
        # release 0.1 wrote no gpu
        name: Limit(int(given["mem"]), int(given["core"]), int(given.get("gpu", 0)))
        for name, given in content["containers"].items()
    }
    return PodSpec(str(content["name"]), limits)


def wait_for_spec(
    state_dir: str, uid: str, patience: float = PATIENCE
) -> tuple[PodSpec | None, bool]:
    """Wait for what the agent writes about a pod; return it, and whether the agent is up to date.

    If no agent is up to date, there is nothing to wait for.

    Args:
        state_dir: the state directory.
        uid: the pod's UID.
        patience: the seconds to wait for an agent.

    Raises:
        CgpuError: the file is damaged.
    """
    deadline = monotonic() + patience
    while True:
        # In this order, so that a file is found that an agent wrote before it ended.
        current = is_current(state_dir)
        found = read_spec(state_dir, uid)
        if found is not None or not current or monotonic() > deadline:
            return found, current
        sleep(_POLL)


def is_current(state_dir: str) -> bool:
    """Return whether an agent runs and has written all pods that it knows."""
    try:
        lock = os.open(f"{state_dir}/{_LOCK}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        flock(lock, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def is_uid(uid: str) -> bool:
    """Return whether ``uid`` may name a file."""
    return 0 < len(uid) <= _LONGEST_UID and _LETTERS.issuperset(uid)


def write_spec(state_dir: str, uid: str, spec: PodSpec) -> None:
    """Write what a pod asks for, unless the text is longer than an allocation may be.

    Such a pod has so many containers that it is refused; its specification is not needed.

    Raises:
        CgpuError: the UID is malformed.
        OSError: it cannot be written.
    """
    if not is_uid(uid):
        raise CgpuError(
            f"pod {printable(spec.name)}: UID {printable(uid)}: expected letters and digits"
        )
    folder = f"{state_dir}/{_FOLDER}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    limits = {name: limit._asdict() for name, limit in spec.containers.items()}
    content = {"v": VERSION, "name": spec.name, "containers": limits}
    data, temporary = jsontext.dumps(content).encode(), f"{state_dir}/{_FOLDER}.new"
    if len(data) <= allocation_annotation.MAX_BYTES:
        write_atomically(f"{folder}/{uid}", data, temporary=temporary)


def list_uids(state_dir: str) -> list[str]:
    """Return the UIDs of the pods whose specifications are in the state directory."""
    try:
        return os.listdir(f"{state_dir}/{_FOLDER}")
    except FileNotFoundError:
        return []


def remove_spec(state_dir: str, uid: str) -> None:
    """Remove what was written about a pod. It is no error if nothing was.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        os.unlink(f"{state_dir}/{_FOLDER}/{uid}")
    except FileNotFoundError:
        return


class Current:
    """The agent's side of the lock. The lock ends with the process, however that ends."""

    def __init__(self, state_dir: str) -> None:
        self._path, self._fd = f"{state_dir}/{_LOCK}", -1

    def begin(self) -> bool:
        """Take the lock, after all pods are written. False: a reader has it now; try again.

        Raises:
            OSError: the lock cannot be made.
        """
        if self._fd >= 0:
            return True
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def end(self) -> None:
        """Release the lock: from now on, pods may be missing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
