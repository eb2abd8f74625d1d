"""The request ``set``: finds the target, then changes its values, both under one lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cgpu_env import CgpuError, GpuShare
from cgpu_env.errors import find_nearest, printable
from cgpu_node.facts.node import NodeGpu
from cgpu_node.settings import rules
from cgpu_node.shares import target
from cgpu_node.shares.change import CONTAINER_KEYS, change_gpus
from cgpu_node.shares.names import names_of
from cgpu_node.shares.record import Record
from cgpu_node.shares.target import Target
from cgpu_server.state import changes
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.nodes import NODE_SETTINGS, Tree

STRANGER = "you are neither root nor the owner of the state directory"
_EACH_HAS = (
    f"a GPU has {', '.join(rules.RANGES)}; a container has"
    f" {', '.join(CONTAINER_KEYS)}; the {target.NODE} has {', '.join(NODE_SETTINGS)}"
)
_MEANT = {"memory": "memsize"}  # words that are meant, but spelt unlike a setting
_GPU_FIRST = "that is a GPU; name a container by its name, by more of its id, or as GPU/ID"


def set_values(state: ServerState, request: dict[str, Any], tree: Tree) -> dict[str, Any]:
    """Change what ``request`` names, for the user who sees ``tree``.

    Raises:
        CgpuError: the request makes no sense or cannot be done; one sentence says why.
    """
    word, values = request.get("target"), request.get("values")
    if not isinstance(word, str) or not isinstance(values, dict) or not values:
        raise CgpuError("set: expected a target and values")
    _check_names(values)
    if word == target.NODE:
        hint = f"cgpu set {target.EVERY_GPU} changes every GPU"
        _check_keys(word, values, NODE_SETTINGS, hint)
        _check_owner(tree)
        for name, value in values.items():
            tree.write(name, str(value))
        is_size = rules.DEFAULT_MEMSIZE in values
        return {"notes": changes.notes_on_default(state) if is_size else ()}
    node = state.find_node()  # without the lock: the driver may be slow
    notes: tuple[str, ...] = ()

    def apply_change(living: list[Record]) -> list[Record]:
        nonlocal notes
        gpus = {gpu.uuid: gpu for gpu in state.gpus_of(node)}
        its = _resolve_target(word, values, gpus, tree)
        if its.container is None:
            chosen = [gpus[uuid] for uuid in its.uuids]
            return change_gpus(state.registry, living, chosen, values, state.defaults)
        (entry,) = (each for each in living if each.id == its.container)
        new, notes = changes.set_container(state, living, entry, values, *its.uuids)
        return new

    state.refresh(apply_change)
    return {"notes": notes}


def _resolve_target(
    word: str, values: dict[str, Any], gpus: Mapping[str, GpuShare | NodeGpu], tree: Tree
) -> Target:
    """Return what is to be changed. Refuse a target that lacks one of the settings ``values``."""
    there = {uuid: gpu.index for uuid, gpu in gpus.items()}
    names = names_of(tree.records)
    could_be_container = "/" in word or target.match_containers(word, names)
    is_every_gpu = word == target.EVERY_GPU and there
    if values.keys() <= rules.RANGES.keys() and not could_be_container and not is_every_gpu:
        found = target.Target((target.find_gpu(word, there),))
    else:
        found = target.resolve_target(word, there, names)
    if found.container is None:
        hint = _GPU_FIRST if target.match_containers(word, names) else ""
        _check_keys(word, values, rules.RANGES, hint)
        _check_owner(tree)
    else:
        _check_keys(word, values, CONTAINER_KEYS)
    return found


def _check_keys(word: str, values: dict[str, Any], keys: Collection[str], hint: str = "") -> None:
    """Refuse settings that the target does not have."""
    if not values.keys() <= set(keys):
        raise CgpuError(f"set {printable(word)} {', '.join(values)}: {_EACH_HAS}", hint=hint)


def _check_owner(tree: Tree) -> None:
    if not tree.is_for_all:
        raise CgpuError(STRANGER)


def _check_names(values: dict[str, Any]) -> None:
    """Refuse a setting that neither GPUs nor containers have."""
    known = (*rules.RANGES, *CONTAINER_KEYS, *NODE_SETTINGS)
    for name in values:
        if name not in known:
            near = _MEANT.get(name) or find_nearest(name, known)
            meant = f"did you mean {near}?" if near else _EACH_HAS
            raise CgpuError(f"set {printable(name)}: there is no such setting: {meant}")
