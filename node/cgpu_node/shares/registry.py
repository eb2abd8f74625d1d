"""The registry of shares: one directory for each container, session or claim.

A directory is built under a temporary name, and renamed when it is complete. The next admission
removes directories whose container has ended, and incomplete ones that a killed builder left.
"""

from __future__ import annotations

import os
from time import monotonic, thread_time

import cgpu_native
from cgpu_env.errors import CgpuError, printable, refuse_exhausted
from cgpu_env.request import MEM_DEV
from cgpu_native import policies
from cgpu_node.lockfile import LockFile
from cgpu_node.settings import rules
from cgpu_node.settings.config import make_defaults
from cgpu_node.shares import admission, compute, record
from cgpu_node.shares.liveness import (
    MOUNTS_CPU_S,
    find_ended,
    find_inhabited,
    is_alive,
    is_owned,
    start_time,
)
from cgpu_node.shares.record import Owner, Record, SessionUser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cgpu_env.request import Request
    from cgpu_node.facts.node import Node
    from cgpu_node.settings.rules import Rules
    from cgpu_node.shares.compute import ComputeShare
    from cgpu_node.shares.record import Kind, PodContainer

    Parts = dict[str, dict[str, ComputeShare]]  # of a GPU's containers
    # Directories to be removed if they still have this owner; None: the owner is not known.
    Gone = set[tuple[str, Owner | None]]

__all__ = ["Owner", "Registry"]

_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_ID_LENGTH = 64
# Folder modes. In the state directory of a server for all users, each user reaches what is theirs.
_PASSABLE, _GUESTS, _PRIVATE = 0o711, 0o710, 0o700
_REST_TIMES = 50  # as long as a pass over all processes that took too long: 2 % of a core


def checked_id(name: str) -> str:
    """Return ``name`` if it may name a directory.

    Raises:
        CgpuError: it may not.
    """
    fits = 0 < len(name) <= _ID_LENGTH and _ID_CHARACTERS.issuperset(name)
    if not fits or name.startswith("."):
        allowed = f"1 to {_ID_LENGTH} letters, digits, _ . or -, the first not a dot"
        raise CgpuError(f"container id '{printable(name)}': expected {allowed}")
    return name


class Registry:
    """The containers and sessions of the state directory ``state_dir`` (``paths.open_state``).

    ``patience``: the seconds to wait for the holder of the lock, which may be stopped or hang.
    """

    def __init__(self, state_dir: str, *, patience: float = 10.0) -> None:
        self.state_dir = state_dir
        self._patience = patience
        self._folder = f"{state_dir}/containers"
        self._rests_until = 0.0

    def admit(  # noqa: PLR0913, PLR0917 (what a record holds)
        self,
        name: str,
        kind: Kind,
        request: Request,
        node: Node,
        owner: Owner,
        command: Sequence[str],
        *,
        policy: int | None = None,
        guest: SessionUser | None = None,
        pod: PodContainer | None = None,
    ) -> str:
        """Give a container its share and make its directory.

        Args:
            name: the container's id; it comes from outside.
            kind: container, session or claim.
            request: what it asks for.
            node: the facts about the node.
            owner: who keeps it alive.
            command: its program and arguments, for people to read.
            policy: the compute policy that it brings along; None: the policy that its GPUs are
                under.
            guest: the user whose session it is, if that is not us.
            pod: its pod, and its name there; None: it has no pod.

        Returns:
            The path of the directory, with ``limits``, ``ledger`` and ``record.json``.

        Raises:
            CgpuError: there is no room, the id is bad, or it cannot be made; then nothing of it is
                left.
        """
        directory = f"{self._folder}/{checked_id(name)}"
        gone = self.find_gone()
        with self.lock(create=True):
            living = self._living_beside(name, gone)
            table = self._admit_request(request, living, node, policy, is_guest=guest is not None)
            entry = Record(
                id=name,
                kind=kind,
                owner=owner,
                gpus=request.gpus,
                weight=request.weight,
                high_priority=request.high_priority,
                policy=table[request.gpus[0].uuid].policy,
                command=record.shorten_command(command),
                directory=directory,
            )
            everyone = [*living, entry]
            parts = {uuid: compute.divide_time(uuid, everyone, its) for uuid, its in table.items()}
            beside = _pack_files(request.notes, pod, guest)
            _build_directory(entry, beside, node, table, parts, guest)
            compute.write_parts(living, parts)  # those of the others on its GPUs move
        return directory

    def _living_beside(self, name: str, gone: Gone) -> list[Record]:
        """Return the living containers, before a container ``name`` is made."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        os.chmod(self._folder, _PASSABLE)
        living = self.reap(gone)
        if any(other.id == name for other in living):
            raise CgpuError(f"container id {name}: there is one of that name already")
        return living

    def _admit_request(
        self,
        request: Request,
        living: list[Record],
        node: Node,
        policy: int | None,
        *,
        is_guest: bool,
    ) -> dict[str, Rules]:
        """Admit a request under the rules of its GPUs, and apply the policy that it brings along.

        A guest's request brings none, because that would hold for containers that come later.
        """
        uuids = [share.uuid for share in request.gpus]
        changes = rules.read_changes(self.state_dir)
        defaults = make_defaults(node.config, node.gpus)
        empty = [uuid for uuid in uuids if not admission.records_on_gpu(living, uuid)]
        now = {u: rules.resolve(u, changes, defaults, inhabited=u not in empty) for u in uuids}
        admission.check_request(request, living, node, now)
        if policy is not None:
            admission.check_policy(request, living, now, policy, is_guest=is_guest)
        brought = None if is_guest else policy
        if any([rules.bring_policy(changes, uuid, brought) for uuid in empty]):  # noqa: C419 (all of them)
            rules.write_changes(self.state_dir, changes)
        return {uuid: rules.resolve(uuid, changes, defaults, inhabited=True) for uuid in uuids}

    def remove(self, name: str) -> None:
        """Give back the share of ``name``. It is no error if there is none, and nothing is made.

        Raises:
            CgpuError: the id is bad, or the directory cannot be removed.
        """
        directory = f"{self._folder}/{checked_id(name)}"
        if os.path.isdir(directory):
            with self.lock():
                _remove_tree(directory)

    def give_back(self, name: str, pid: int, *, heir: int = 0) -> None:
        """Give back the share of ``name``, or give it to the process ``heir`` if that lives.

        If another container has taken the name meanwhile, its share stays.

        Args:
            name: the container's id.
            pid: the process that started the low-level runtime. The runtime failed to create the
                container, or keeps its state elsewhere than expected.
            heir: the container's first process, which keeps the share alive from now on.

        Raises:
            CgpuError: the id is bad, or the directory cannot be removed or changed.
        """
        directory = f"{self._folder}/{checked_id(name)}"
        if not os.path.isdir(directory):
            return
        with self.lock():
            entry, started = record.read(directory), start_time(heir)
            if entry is None:
                return
            if entry.owner.pid == pid and started is not None:
                owner = entry.owner._replace(pid=heir, start_time=started)
                record.rewrite_record(self.state_dir, entry._replace(owner=owner))
            elif entry.owner.pid == pid or not is_alive(entry):
                _remove_tree(directory)

    def list_records(self) -> list[Record]:
        """Return the living containers and sessions, in the order of their ids."""
        entries = [entry for _, entry in self._read_entries() if entry is not None]
        dead = find_ended(entries)
        return [entry for entry in entries if entry.directory not in dead]

    def _read_entries(self) -> Iterator[tuple[str, Record | None]]:
        """Yield each directory, and its record if that is complete."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        except OSError as error:
            refuse_exhausted(error, self._folder)
            raise
        for name in names:
            directory = f"{self._folder}/{name}"
            yield directory, None if name.startswith(".") else record.read(directory)

    def find_gone(self) -> Gone:
        """Return, for ``reap``, what has ended and only a pass over all processes finds.

        This takes a while, so call it without the lock. If it took too long, because there are too
        many mounts, the next pass of this registry comes later; the shares stay till then.

        If a record is one that no release can have written, its owner is not known. Then the
        directory stays as long as a process has its limits mounted.
        """
        if monotonic() < self._rests_until:
            return set()
        begun = thread_time()
        entries = [*self._read_entries()]
        records = [entry for _, entry in entries if entry is not None]
        damaged = [each for each, entry in entries if entry is None and _is_damaged(each)]
        dead = find_ended(records)
        found: Gone = {(each.directory, each.owner) for each in records if each.directory in dead}
        found.update((each, None) for each in {*damaged} - find_inhabited(damaged))
        spent = thread_time() - begun
        if spent > MOUNTS_CPU_S:
            self._rests_until = monotonic() + _REST_TIMES * spent
        return found

    def reap(self, gone: Gone) -> list[Record]:
        """Remove what is dead or half-made, and return what lives. The caller holds the lock.

        Args:
            gone: what ``find_gone`` found before the lock was taken; what has ended since counts as
                alive.
        """
        living = []
        for directory, entry in self._read_entries():
            owner = entry.owner if entry is not None else None
            if (directory, owner) not in gone:
                if entry is not None and (entry.kind in record.OUTLIVING or is_owned(entry)):
                    living.append(entry)
                    continue
                if entry is None and _is_damaged(directory):
                    continue
            try:
                _remove_tree(directory)
            except OSError:
                continue  # what cannot be removed has no share, and stops no admission
        return living

    def lock(self, *, create: bool = False) -> Lock:
        """Return the lock under which containers come and go: ``with registry.lock(): ...``.

        Args:
            create: whether the lock file may be made. When a share is given back, the file exists.
        """
        what = f"state directory {self.state_dir}"
        return Lock(f"{self.state_dir}/lock", what, patience=self._patience, create=create)


class Lock(LockFile):
    """The state directory's lock; errors of the file system become sentences."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Give it back."""
        super().__exit__(kind, error, trace)
        if isinstance(error, OSError):
            raise self.to_cgpu_error(error) from None


def _is_damaged(directory: str) -> bool:
    """Whether there is a record that cannot be read. Without one, the directory is incomplete."""
    name = os.path.basename(directory)
    return not name.startswith(".") and os.path.lexists(f"{directory}/{record.FILE}")


def _pack_files(
    notes: tuple[str, ...], pod: PodContainer | None, guest: SessionUser | None
) -> dict[str, bytes]:
    """Return the files beside a record, by name."""
    files = {
        record.NOTES: record.pack_notes(notes),
        record.POD: record.pack_pod(pod) if pod else b"",
        record.GUEST: b"" if guest is None else b"%d" % guest.uid,
    }
    return {name: content for name, content in files.items() if content}


def _build_directory(  # noqa: PLR0913, PLR0917 (what a directory holds)
    entry: Record,
    beside: Mapping[str, bytes],
    node: Node,
    table: dict[str, Rules],
    parts: Parts,
    guest: SessionUser | None,
) -> None:
    folder, name = os.path.split(entry.directory)
    temporary = f"{folder}/.{name}"
    try:
        os.mkdir(temporary, _PRIVATE)
        limits = _pack_limits(
            entry, node, table, parts, is_odd=MEM_DEV.encode() in beside.get(record.NOTES, b"")
        )
        _write_file(f"{temporary}/{record.LIMITS}", limits, 0o644)
        _write_file(f"{temporary}/{record.FILE}", record.pack_record(entry), 0o600)
        for name, content in beside.items():
            _write_file(f"{temporary}/{name}", content, 0o600)
        cgpu_native.create_ledger(temporary, record.LEDGER)
        if guest is not None:
            # only the guest's group can enter the directory, and only the guest may write to the
            # ledger
            os.chmod(f"{temporary}/{record.LEDGER}", 0o600)
            os.chown(f"{temporary}/{record.LEDGER}", guest.uid, -1)
            os.chown(temporary, -1, guest.gid)
            os.chmod(temporary, _GUESTS)
        os.rename(temporary, entry.directory)
    except BaseException:
        _remove_tree(temporary)
        raise


def _write_file(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)


def _pack_limits(
    entry: Record, node: Node, table: dict[str, Rules], parts: Parts, *, is_odd: bool
) -> bytes:
    facts = {gpu.uuid: gpu for gpu in node.gpus}
    gpus = [
        cgpu_native.LimitsGpu(
            uuid=share.uuid,
            index=share.index,
            cap_bytes=share.cap_bytes,
            total_bytes=facts[share.uuid].total_bytes,
            context_bytes=facts[share.uuid].context_bytes,
            gate=policies.initial_gate(table[share.uuid].policy),
            **parts[share.uuid][entry.id]._asdict(),
        )
        for share in entry.gpus
    ]
    return cgpu_native.pack_limits(
        entry.id,
        gpus,
        weight=entry.weight,
        high_priority=entry.high_priority,
        policy=entry.policy,
        flags=cgpu_native.MISSTATED * (is_odd and entry.kind == "container"),
    )


def _remove_tree(directory: str) -> None:
    """Remove a directory with all that is in it. Links are removed, not followed.

    A poststop hook, which waits for no lock, may be removing the same directory.
    """
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in files:
            _remove_path(os.unlink, f"{folder}/{name}")
        for name in folders:
            path = f"{folder}/{name}"
            _remove_path(os.unlink if os.path.islink(path) else os.rmdir, path)
    _remove_path(os.rmdir, directory)


def _remove_path(remove: Callable[[str], None], path: str) -> None:
    try:
        remove(path)
    except FileNotFoundError:
        return  # gone meanwhile
