"""Finds out from an engine's configuration whether it gives containers our CDI devices: pure.

An engine that does not starts a container without them, and says nothing. A runtime of NVIDIA's
gives pods without a claim the GPUs that their variables name, or the CDI device of another's claim.
One of ours gives them the parts of GPUs that their variables name.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from cgpu_env.errors import printable
from cgpu_k8s.kubelet.runtimes import CONTAINERD, NVIDIA, OURS, READERS
from cgpu_k8s.objects.fields import get_member

if TYPE_CHECKING:
    from cgpu_k8s.objects.fields import Json

UNKNOWN = "whether the container engine gives containers CDI devices"
_ALIAS = "/var/run/", "/run/"  # which are one folder


def find_problem(engine: str, config: Json, folder: str) -> str:
    """Return why containers would not get just the devices of files in ``folder``; "": they do.

    Args:
        engine: CONTAINERD or CRIO.
        config: the engine's, as it has read it: containerd's is that of its CRI plugin.
        folder: of CDI files.

    Raises:
        ObjectError: ``config`` is no such configuration.
    """
    for runtime in READERS[engine](config):
        program = PurePath(runtime.program).name
        if program.startswith(NVIDIA):
            return (
                f"the runtime {printable(runtime.name)} of {engine} is NVIDIA's, so pods without a"
                " claim could have whole GPUs: take it out of the engine's configuration"
            )
        if program == OURS:
            return (
                f"the runtime {printable(runtime.name)} of {engine} is cgpu's, so pods without a"
                " claim could have the parts of GPUs that their variables name: run cgpu uninstall"
                " on the node, and restart the engine"
            )
    if engine == CONTAINERD:
        if config.get("enableCDI", "cdiSpecDirs" in config) is not True:  # 2.2 has no switch
            return (
                "containerd gives containers no CDI devices: set enable_cdi = true below"
                ' [plugins."io.containerd.grpc.v1.cri"] of containerd 1.7, or below'
                ' [plugins."io.containerd.cri.v1.runtime"] of containerd 2, and restart it; an'
                " older one has to be replaced"
            )
        folders = get_member(config, "cdiSpecDirs", list)
    else:
        about = get_member(get_member(config, "crio", dict), "runtime", dict)
        folders = get_member(about, "cdi_spec_dirs", list)
    if folder.replace(*_ALIAS) in {str(each).replace(*_ALIAS) for each in folders}:
        return ""
    listed = printable(", ".join(map(str, folders)), 300) or "none"
    return (
        f"{engine} reads CDI files in other folders than {folder}: {listed}: add it to its"
        " cdi_spec_dirs, and restart it"
    )
