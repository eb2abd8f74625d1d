"""The requests that the server answers. Users other than root see only their own sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cgpu_env import CgpuError
from cgpu_env.errors import printable
from cgpu_node.facts import driver
from cgpu_node.settings import rules
from cgpu_node.shares import target
from cgpu_node.shares.admission import free_weight, records_on_gpu
from cgpu_node.shares.names import names_of
from cgpu_node.shares.record import Record
from cgpu_node.view.usage import locate_processes
from cgpu_node.view.view import GpuUse, Use
from cgpu_server.audit.auditor import Audit
from cgpu_server.control.connections import DESCRIPTOR, Peer
from cgpu_server.control.guests import admit_guest
from cgpu_server.control.set_request import STRANGER, set_values
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.filesystem import ControlTree
from cgpu_server.tree.nodes import (
    COMMON,
    Folder,
    MissingError,
    Tree,
    name_of,
    read_major,
    read_releases,
)

_PPM_OF_A_PERCENT = 10_000
_MASTERS = ("tree", "mounted", "stop")  # for root and the owner of the state directory


class Requests:
    """Answers requests by their name.

    Args:
        state: the server's state.
        audit: the audit of its containers.
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
            "status": self._answer_status,
            "usage": self._answer_usage,
            "set": partial(set_values, state),
            "ls": self._answer_ls,
            "get": self._answer_get,
            "tree": self._open_tree,
            "mounted": self._serve_tree,
            "stop": self._answer_stop,
        }

    def answer(self, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        """Return the answer.

        Raises:
            CgpuError: the request is refused; one sentence says why.
        """
        name = request.get("request")
        if name == "admit":
            return admit_guest(self._state, request, peer)
        if name in _MASTERS and not peer.is_trusted:
            raise CgpuError(STRANGER)
        given = request.get("driver_dir")
        if isinstance(given, str):
            self._check_driver(given, peer, is_only_shown=name == "usage")
        answer = self._table.get(name) if isinstance(name, str) else None
        if answer is None:
            known = ", ".join((*self._table, "admit"))
            raise CgpuError(f"request '{printable(str(name))}': expected one of {known}")
        return answer(request, self._nodes.seen_by(None if peer.is_trusted else peer.uid))

    def _check_driver(self, given: str, peer: Peer, *, is_only_shown: bool) -> None:
        """Adopt the driver that a request names, or refuse the request if another one is in use.

        A guest's path is only compared as text, because root could hang when resolving it. A
        request that only shows GPUs is answered with the driver in use.
        """
        real = os.path.realpath(given) if peer.is_trusted else given
        if real == self._state.own_driver():
            return
        if peer.is_trusted:
            self._state.adopt_driver(given)
        own = self._state.own_driver()
        if own not in (None, real) and not is_only_shown:
            raise driver.make_other_driver_error(self._state.registry.state_dir, own, given)

    def _answer_ls(self, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
        self._state.refresh()
        path, _ = _resolve_path(request, tree)
        if request.get("recursive"):
            return {"listing": dict(_walk_folders(tree, path))}
        return _list_folder(tree, path)

    def _answer_get(self, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
        self._state.refresh()
        path, entry = _resolve_path(request, tree)
        if entry is not None and len(entry.gpus) > 1 and path.rpartition("/")[2] not in COMMON:
            node = path.partition("/")[2]
            forms = " or ".join(f"{share.index}/{node}" for share in entry.gpus)
            asked = printable(str(request["path"]))
            raise CgpuError(f"'{asked}' differs between its GPUs: cgpu get {forms}")
        if not isinstance(tree.find(path), Folder):
            return {"path": path, "value": tree.read(path).rstrip("\n")}
        below = {name: f"{path}/{name}" for name in tree.list_names(path)}
        files = {n: each for n, each in below.items() if not isinstance(tree.find(each), Folder)}
        values = {name: tree.read(each).rstrip("\n") for name, each in files.items()}
        return {"path": path, "values": values}

    def _answer_status(self, _: dict[str, Any], tree: Tree) -> dict[str, Any]:
        state = self._state
        state.refresh()
        figures = state.arbiters.read_figures()
        gpus, audited = [], self._audit.last.readable
        for gpu in self._state.list_gpus():
            beside = records_on_gpu(state.records, gpu.uuid)
            its = state.rules_of(gpu.uuid)
            own = figures.get(gpu.uuid)
            gpus.append(
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    **its._asdict(),
                    "free_weight": free_weight((each.weight for each in beside), its.max_inst),
                    "containers": len(beside),
                    "major": read_major(gpu),
                    "audited": audited.get(gpu.uuid),
                    "figures": own and own._asdict(),
                }
            )
        visible = {record.id for record in tree.records}
        shown_one_by_one = self._audit.describe(state.find_node(), visible).uses
        size = rules.default_memsize(state.registry.state_dir, state.config.default_memsize)
        return {
            "pid": os.getpid(),
            "node": {"default_memsize": size, **read_releases(state.records)},
            "gpus": gpus,
            "containers": [*map(_container_to_json, locate_processes(shown_one_by_one))],
        }

    def _answer_usage(self, _: dict[str, Any], tree: Tree) -> dict[str, Any]:
        """Return what ``cgpu-smi`` shows: a guest's own sessions, and all others as one sum."""
        state = self._state
        state.refresh()
        node = state.known_node()
        visible = None if tree.is_for_all else {record.id for record in tree.records}
        whole = self._audit.describe(node, visible)
        return whole._replace(uses=tuple(locate_processes(whole.uses))).as_json()

    def _open_tree(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        if self._mounted is None:
            raise CgpuError("this server shows no control tree")
        return {DESCRIPTOR: self._mounted.open_device()}

    def _serve_tree(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        if self._mounted is not None:
            self._mounted.start_opened()
        return {}

    def _answer_stop(self, _: dict[str, Any], __: Tree) -> dict[str, Any]:
        self._end()
        return {}


def _resolve_path(request: dict[str, Any], tree: Tree) -> tuple[str, Record | None]:
    """Return the path of a request. A container's name or id means its folder on its first GPU.

    Returns:
        The path, and the container if it was named without a GPU.

    Raises:
        CgpuError: the word means nothing, or several containers.
    """
    path = "/".join(filter(None, str(request.get("path", "")).split("/")))
    try:
        tree.find(path)
    except MissingError:
        names = names_of(tree.records)
        gpus = {gpu.uuid: gpu.index for gpu in tree.state.list_gpus()}
        for word, node in ((path, ""), path.rpartition("/")[::2]):  # a pod's name has slashes too
            if target.match_containers(word, names) and not target.match_gpus(word, gpus):
                id_ = target.find_container(word, names)
                (entry,) = (each for each in tree.records if each.id == id_)
                folder = f"{entry.gpus[0].index}/{name_of(entry, tree.records)}"
                return f"{folder}/{node}".rstrip("/"), entry
        raise
    return path, None


def _walk_folders(tree: Tree, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folder at ``path`` and all below it, each folder before its content."""
    listed = _list_folder(tree, path)
    yield path, listed
    for name in listed["folders"]:
        yield from _walk_folders(tree, f"{path}/{name}" if path else name)


def _list_folder(tree: Tree, path: str) -> dict[str, Any]:
    names = tree.list_names(path)
    folders = [name for name in names if isinstance(tree.find(f"{path}/{name}"), Folder)]
    return {"names": names, "folders": folders}


def _container_to_json(use: Use) -> dict[str, Any]:
    """Return a container for ``cgpu get --json``."""
    mark = next((gpu.mark for gpu in use.gpus), None)
    gpus = [{**gpu.as_json(), **_to_former_keys(gpu)} for gpu in use.gpus]
    return {**use.as_json(), "mark": mark, "gpus": gpus}


def _to_former_keys(gpu: GpuUse) -> dict[str, Any]:
    """Return the same values under the names of release 0.1."""
    its = gpu.compute
    estimate = its.estimated_percent if its else None
    return {
        "memsize": gpu.cap_bytes,
        "limit_ppm": _to_ppm(its and its.limit_percent),
        "measured_ppm": _to_ppm(its and its.measured_percent),
        "estimated_ppm": None if estimate is None else _to_ppm(estimate),
        "share_ppm": _to_ppm(its and its.share_percent),
        "metered": its is not None and its.measured_percent is not None,
    }


def _to_ppm(percent: float | None) -> int:
    return round((percent or 0) * _PPM_OF_A_PERCENT)
