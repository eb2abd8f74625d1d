"""NVIDIA's legacy mode: a prestart hook brings the driver's files, after the configuration is read.

Files that the configuration mounts would be beside the vendor's files, not over them. So the
configuration gets our own prestart hook, after the vendor's, and that hook makes the mounts.
"""

from __future__ import annotations

import os

from cgpu_env.request import NVIDIA_VISIBLE
from cgpu_hook.plan import HOOK_ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Draft

_HOOK_SECONDS = 120  # the first container of a boot may have to wait for the driver


def add_prestart_hook(draft: Draft) -> dict[str, Any]:
    """The configuration with our hooks. The vendor's hook gets the GPUs that were granted."""
    config, host_files = draft.config, draft.host_files
    arguments = ["--state-dir", host_files.state_dir]
    if draft.setting.driver_dir is not None:
        arguments += ["--driver-dir", draft.setting.driver_dir]
    prestart = {
        "path": host_files.hook,
        "args": [os.path.basename(host_files.hook), "prestart", *arguments],
        "env": list(HOOK_ENVIRONMENT),
        "timeout": _HOOK_SECONDS,
    }
    hooks = dict(config["hooks"])
    hooks["prestart"] = [*hooks["prestart"], prestart]
    hooks["poststop"] = [*(hooks.get("poststop") or []), *draft.plan.hooks["poststop"]]
    granted = ",".join(share.uuid for share in draft.plan.gpus)
    process = config["process"]
    others = [entry for entry in process["env"] if not entry.startswith(f"{NVIDIA_VISIBLE}=")]
    env = [*others, f"{NVIDIA_VISIBLE}={granted}"]
    return {**config, "hooks": hooks, "process": {**process, "env": env}}
