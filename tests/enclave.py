"""A container made by hand: limits, ledger and relocated proxies in a directory, and no namespaces.

What ``cgpu-run`` does without user namespaces, in a few lines that tests can vary: programs started
with the enclave's environment meet the proxies in front of a simulated (or any other) driver.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_native.ledger import Ledger, create_ledger
from cgpu_native.limits import LimitsGpu, pack_limits
from cgpu_shim.relocation import relocate

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
PROXIES = Path(__file__).resolve().parent.parent / "shim" / "cgpu_shim" / "_lib"
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


class Enclave:
    """A base directory with what a container sees below ``/dev/cgpu``."""

    def __init__(
        self,
        base: Path,
        driver: Path,
        gpus: Sequence[LimitsGpu],
        sonames: Sequence[str] = SONAMES,
    ) -> None:
        self.base = base
        self.driver = driver
        self.gpus = tuple(gpus)
        (base / "real").mkdir(parents=True)
        self.libraries = base / "lib"
        self.libraries.mkdir()
        for soname in sonames:
            (base / "real" / soname).symlink_to(driver / soname)
            proxy = relocate((PROXIES / soname).read_bytes(), str(base))
            (self.libraries / soname).write_bytes(proxy)
        self.limits = base / "limits"
        self.limits.write_bytes(pack_limits(base.name, gpus))
        create_ledger(base, "ledger")

    def environment(self, **changes: str) -> dict[str, str]:
        """Environment in which programs find the proxies first."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "CGPU_SIM"))}
        machine = str(self.driver / "machine")  # ignored by a driver that is not simulated
        return {
            **kept,
            "LD_LIBRARY_PATH": str(self.libraries),
            "CGPU_SIM_MACHINE": machine,
            **changes,
        }

    def set_cap(self, place: int, cap_bytes: int) -> None:
        """Change a cap in place, as the host does while the container runs."""
        gpus = list(self.gpus)
        gpus[place] = gpus[place]._replace(cap_bytes=cap_bytes)
        self.gpus = tuple(gpus)
        with self.limits.open("r+b") as page:
            page.write(pack_limits(self.base.name, gpus))

    def attach(self, pid: int) -> Ledger:
        """Take a slot of the ledger for a process called ``pid``; it lives as long as this one."""
        return Ledger.attach(self.base / "ledger", pid)


def cap(total_bytes: int, container: int, device: int) -> int:
    """Bytes of ``container`` of ``device`` GiB (SPEC ENV-8)."""
    return total_bytes * container // device
