"""Changes that clients make, by the socket or by the control tree.

When these functions return, the change is checked, written to disk and in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cgpu_env.values import format_misstated_default
from cgpu_node.settings import rules
from cgpu_node.shares.change import change_container
from cgpu_node.shares.record import Record
from cgpu_server.journal import log
from cgpu_server.state.container_warnings import log_misstated
from cgpu_server.state.server_state import ServerState

_LOWERED = "nothing if it is meant so; else cgpu set a memsize of what it holds or more"


def notes_on_default(state: ServerState) -> tuple[str, ...]:
    """Return a warning for each GPU that the node's default size does not suit."""
    size = rules.default_memsize(state.registry.state_dir, state.config.default_memsize)
    node = state.find_node()
    gpus = node.gpus if node else ()
    totals = ((gpu.index, gpu.total_bytes) for gpu in gpus if gpu.total_bytes)
    return format_misstated_default(totals, size)


def set_container(
    state: ServerState,
    living: list[Record],
    entry: Record,
    values: Mapping[str, Any],
    uuid: str | None = None,
) -> tuple[list[Record], tuple[str, ...]]:
    """Change some of the ``CONTAINER_KEYS`` of ``entry``; its cap on ``uuid``, or on all its GPUs.

    ``ServerState.refresh`` calls this, and passes ``living``.

    Returns:
        The changed living containers, and warnings for the caller, one sentence each; the log has
        them too.

    Raises:
        CgpuError: it cannot be done; one sentence says why, and nothing was changed.
    """
    overcommit = state.config.overcommit
    new, notes = change_container(
        state.registry, living, entry, values, state.defaults, uuid=uuid, overcommit=overcommit
    )
    log_misstated(entry.id, notes.misstated)
    for note in notes.excess:
        log.warning("cap_below_use", container=entry.id, note=note, do=_LOWERED)
    return new, (*notes.misstated, *notes.excess)
