"""The nodes of the control tree, for the file system and for the socket.

Names and formats are those of cGPU's ``/proc/cgpu_km``. Each kind of folder has a table of nodes,
with a function that reads each node, and one that writes it if it can be written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cgpu_native
from cgpu_env import CgpuError, GpuShare, version
from cgpu_env.errors import printable
from cgpu_env.values import LARGEST_BYTES, parse_integer
from cgpu_node import installation
from cgpu_node.facts.node import NodeGpu
from cgpu_node.settings import rules
from cgpu_node.shares import target
from cgpu_node.shares.admission import free_weight, records_on_gpu
from cgpu_node.shares.change import change_default, change_gpus
from cgpu_node.shares.names import names_of
from cgpu_node.shares.record import Record, ledger_owner
from cgpu_node.view.usage import locate_processes, use_of
from cgpu_node.view.view import Use
from cgpu_server.state import changes
from cgpu_server.state.server_state import ServerState

_ID_WIDTH = 12
_REAP, _RESTART, _BACK = "reap", "1", "back"


class MissingError(CgpuError):
    """No node has this path."""


class ReadOnlyError(CgpuError):
    """The node can only be read."""


class Folder(NamedTuple):
    """A folder: that of the node, of a GPU, or of a container on a GPU."""

    gpu: GpuShare | NodeGpu | None = None
    record: Record | None = None


class TreeFile(NamedTuple):
    """A file of the tree. ``write`` is None if the file can only be read."""

    read: Callable[[Tree, Folder], str]
    write: Callable[[Tree, Folder, str], object] | None = None


class Tree:
    """The tree of one server. Any thread may read it; only the server's thread may write.

    Args:
        state: the server's state.
        restart: replaces the server by one of the installed release.
        uid: the user who sees the tree, with that user's sessions only; None: a user who may do
            all.

    Attributes:
        state: the server's state.
        restart: replaces the server by one of the installed release.
    """

    def __init__(
        self, state: ServerState, restart: Callable[[], None], uid: int | None = None
    ) -> None:
        self.state, self.restart, self._uid = state, restart, uid

    def seen_by(self, uid: int | None) -> Tree:
        """Return the tree as this user sees it; None: as a user who may do all."""
        return Tree(self.state, self.restart, uid)

    @property
    def is_for_all(self) -> bool:
        """Whether the user may change what concerns other users."""
        return self._uid is None

    @property
    def records(self) -> list[Record]:
        """Return the containers and sessions that the user sees."""
        everyone = self.state.records
        return [each for each in everyone if self.is_for_all or find_owner(each) == self._uid]

    def find(self, path: str) -> Folder | TreeFile:
        """Return the folder or file at ``path``, such as ``0/policy``.

        Raises:
            MissingError: there is none.
        """
        return self._find_entry(_split_path(path))[1]

    def list_names(self, path: str) -> list[str]:
        """Return the names in the folder at ``path``, folders first.

        Raises:
            MissingError: there is no such folder.
        """
        folder = self.find(path)
        if isinstance(folder, TreeFile):
            raise MissingError(f"'{printable(path)}': not a folder")
        return [*(name for name, _ in self._list_folders(folder)), *_select_table(folder)]

    def read(self, path: str) -> str:
        """Return the content of the file at ``path``, with a newline at its end.

        Raises:
            MissingError: there is no such file.
        """
        folder, node = self._find_entry(_split_path(path))
        if isinstance(node, Folder):
            raise MissingError(f"'{printable(path)}': a folder")
        return f"{node.read(self, folder)}\n"

    def write(self, path: str, text: str) -> None:
        """Write ``text`` to the file at ``path``. It is in force when this returns.

        Raises:
            MissingError: there is no such file.
            ReadOnlyError: it can only be read.
            CgpuError: the value is refused; one sentence says what is allowed.
        """
        folder, node = self._find_entry(_split_path(path))
        if isinstance(node, Folder):
            raise MissingError(f"'{printable(path)}': a folder")
        if node.write is None:
            raise ReadOnlyError(f"{printable(path)}: can only be read")
        if not self.is_for_all and folder.record is None:
            raise ReadOnlyError(f"{printable(path)}: you are neither root nor the owner")
        node.write(self, folder, text.strip())

    def _find_entry(self, words: list[str]) -> tuple[Folder, Folder | TreeFile]:
        folder = Folder()
        for depth, word in enumerate(words):
            below = dict(self._list_folders(folder))
            if word in below:
                folder = below[word]
            elif word in _select_table(folder) and depth == len(words) - 1:
                return folder, _select_table(folder)[word]
            elif (meant := self._match_folder(folder, word)) is not None:
                folder = meant
            else:
                there = " ".join(["cgpu ls", *filter(None, ["/".join(words[:depth])])])
                raise MissingError(
                    f"'{printable('/'.join(words))}': no such node: {printable(there)} lists what"
                    " is there"
                )
        return folder, folder

    def _match_folder(self, folder: Folder, word: str) -> Folder | None:
        """Return the folder in ``folder`` that ``word`` means, such as a container's name."""
        if folder.record is not None:
            return None
        if folder.gpu is None:
            gpus = {gpu.uuid: gpu for gpu in self.state.list_gpus()}
            uuids = target.match_gpus(word, {uuid: gpu.index for uuid, gpu in gpus.items()})
            return Folder(gpus[uuids[0]]) if len(uuids) == 1 else None
        records = {entry.id: entry for entry in records_on_gpu(self.records, folder.gpu.uuid)}
        names = names_of(records.values())
        if not target.match_containers(word, names):
            return None
        try:
            return Folder(folder.gpu, records[target.find_container(word, names)])
        except CgpuError as error:  # it means more than one
            raise MissingError(str(error)) from None

    def _list_folders(self, folder: Folder) -> list[tuple[str, Folder]]:
        """Return the folders in a folder, by name."""
        gpu = folder.gpu
        if folder.record is not None:
            return []
        if gpu is None:
            return [(str(each.index), Folder(each)) for each in self.state.list_gpus()]
        records = records_on_gpu(self.records, gpu.uuid)
        return [(name_of(record, records), Folder(gpu, record)) for record in records]


def name_of(record: Record, beside: list[Record]) -> str:
    """Return a container's folder: 12 characters of its id, or all if others share these."""
    short = record.id[:_ID_WIDTH]
    same = [other for other in beside if other.id.startswith(short)]
    return short if len(same) == 1 else record.id


def find_owner(record: Record) -> int | None:
    """Return the user whose session it is; for a container or claim, the server's user."""
    if record.kind != "session":  # a container's root can give the ledger to anybody
        return os.geteuid()
    return ledger_owner(record.directory)


def read_major(gpu: GpuShare | NodeGpu) -> int:
    """Return the major number of the GPU's device file; 0 if there is none."""
    for node in getattr(gpu, "device_nodes", ()):
        with contextlib.suppress(OSError):
            return os.major(os.stat(node.host).st_rdev)
    return 0


def _read_use(folder: Folder) -> Use:
    """Return the container's use of this GPU alone."""
    use, uuid = use_of(_require_record(folder)), _require_gpu(folder).uuid
    return use._replace(gpus=tuple(gpu for gpu in use.gpus if gpu.uuid == uuid))


def _read_cap(folder: Folder) -> int:
    (gpu,) = _read_use(folder).gpus
    return gpu.cap_bytes


def _split_path(path: str) -> list[str]:
    return [word for word in path.split("/") if word]


def _require_gpu(folder: Folder) -> GpuShare | NodeGpu:
    assert folder.gpu is not None  # noqa: S101 (only such folders have this node)
    return folder.gpu


def _require_record(folder: Folder) -> Record:
    assert folder.record is not None  # noqa: S101
    return folder.record


def _parse_value(text: str) -> int | str:
    """Return the number that was written; if it is none, the text, which the check then refuses."""
    number = parse_integer(text, LARGEST_BYTES)
    return printable(text) if number is None else number


def _list_instances(tree: Tree, _: Folder) -> str:
    lines = []
    for record in tree.records:
        indices = " ".join(str(share.index) for share in record.gpus)
        lines.append(f"{name_of(record, tree.records)} {indices}")
    return "\n".join(lines)


def _reap_ended(tree: Tree, _: Folder, text: str) -> None:
    if text != _REAP:
        raise CgpuError(
            f"inst_ctl={printable(text)}: expected {_REAP}, to let go of what has ended"
        )
    tree.state.refresh()


def _write_upgrade(tree: Tree, _: Folder, text: str) -> None:
    if text == _BACK:
        raise CgpuError("upgrade=back: the server cannot do that: run cgpu upgrade --back as root")
    if text != _RESTART:
        raise CgpuError(
            f"upgrade={printable(text)}: expected {_RESTART}, to run the server that is installed"
            " now"
        )
    tree.restart()


def read_releases(records: Sequence[Record]) -> dict[str, Any]:
    """Return the running release, the installed one, and the one to go back to.

    ``older`` counts the containers that another release than the running one made.
    """
    own = installation.own_environment()
    back = installation.find_installation(own).previous_environment if own else None
    heads = [cgpu_native.read_head(f"{record.directory}/limits") for record in records]
    return {
        "version": version.VERSION,
        "installed": installation.installed_release(),
        "back": back and installation.release_of(back),
        "older": sum(head is not None and head.release != version.VERSION for head in heads),
    }


def _format_releases(tree: Tree, _: Folder) -> str:
    found = read_releases(tree.state.records)
    return "\n".join(
        [
            f"Running: {found['version']}",
            f"Installed: {found['installed']}",
            f"Back: {found['back'] or 'none'}",
            f"Older: {found['older']}",
        ]
    )


def _format_meminfo(_: Tree, folder: Folder) -> str:
    ((gpu,),) = (use.gpus for use in locate_processes([_read_use(folder)]))
    lines = [f"PID: {process.pid} Mem: {process.used_bytes}" for process in gpu.processes]
    return "\n".join([f"Free: {gpu.free_bytes}", *lines])


def _read_default(tree: Tree, _: Folder) -> str:
    state = tree.state
    return str(rules.default_memsize(state.registry.state_dir, state.config.default_memsize))


def _write_default(tree: Tree, _: Folder, text: str) -> None:
    def apply_change(living: list[Record]) -> list[Record]:
        change_default(tree.state.registry, _parse_value(text))
        return living

    tree.state.refresh(apply_change)


def _rule_file(name: str) -> TreeFile:
    def write(tree: Tree, folder: Folder, text: str) -> None:
        state, gpus, values = tree.state, [_require_gpu(folder)], {name: _parse_value(text)}
        state.refresh(
            lambda living: change_gpus(state.registry, living, gpus, values, state.defaults)
        )

    return TreeFile(
        lambda tree, folder: str(getattr(tree.state.rules_of(_require_gpu(folder).uuid), name)),
        write,
    )


def _term_file(name: str, read: Callable[[Folder], int]) -> TreeFile:
    def write(tree: Tree, folder: Folder, text: str) -> None:
        entry, uuid = _require_record(folder), _require_gpu(folder).uuid
        values = {name: _parse_value(text)}

        def apply_change(living: list[Record]) -> list[Record]:
            for still in living:
                if (still.directory, still.owner) == (entry.directory, entry.owner):
                    return changes.set_container(tree.state, living, still, values, uuid)[0]
            raise CgpuError(f"{name}={printable(text)}: container {printable(entry.id)} has ended")

        tree.state.refresh(apply_change)

    return TreeFile(lambda _, folder: str(read(folder)), write)


def _free_weight(tree: Tree, folder: Folder) -> str:
    uuid = _require_gpu(folder).uuid
    weights = (record.weight for record in records_on_gpu(tree.state.records, uuid))
    return str(free_weight(weights, tree.state.rules_of(uuid).max_inst))


_NODE = {
    "default_memsize": TreeFile(_read_default, _write_default),
    "inst_ctl": TreeFile(_list_instances, _reap_ended),
    "upgrade": TreeFile(_format_releases, _write_upgrade),
    "version": TreeFile(lambda *_: version.VERSION),
}
NODE_SETTINGS = tuple(name for name, node in _NODE.items() if node.write)
_GPU = {
    "free_weight": TreeFile(_free_weight),
    "major": TreeFile(lambda _, folder: str(read_major(_require_gpu(folder)))),
    **{name: _rule_file(name) for name in rules.RANGES},
}
_CONTAINER = {
    "highprio": _term_file("highprio", lambda folder: int(_require_record(folder).high_priority)),
    "id": TreeFile(lambda _, folder: _require_record(folder).id),
    "memsize": _term_file("memsize", _read_cap),
    "meminfo": TreeFile(_format_meminfo),
    "weight": _term_file("weight", lambda folder: _require_record(folder).weight),
}


COMMON = ("highprio", "id", "weight")  # the same on each GPU of a container


def _select_table(folder: Folder) -> dict[str, TreeFile]:
    if folder.record is not None:
        return _CONTAINER
    return _NODE if folder.gpu is None else _GPU
