"""Milliseconds that a claim adds to the start of a container, by its hook."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.timing import in_turns
from lab.worlds.hook import UID, World, claim_hooks, hold, low_level

if TYPE_CHECKING:
    from bench.timing import Timing

ROUNDS = 40
WITHOUT, WITH = "runc run, without a claim", "runc run, with a claim"


def measure() -> dict[str, Timing]:
    """``runc run`` of ``true`` in one image, in turns."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        world = World(Path(folder) / "world")
        hold(world)
        world.write_config([])
        plain = Path(folder) / "plain"
        shutil.copytree(world.bundle, plain, symlinks=True)
        world.write_config([], hooks=claim_hooks(world, [(UID, (0,))]))
        runc = str(low_level("runc", world.folder))
        return in_turns(
            {
                WITHOUT: [runc, "run", f"--bundle={plain}", "cgpu-bench-plain"],
                WITH: [runc, "run", f"--bundle={world.bundle}", "cgpu-bench-claim"],
            },
            ROUNDS,
        )
