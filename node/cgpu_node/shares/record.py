"""The host's record of a container, session or claim: its owner, and what it was promised."""

from __future__ import annotations

import os
from os import fsencode

import cgpu_native
from cgpu_env.errors import CgpuError, refuse_exhausted
from cgpu_env.record import NamedTuple
from cgpu_env.request import GpuShare
from cgpu_node import jsontext
from cgpu_node.paths import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    Kind = Literal["container", "session", "claim"]

VERSION = 1
CLAIM: Literal["claim"] = "claim"
OUTLIVING = ("session", CLAIM)  # kinds that live on in processes which their owner has left
_MOST_WEIGHT, _MOST = 1 << 16, (1 << 63) - 1
FILE = "record.json"
# These are in files of their own, because release 0.1.0 takes a record with an unknown field for
# damaged.
NOTES, POD, GUEST = "notes", "pod", "guest"
LIMITS, LEDGER = "limits", "ledger"
# All that a directory can hold. hook/cgpu-hook/poststop.c removes these, and nothing else.
FILES = (LIMITS, LEDGER, FILE, NOTES, POD, GUEST)
# The most characters of texts that a container chooses: all containers share the memory of the
# state directory.
_LONGEST_COMMAND, _LONGEST_NOTES, _LONGEST_POD = 1024, 4096, 4096


class Owner(NamedTuple):
    """The owner, which keeps a container alive.

    Attributes:
        pid: a process of the host; 0: none.
        start_time: the start of that process (``liveness.start_time``), because pids are reused.
        runtime_dir: the low-level runtime's directory for a container, which exists as long as the
            container; for a claim, its CDI file.
    """

    pid: int
    start_time: int
    runtime_dir: str | None


class SessionUser(NamedTuple):
    """A user whose session root's server keeps, and the group of the process that asked for it."""

    uid: int
    gid: int


class Record(NamedTuple):
    """One container or session, or a claim that containers share; ``gpus`` as these see them.

    Attributes:
        id: the container's id; for a claim, its UID.
        kind: container, session or claim.
        owner: who keeps it alive.
        gpus: what it was promised.
        weight: its compute weight; 0: it was promised no time, as a claim without cores.
        high_priority: whether it has high priority.
        policy: the policy of its first GPU, for people.
        command: its program and arguments, for people; see ``shorten_command``. For a claim, its
            namespace and name.
        directory: the directory of the record.
        version: the file's version; if it is not ours, the file is another release's, and must not
            be written.
    """

    id: str
    kind: Kind
    owner: Owner
    gpus: tuple[GpuShare, ...]
    weight: int
    high_priority: bool
    policy: int
    command: tuple[str, ...]
    directory: str
    version: int = VERSION


class PodContainer(NamedTuple):
    """A container of a pod: the pod's UID, namespace and name, and the container's name."""

    uid: str
    namespace: str
    pod: str
    container: str


def shorten_command(command: Iterable[str]) -> tuple[str, ...]:
    """Return ``command``, cut to ``_LONGEST_COMMAND`` characters, with three dots at the end."""
    words = tuple(command)
    if sum(len(word) + 1 for word in words) <= _LONGEST_COMMAND:
        return words
    kept: list[str] = []
    left = _LONGEST_COMMAND - len("... ")
    for word in words:
        if len(word) >= left:
            kept.append(f"{word[:left]}...")
            break
        kept.append(word)
        left -= len(word) + 1
    return tuple(kept)


def pack_record(record: Record, before: dict[str, Any] | None = None) -> bytes:
    """Return the content of ``record.json``; fields that another release wrote ``before`` stay."""
    fields = {**(before or {}), **record._asdict()}
    del fields["directory"]
    return jsontext.dumps(fields).encode()


def read_content(directory: str) -> dict[str, Any] | None:
    """Return the content of the record in ``directory``; None if it is missing or damaged.

    Raises:
        CgpuError: this process can open no more files, so what the file says is not known.
    """
    try:
        with open(cgpu_native.open_file(f"{directory}/{FILE}"), "rb") as file:
            fields = jsontext.loads(file.read().decode())
        return fields if isinstance(fields, dict) else None
    except OSError as error:
        refuse_exhausted(error, f"{directory}/{FILE}")
        return None
    except (ValueError, cgpu_native.NativeError):
        return None


def read(directory: str) -> Record | None:
    """Return the record in ``directory``, of any version; None if there is none that can be read.

    Some fields are the same in every version, so that any release knows who lives and what was
    promised: version, id, kind, owner, gpus (the first three of each) and weight. The others are
    for people, or have a default. Unknown fields are ignored.
    """
    fields = read_content(directory) or {}
    try:
        return Record(
            str(fields["id"]),
            fields["kind"],
            _parse_owner(*fields["owner"][:3]),
            _parse_gpus(fields["gpus"]),
            _parse_number(fields["weight"], int(fields["kind"] != CLAIM), _MOST_WEIGHT),
            bool(fields.get("high_priority", False)),
            _parse_number(fields.get("policy", 0)),
            shorten_command(map(str, fields.get("command", ()))),
            directory,
            _parse_number(fields["version"]),
        )
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


def _parse_owner(pid: Any, started: Any, runtime_dir: Any) -> Owner:  # noqa: ANN401
    if runtime_dir is not None and b"\0" in fsencode(runtime_dir):
        raise ValueError("no path")
    return Owner(_parse_number(pid), _parse_number(started), runtime_dir)


def _parse_gpus(given: list[Any]) -> tuple[GpuShare, ...]:
    shares = [
        GpuShare(_parse_number(gpu[0]), str(gpu[1]), _parse_number(gpu[2], 0)) for gpu in given
    ]
    if not shares:
        raise ValueError("no GPU")
    return tuple(shares)


def _parse_number(given: Any, least: int = -_MOST, most: int = _MOST) -> int:  # noqa: ANN401
    """Return a whole number that C can hold too. Any other means that the file is damaged."""
    number = int(given)
    if not least <= number <= most:
        raise ValueError("no such number")
    return number


def rewrite_record(state_dir: str, record: Record) -> None:
    """Replace the file of ``record``, unless it is another release's. The caller holds the lock.

    Raises:
        OSError: it cannot be written; it is unchanged then.
    """
    if record.version != VERSION:
        return
    # Not beside it: if a killed writer left a file in a container's directory, that would keep the
    # directory.
    temporary = f"{state_dir}/{FILE}.new"
    before = read_content(record.directory)
    write_atomically(f"{record.directory}/{FILE}", pack_record(record, before), temporary=temporary)


def read_notes(directory: str) -> tuple[str, ...]:
    """Return the remarks on the request, one sentence each, for people."""
    try:
        with open(cgpu_native.open_file(f"{directory}/{NOTES}"), "rb") as file:
            return tuple(file.read().decode("utf-8", "replace").splitlines())
    except (OSError, cgpu_native.NativeError):
        return ()


def pack_notes(notes: Iterable[str]) -> bytes:
    """Return the content of the file ``notes``, cut to its greatest length."""
    return "\n".join(notes)[:_LONGEST_NOTES].encode()


def pack_pod(pod: PodContainer) -> bytes:
    """Return the content of the file ``pod``.

    Raises:
        CgpuError: its names are longer than Kubernetes allows.
    """
    content = jsontext.dumps(pod._asdict()).encode()
    if len(content) > _LONGEST_POD:
        raise CgpuError(
            f"the pod's UID and names take {len(content)} bytes together, of {_LONGEST_POD} at most"
        )
    return content


def pod_of(directory: str) -> PodContainer | None:
    """Return the pod of the container; None if it has none.

    Raises:
        CgpuError: this process can open no more files, so the pod is not known.
    """
    try:
        with open(cgpu_native.open_file(f"{directory}/{POD}"), "rb") as file:
            fields = jsontext.loads(file.read().decode())
        return PodContainer(*(str(fields[name]) for name in PodContainer._fields))
    except OSError as error:
        refuse_exhausted(error, f"{directory}/{POD}")
        return None
    except (ValueError, TypeError, LookupError, cgpu_native.NativeError):
        return None


def guest_of(directory: str) -> int | None:
    """Return the user whose session it is; None if that is unknown, or is our own user.

    The ledger's owner does not show it, because a user may be able to give the ledger to others.

    Raises:
        CgpuError: this process can open no more files, so the user is not known.
    """
    try:
        with open(cgpu_native.open_file(f"{directory}/{GUEST}"), "rb") as file:
            return int(file.read())
    except FileNotFoundError:  # no guest's, or an earlier release's
        own = os.geteuid()
        return own if ledger_owner(directory) == own else None
    except OSError as error:
        refuse_exhausted(error, f"{directory}/{GUEST}")
        return None
    except (ValueError, cgpu_native.NativeError):
        return None


def ledger_owner(directory: str) -> int | None:
    """Return the user who owns the ledger; None if it is gone."""
    try:
        return os.stat(f"{directory}/{LEDGER}").st_uid
    except OSError:
        return None
