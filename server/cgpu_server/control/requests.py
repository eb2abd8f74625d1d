"""The requests that the server answers; other users see only their own sessions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cgpu_env import CgpuError
from cgpu_env.errors import nearest, shown
from cgpu_node.facts import driver
from cgpu_node.facts.node import load_node
from cgpu_node.settings import rules
from cgpu_node.shares import target
from cgpu_node.shares.admission import free_weight, on_gpu
from cgpu_node.shares.change import find
from cgpu_node.shares.names import names_of
from cgpu_node.view.usage import located, usage_of, use_of
from cgpu_node.view.view import ppm
from cgpu_server.control.connections import DESCRIPTOR
from cgpu_server.control.guests import Guests
from cgpu_server.state import changes
from cgpu_server.tree.nodes import (
    COMMON,
    NODE_SETTINGS,
    Folder,
    MissingError,
    Tree,
    major,
    name_of,
    releases,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cgpu_env import GpuShare
    from cgpu_node.facts.node import NodeGpu
    from cgpu_node.shares.record import Record
    from cgpu_node.view.view import GpuUse, Use
    from cgpu_server.audit.auditor import Audit
    from cgpu_server.control.connections import Peer
    from cgpu_server.state.server_state import ServerState
    from cgpu_server.tree.filesystem import ControlTree

_SHORT_ID = 12
_WHOLE_NODE, _EVERY_GPU = "node", "all"
_MASTERS = ("tree", "mounted", "stop")  # for root and the owner of the state directory
_STRANGER = "you are neither root nor the owner of the state directory"
_EACH_HAS = (
    f"a GPU has {', '.join(changes.GPU_KEYS)}; a container has"
    f" {', '.join(changes.CONTAINER_KEYS)}; the {_WHOLE_NODE} has {', '.join(NODE_SETTINGS)}"
)


class Requests:
    """Answers requests by their name.

    Args:
        state: of the server.
        audit: of the same containers.
        tree: the nodes of the control tree.
        mounted: the file system that shows them, if the server has one.
        stop: ends the server.
    """

    def __init__(
        self,
        state: ServerState,
        audit: Audit,
        tree: Tree,
        mounted: ControlTree | None,
        stop: Callable[[], None],
    ) -> None:
        self._state, self._audit, self._nodes = state, audit, tree
        self._mounted, self._end = mounted, stop
        self._table: dict[str, Callable[[dict[str, Any], Tree], dict[str, Any]]] = {
            "status": self._status,
            "usage": self._usage,
            "set": self._set,
            "ls": self._ls,
            "get": self._get,
            "tree": self._open_tree,
            "mounted": self._serve_tree,
            "stop": self._stop,
        }
        self._guests = Guests(state)

    def handle(self, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        """The answer.

        Raises:
            CgpuError: one sentence that says why the request is refused.
        """
        name = request.get("request")
        if name == "admit":
            return self._guests.admit(request, peer)
        if name in _MASTERS and not peer.is_trusted:
            raise CgpuError(_STRANGER)
        given = request.get("driver_dir")
        if isinstance(given, str):
            self._check_driver(given, peer, is_only_shown=name == "usage")
        answer = self._table.get(name) if isinstance(name, str) else None
        if answer is None:
            known = ", ".join((*self._table, "admit"))
            raise CgpuError(f"request '{shown(str(name))}': expected one of {known}")
        return answer(request, self._nodes.seen_by(None if peer.is_trusted else peer.uid))

    def _check_driver(self, given: str, peer: Peer, *, is_only_shown: bool) -> None:
        """Adopt the driver that a request names; refuse the request if we use another.

        A guest's path is only compared as text, because resolving it could hang root. A request
        that only shows GPUs is answered by the driver in use.
        """
        real = os.path.realpath(given) if peer.is_trusted else given
        if real == self._state.own_driver():
            return
        if peer.is_trusted:
            self._state.adopt_driver(given)
        own = self._state.own_driver()
        if own not in (None, real) and not is_only_shown:
            raise driver.another(self._state.registry.state_dir, own, given)

    def _ls(self, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
        self._state.refresh()
        path, _ = _located(request, tree)
        if request.get("recursive"):
            return {"listing": dict(_walk(tree, path))}
        return _listed(tree, path)

    def _get(self, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
        self._state.refresh()
        path, entry = _located(request, tree)
        if entry is not None and len(entry.gpus) > 1 and path.rpartition("/")[2] not in COMMON:
            node = path.partition("/")[2]
            forms = " or ".join(f"{share.index}/{node}" for share in entry.gpus)
            asked = shown(str(request["path"]))
            raise CgpuError(f"'{asked}' differs between its GPUs: cgpu get {forms}")
        if not isinstance(tree.find(path), Folder):
            return {"path": path, "value": tree.read(path).rstrip("\n")}
        below = {name: f"{path}/{name}" for name in tree.names(path)}
        files = {n: each for n, each in below.items() if not isinstance(tree.find(each), Folder)}
        values = {name: tree.read(each).rstrip("\n") for name, each in files.items()}
        return {"path": path, "values": values}

    def _status(self, _: dict[str, Any], tree: Tree) -> dict[str, Any]:
        state = self._state
        state.refresh()
        figures = state.arbiters.figures()
        gpus, audited = [], self._audit.last.readable
        for gpu in self._state.gpus():
            beside = on_gpu(state.records, gpu.uuid)
            its = state.rules_of(gpu.uuid)
            own = figures.get(gpu.uuid)
            gpus.append(
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    **its._asdict(),
                    "free_weight": free_weight((each.weight for each in beside), its.max_inst),
                    "containers": len(beside),
                    "major": major(gpu),
                    "audited": audited.get(gpu.uuid),
                    "figures": own and own._asdict(),
                }
            )
        visible = {record.id for record in tree.records}
        uses = self._audit.utilisation.estimated(map(use_of, state.records))
        theirs = [use for use in uses if use.id in visible]
        size = rules.default_memsize(state.registry.state_dir, state.config.default_memsize)
        return {
            "pid": os.getpid(),
            "node": {"default_memsize": size, **releases(state.records)},
            "gpus": gpus,
            "containers": [*map(_container, located(theirs))],
        }

    def _usage(self, _: dict[str, Any], tree: Tree) -> dict[str, Any]:
        """What ``cgpu-smi`` shows: a guest's own sessions one by one, and all others as one sum."""
        state = self._state
        state.refresh()
        node = load_node(state.registry.state_dir, state.driver_dir)
        visible = {record.id for record in tree.records}
        uses = self._audit.utilisation.estimated(map(use_of, state.records))
        seen = None if tree.is_for_all else visible
        whole = usage_of(node, uses, state.rules_of, seen, self._audit.utilisation.percent())
        return whole._replace(uses=tuple(located(whole.uses))).as_json()

    def _set(self, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
        word, values = request.get("target"), request.get("values")
        if not isinstance(word, str) or not isinstance(values, dict) or not values:
            raise CgpuError("set: expected a target and values")
        _check_names(values)
        state = self._state
        notes: tuple[str, ...] = ()
        if values.keys() <= set(changes.CONTAINER_KEYS):
            state.refresh()
            id_, uuid = self._container(word, tree)
            notes = changes.set_container(state, id_, values, uuid)
        elif not tree.is_for_all:
            raise CgpuError(_STRANGER)
        elif values.keys() <= set(changes.GPU_KEYS) and word != _WHOLE_NODE:
            changes.set_gpus(state, self._gpus(word), values)
        elif values.keys() <= set(NODE_SETTINGS) and word == _WHOLE_NODE:
            for name, value in values.items():
                tree.write(name, str(value))
        else:
            raise CgpuError(
                f"set {shown(word)} {', '.join(values)}: {_EACH_HAS}",
                hint=f"cgpu set {_EVERY_GPU} changes every GPU" if word == _WHOLE_NODE else "",
            )
        return {"notes": notes}

    def _open_tree(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        if self._mounted is None:
            raise CgpuError("this server shows no control tree")
        return {DESCRIPTOR: self._mounted.open_device()}

    def _serve_tree(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        if self._mounted is not None:
            self._mounted.start_opened()
        return {}

    def _stop(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        self._end()
        return {}

    def _container(self, word: str, tree: Tree) -> tuple[str, str | None]:
        """The id of the container that ``word`` means, and the UUID if it is GPU/CONTAINER.

        A pod's name has slashes too.
        """
        gpu, slash, name = word.partition("/")
        names = names_of(tree.records)
        whole = target.containers(word, names)
        if slash and whole and target.containers(name, names):
            raise CgpuError(
                f"'{shown(word)}' may be container {shown(name)!r} on GPU {shown(gpu)}, and is the"
                f" name of {whole[0][:_SHORT_ID]}: name one by its id"
            )
        if not slash or whole:
            return find(tree.records, word).id, None
        uuid = self._gpu(gpu).uuid
        return find(tree.records, name).id, uuid

    def _gpus(self, word: str) -> list[GpuShare | NodeGpu]:
        every = self._state.gpus() if word == _EVERY_GPU else []
        return every or [self._gpu(word)]

    def _gpu(self, word: str) -> GpuShare | NodeGpu:
        there = {gpu.uuid: gpu for gpu in self._state.gpus()}
        return there[target.gpu(word, {uuid: gpu.index for uuid, gpu in there.items()})]


def _check_names(values: dict[str, Any]) -> None:
    """Refuse a setting that does not exist."""
    known = (*changes.GPU_KEYS, *changes.CONTAINER_KEYS, *NODE_SETTINGS)
    for name in values:
        if name not in known:
            near = nearest(name, known)
            meant = f"did you mean {near}?" if near else _EACH_HAS
            raise CgpuError(f"set {shown(name)}: there is no such setting: {meant}")


def _located(request: dict[str, Any], tree: Tree) -> tuple[str, Record | None]:
    """The path of a request; a container's name or id means its folder on its first GPU.

    Returns:
        The path, and the container if it was named without a GPU.

    Raises:
        CgpuError: it means nothing, or several containers.
    """
    path = "/".join(filter(None, str(request.get("path", "")).split("/")))
    try:
        tree.find(path)
    except MissingError:
        names = names_of(tree.records)
        gpus = {gpu.uuid: gpu.index for gpu in tree.state.gpus()}
        for word, node in ((path, ""), path.rpartition("/")[::2]):  # a pod's name has slashes too
            if target.containers(word, names) and not target.gpus(word, gpus):
                entry = find(tree.records, word)
                folder = f"{entry.gpus[0].index}/{name_of(entry, tree.records)}"
                return f"{folder}/{node}".rstrip("/"), entry
        raise
    return path, None


def _walk(tree: Tree, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The folder at ``path`` and all below it; a folder comes before what is in it."""
    listed = _listed(tree, path)
    yield path, listed
    for name in listed["folders"]:
        yield from _walk(tree, f"{path}/{name}" if path else name)


def _listed(tree: Tree, path: str) -> dict[str, Any]:
    names = tree.names(path)
    folders = [name for name in names if isinstance(tree.find(f"{path}/{name}"), Folder)]
    return {"names": names, "folders": folders}


def _container(use: Use) -> dict[str, Any]:
    """A container in the words of ``cgpu get --json``."""
    return {
        "id": use.id,
        "kind": use.kind,
        "name": use.name,
        "weight": use.weight,
        "high_priority": use.high_priority,
        "mark": next((gpu.mark for gpu in use.gpus), None),
        "gpus": [
            {"index": gpu.index, "uuid": gpu.uuid, **_memory(gpu), **_compute(gpu)}
            for gpu in use.gpus
        ],
    }


def _memory(gpu: GpuUse) -> dict[str, Any]:
    """The container's cap, what is free of it, and who of the host's processes holds the rest."""
    return {
        "memsize": gpu.memory_bytes,
        "free_bytes": max(0, gpu.memory_bytes - gpu.used_bytes),
        "promised_bytes": gpu.promised_bytes,
        "outside_bytes": gpu.outside_bytes,
        "processes": [process._asdict() for process in gpu.processes],
    }


def _compute(gpu: GpuUse) -> dict[str, Any]:
    its = gpu.compute
    estimate = its.estimated_percent if its else None
    return {
        "limit_ppm": ppm(its and its.limit_percent),
        "measured_ppm": ppm(its and its.measured_percent),
        "estimated_ppm": None if estimate is None else ppm(estimate),
        "charged_ns": its.charged_ns if its else 0,
        "share_ppm": ppm(its and its.share_percent),
        "metered": its is not None and its.measured_percent is not None,
        "heartbeat_ns": its.heartbeat_ns if its else 0,
    }
