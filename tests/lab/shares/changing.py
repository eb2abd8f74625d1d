"""Changes of what containers may have, as the server makes them, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cgpu_node.shares import change, target
from cgpu_node.shares.names import names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cgpu_node.facts.node import NodeGpu
    from cgpu_node.settings.rules import Defaults
    from cgpu_node.shares.change import Notes
    from cgpu_node.shares.registry import Registry


def change_default(registry: Registry, wanted: object) -> None:
    """``cgpu set node``."""
    with registry.lock(create=True):
        change.change_default(registry, wanted)


def change_gpus(
    registry: Registry, gpus: Sequence[NodeGpu], wanted: Mapping[str, object], defaults: Defaults
) -> None:
    """``cgpu set`` of GPUs."""
    with registry.lock(create=True):
        living = registry.reap(registry.find_gone())
        new = change.change_gpus(registry, living, gpus, wanted, defaults)
        assert new == registry.reap(registry.find_gone()), "it returns what it has written"


def change_container(
    registry: Registry, name: str, wanted: Mapping[str, object], defaults: Defaults, **more: Any
) -> Notes:
    """``cgpu set`` of a container."""
    with registry.lock():
        living = registry.reap(registry.find_gone())
        id_ = target.find_container(name, names_of(living))
        (entry,) = (each for each in living if each.id == id_)
        new, notes = change.change_container(registry, living, entry, wanted, defaults, **more)
        assert new == registry.reap(registry.find_gone()), "it returns what it has written"
    return notes
