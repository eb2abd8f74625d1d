"""podman's precreate hook: a configuration comes in, the changed one goes out."""

from __future__ import annotations

import os
import sys

from cgpu_env.errors import CgpuError
from cgpu_hook import document
from cgpu_hook.container import admit_container, announce_container
from cgpu_hook.modifiers import draft_container, edit_config
from cgpu_hook.plan import rootfs_path
from cgpu_node.image.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Setting

_MARK = "/run/.containerenv"


def edit_stdin(setting: Setting) -> None:
    """Read the configuration from stdin and write it to stdout, changed if cgpu is on.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    data = sys.stdin.buffer.read()
    config = document.parse(data, "config.json")
    name, directory = _identify_container(config)
    draft = draft_container(config, name, lambda: Rootfs(rootfs_path(config, "/")), setting)
    new = edit_config(draft)
    if new is not config:
        data = document.pack_config(new, "config.json")
    if draft.plan.request is not None:
        admit_container(draft, os.getppid(), directory)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    if draft.plan.request is not None:
        announce_container(draft)


def _identify_container(config: dict[str, Any]) -> tuple[str, str]:
    """Return the container's id, and its directory, which exists as long as the container.

    podman gives its hook neither of them. But podman mounts a file from that directory,
    ``.../ID/userdata``.
    """
    for mount in config.get("mounts") or []:
        if mount["destination"] == _MARK and isinstance(mount.get("source"), str):
            directory = os.path.dirname(mount["source"])
            return os.path.basename(os.path.dirname(directory)), directory
    raise CgpuError(f"precreate is podman's hook, whose containers have {_MARK}; this has none")
