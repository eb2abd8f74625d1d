"""Programs of others, as a container sees them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lab.containers import images
from lab.containers.engines import Volume
from lab.driver import real_driver

if TYPE_CHECKING:
    from lab.containers.engines import Result

PACKAGES = "/usr/local/lib/python3.11/dist-packages"  # not PYTHONPATH: numba-cuda has a .pth file
PROGRAMS = "/opt/programs"


def volumes() -> list[Volume]:
    """nvidia-smi of driver 535, the Python packages from PyPI, and the tests' own programs."""
    return [
        Volume(real_driver.real_nvidia_smi("535"), "/usr/bin/nvidia-smi"),
        Volume(images.guest_packages(), PACKAGES),
        Volume(images.programs(), PROGRAMS),
    ]


def program(name: str, *arguments: str) -> list[str]:
    """The command that runs ``system/programs/<name>.py``."""
    return ["python3", f"{PROGRAMS}/{name}.py", *arguments]


def memory_shown(result: Result) -> list[tuple[int, int]]:
    """Used and total MiB of each GPU in the table of nvidia-smi."""
    found = re.findall(r"(\d+)MiB */ *(\d+)MiB", result.stdout)
    return [(int(used), int(total)) for used, total in found]
