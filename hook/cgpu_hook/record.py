"""What the host remembers about one container or session: its owner and what it was promised."""

from __future__ import annotations

from cgpu_env.record import NamedTuple
from cgpu_env.request import GpuShare
from cgpu_hook import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["container", "session"]

VERSION = 1
FILE = "record.json"


class Owner(NamedTuple):
    """Who keeps a container alive.

    Attributes:
        pid: a process of the host; 0: none.
        start_time: of that process (``liveness.start_time``), because pids are used again.
        runtime_dir: the low-level runtime's directory for a container, there as long as it is.
    """

    pid: int
    start_time: int
    runtime_dir: str | None


class Record(NamedTuple):
    """One container or session; ``gpus`` in the order of its visible list."""

    id: str
    kind: Kind
    owner: Owner
    gpus: tuple[GpuShare, ...]
    weight: int
    high_priority: bool
    policy: int
    command: tuple[str, ...]
    directory: str


def pack(record: Record) -> bytes:
    """The content of ``record.json``."""
    fields = record._asdict()
    del fields["directory"]
    return jsontext.dumps({"version": VERSION, **fields}).encode()


def read(directory: str) -> Record | None:
    """The record in ``directory``; None where there is none that can be read."""
    try:
        with open(f"{directory}/{FILE}", "rb") as file:
            fields = jsontext.loads(file.read().decode())
        if fields.pop("version") != VERSION:
            return None
        owner, gpus = Owner(*fields.pop("owner")), fields.pop("gpus")
        shares = tuple(GpuShare(*gpu) for gpu in gpus)
        command = tuple(fields.pop("command"))
        return Record(owner=owner, gpus=shares, command=command, directory=directory, **fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
