"""The prestart hook: carries out a plan in a container that was created without cgpu-runtime.

It serves hooks.d of CRI-O and podman, and NVIDIA's legacy mode, in which the driver's libraries
appear only after NVIDIA's own prestart hook. The engine or the vendor has to provide device nodes:
for the container's device rules a hook is too late.
"""

from __future__ import annotations

import sys

from cgpu_env.errors import CgpuError
from cgpu_hook import document
from cgpu_hook.container import admit_container, announce_container, give_back_share
from cgpu_hook.created import make_mounts, open_rootfs, parse_state, refuse_withheld
from cgpu_hook.modifiers import draft_container, edit_config
from cgpu_hook.plan import SHARE_FILES, rootfs_path
from cgpu_node.paths import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Setting


def cap_container(setting: Setting) -> None:
    """Cap the container whose state is on stdin; do nothing if cgpu is off for it.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    name, pid, bundle = parse_state(sys.stdin.buffer.read(), "prestart")
    config = document.read(f"{bundle}/config.json")
    if _is_edited(config, name, setting):
        return
    path = rootfs_path(config, bundle)
    draft = draft_container(config, name, lambda: open_rootfs(pid, path), setting)
    if draft.plan.request is None and edit_config(draft) is config:
        return
    if draft.plan.request is None or draft.config.get("process") != config.get("process"):
        raise CgpuError(
            "a hook is too late to follow a pod's decision: the pod's runtime has to be cgpu's"
        )
    refuse_withheld(draft)
    admit_container(draft, pid, None)
    try:
        make_mounts(draft, pid, path)
    except BaseException:
        give_back_share(draft)
        raise
    announce_container(draft)


def _is_edited(config: dict[str, Any], name: str, setting: Setting) -> bool:
    """Return whether cgpu-runtime or precreate made the container: its own limits are mounted.

    If something else is mounted at that path, a user did it, and the planner refuses it.
    """
    mounts = config.get("mounts") or []
    given = [mount.get("source") for mount in mounts if mount["destination"] == SHARE_FILES[0]]
    return bool(given) and f"{open_state(setting.state_dir)}/containers/{name}/limits" in given
