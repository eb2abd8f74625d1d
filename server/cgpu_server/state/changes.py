"""Changes that clients make, by the socket or by the control tree.

A change is checked, written to disk and in force when these functions return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cgpu_node.settings import rules
from cgpu_node.shares.change import CONTAINER_KEYS, change_container, change_gpus, change_node
from cgpu_server.journal import log
from cgpu_server.state.container_warnings import log_misstated

__all__ = ["CONTAINER_KEYS", "GPU_KEYS", "NODE_KEYS", "set_container", "set_gpus", "set_node"]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cgpu_env import GpuShare
    from cgpu_node.facts.node import NodeGpu
    from cgpu_server.state.server_state import ServerState

_LOWERED = "nothing if it is meant so; else cgpu set a memsize of what it holds or more"
NODE_KEYS, GPU_KEYS = rules.NODE_KEYS, tuple(rules.RANGES)


def set_node(state: ServerState, values: Mapping[str, Any]) -> None:
    """Change some of ``NODE_KEYS``.

    Raises:
        CgpuError: it cannot be done; one sentence says why.
    """
    change_node(state.registry, values)
    state.refresh()


def set_gpus(
    state: ServerState, gpus: Sequence[GpuShare | NodeGpu], values: Mapping[str, Any]
) -> None:
    """Change some of the ``GPU_KEYS`` of GPUs.

    Raises:
        CgpuError: it cannot be done; one sentence says why, and nothing was changed.
    """
    change_gpus(state.registry, gpus, values, state.defaults)
    state.refresh()


def set_container(
    state: ServerState, name: str, values: Mapping[str, Any], uuid: str | None = None
) -> tuple[str, ...]:
    """Change some of the ``CONTAINER_KEYS`` of container ``name``; its cap on ``uuid``, or on all.

    Returns:
        Notes for the client, one sentence each. The log has them too, as the tree cannot show them.

    Raises:
        CgpuError: it cannot be done; one sentence says why, and nothing was changed.
    """
    overcommit = state.config.overcommit
    notes = change_container(
        state.registry, name, values, state.defaults, uuid=uuid, overcommit=overcommit
    )
    state.refresh()
    log_misstated(name, notes.misstated)
    for note in notes.excess:
        log.warning("cap_below_use", container=name, note=note, do=_LOWERED)
    return (*notes.misstated, *notes.excess)
