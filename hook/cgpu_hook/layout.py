"""The paths of cgpu's parts relative to this package, installed or in the source tree."""

from __future__ import annotations

import os

import cgpu_shim
from cgpu_env.errors import CgpuError
from cgpu_hook.plan import HostFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_node.facts.node import Node

_PACKAGE = os.path.dirname(os.path.realpath(__file__))
HOOK = f"{_PACKAGE}/_bin/cgpu-hook"
RUNTIME = f"{_PACKAGE}/_bin/cgpu-runtime"
_TOOL = "nvidia-smi"


def host_files(name: str, state_dir: str, node: Node) -> HostFiles:
    """The files of this host that a plan for the container ``name`` refers to.

    Raises:
        CgpuError: cgpu was not built or is not installed completely.
    """
    try:
        proxies = {name: os.path.realpath(cgpu_shim.library(name)) for name in node.libraries}
    except FileNotFoundError as error:
        raise CgpuError(f"cgpu is not complete: {error}") from None
    if not os.access(HOOK, os.X_OK):
        raise CgpuError(f"cgpu is not complete: {HOOK} is missing")
    return HostFiles(name, state_dir, proxies, _find_tools(node.driver_dir), HOOK)


def _find_tools(driver_dir: str) -> dict[str, str]:
    """The driver's nvidia-smi, if it has one: in its directory, or in ``bin`` beside ``lib``.

    ``/usr/bin`` for ``/usr/lib64/nvidia``, ``/opt/nvidia/bin`` for ``/opt/nvidia/lib64``.
    """
    candidates = [f"{driver_dir}/bin/{_TOOL}", f"{driver_dir}/{_TOOL}"]
    parts = driver_dir.split("/")
    candidates += [
        "/".join((*parts[:i], "bin", _TOOL))
        for i in range(len(parts) - 1, 0, -1)
        if parts[i] in ("lib", "lib64")
    ]
    for path in candidates:
        if os.path.isfile(path):
            return {f"/usr/bin/{_TOOL}": os.path.realpath(path)}
    return {}
