"""Finds processes that use an interface of the driver whose memory cgpu does not charge.

Video codecs and graphics allocate below the CUDA driver's interface. NVML counts what they take,
but no call passes through the proxies. A process that uses such an interface has its library
loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cgpu_node.shares.liveness import folder_of

_MOST_BYTES = 8 << 20  # of a process's map; the kernel lists 65,530 mappings at most by default

_LIBRARIES = {
    "video": (
        "libnvcuvid.so",
        "libnvidia-encode.so",
        "libnvidia-opticalflow.so",
        "libvdpau_nvidia.so",
    ),
    "graphics": (
        "libGLX_nvidia.so",
        "libEGL_nvidia.so",
        "libGLESv1_CM_nvidia.so",
        "libGLESv2_nvidia.so",
        "libnvidia-glcore.so",
        "libnvidia-eglcore.so",
        "libnvidia-glvkspirv.so",
        "libnvidia-rtcore.so",
        "libnvoptix.so",
    ),
}
"""Names of these libraries in the driver's packages; a version follows."""


def find_interface(pid: int) -> str | None:
    """Return ``video`` or ``graphics`` if a process has such a library loaded, else None."""
    try:
        with open(f"{folder_of(pid)}/maps", "rb") as file:
            return match_interface(os.fsdecode(file.read(_MOST_BYTES)).splitlines())
    except OSError:  # it is ending
        return None


def match_interface(lines: Iterable[str]) -> str | None:
    """Return ``video`` or ``graphics`` by the lines of ``/proc/PID/maps``, or None."""
    names = {os.path.basename(line.split(None, 5)[-1]) for line in lines if line.count("/")}
    for interface, libraries in _LIBRARIES.items():
        if any(name.startswith(libraries) for name in names):
            return interface
    return None
