"""What is done to the node: a table of faults, each of which leaves it in need of nothing but time.

A fault draws what it needs from the generator that it is given and from nothing else, so that the
same seed gives the same faults in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults import changes, containers, servers

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from faults.world import World

FAULTS: tuple[Callable[[World, Random], str], ...] = (
    containers.kill_programs,
    containers.stop_programs,
    containers.kill_init,
    containers.kill_session,
    containers.run_in_container,
    containers.ruin_ledger,
    containers.break_creation,
    containers.break_removal,
    containers.storm,
    containers.replace_containers,
    servers.kill_server,
    servers.stop_server,
    servers.replace_server,
    servers.starve_server,
    servers.no_descriptors,
    servers.no_memory,
    changes.full_state,
    changes.change,
    changes.rules,
    changes.break_tool,
    changes.lose_tree,
)
