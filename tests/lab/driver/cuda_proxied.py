"""A container's base directory above a simulated driver, and programs in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from lab.driver.cuda_base import MIB, Base, lay_out
from lab.driver.nvml_base import SIMULATED, Gpu, make_machine

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_base import Outcome
    from lab.runs.children import Child

CONTEXT = 105 * MIB
CAP = 15109 * MIB * 6 // 15
GPUS = (Gpu(), Gpu(number=1))


class Proxied(NamedTuple):
    """A base directory above a simulated driver."""

    base: Base
    machine: Path

    def check(self, program: str, *arguments: str, **env: str) -> Outcome:
        """Run Python code that finds the driver as ``cuda``; it must end well."""
        return self.base.check(program, *arguments, CGPU_SIM_MACHINE=str(self.machine), **env)

    def start(self, program: str, *arguments: str, **env: str) -> Child:
        """Start such code."""
        return self.base.start(program, *arguments, CGPU_SIM_MACHINE=str(self.machine), **env)


def make_proxied(folder: Path) -> Proxied:
    """6 of 15 GiB on each of two T4."""
    driver = make_machine(folder / "driver", GPUS)
    shutil.copy(SIMULATED.with_name("libcuda.so.1"), driver)
    limits = [gpu.limited(6, 15)._replace(context_bytes=CONTEXT) for gpu in GPUS]
    return Proxied(lay_out(folder / "base", driver / "libcuda.so.1", limits), driver / "machine")


__all__ = ["CAP", "CONTEXT", "GPUS", "MIB", "Proxied", "make_proxied"]
