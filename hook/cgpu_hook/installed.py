"""Works on the node, by the Python that the driver of claims has installed there.

The driver starts this in the node's mounts: ``bootstrap.py cgpu_hook.installed check STATE_DIR
[DRIVER_DIR]`` finds out whether a container with a claim could be started, and asks NVIDIA's driver
before one is; ``unmount STATE_DIR`` unmounts what containers' starts have mounted. It exits with 0,
or prints one sentence and exits with 1.
"""

from __future__ import annotations

import sys

from cgpu_env.errors import CgpuError
from cgpu_node.paths import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status."""
    command, *rest = arguments
    try:
        _COMMANDS[command](*rest)
    except CgpuError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"{error}{hint}\n")
        return _FAILED
    return 0


def _check_start(state_dir: str, driver_dir: str | None = None) -> None:
    from cgpu_hook import claim
    from cgpu_hook.container import find_host_files
    from cgpu_node.facts.node import load_node

    state = open_state(state_dir)
    find_host_files(claim.__name__, state, load_node(state, driver_dir))


def _unmount(state_dir: str) -> None:
    from cgpu_node.sealed import unmount_overlays

    unmount_overlays(open_state(state_dir))


_COMMANDS: dict[str, Callable[..., None]] = {"check": _check_start, "unmount": _unmount}
