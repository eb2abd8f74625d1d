"""The prestart hook: carries out a plan in a container that was created without cgpu-runtime.

It serves hooks.d of CRI-O and podman, and NVIDIA's legacy mode, in which the driver's libraries
appear only after NVIDIA's own prestart hook. The engine or the vendor has to provide device nodes:
for the container's device rules a hook is too late.
"""

from __future__ import annotations

import os
import sys

from cgpu_env.errors import CgpuError
from cgpu_hook import document
from cgpu_hook.container import admit_container, announce_container, give_back_share
from cgpu_hook.modifiers import draft_container, edit_config
from cgpu_hook.plan import SHARE_FILES, rootfs_path
from cgpu_node import jsontext
from cgpu_node.image.rootfs import Rootfs
from cgpu_node.paths import open_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Draft, Mount, Setting


def cap_container(setting: Setting) -> None:
    """Cap the container whose state is on stdin; do nothing if cgpu is off for it.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    name, pid, bundle = _parse_state(sys.stdin.buffer.read())
    config = document.read(f"{bundle}/config.json")
    if _is_edited(config, name, setting):
        return
    path = rootfs_path(config, bundle)
    draft = draft_container(config, name, lambda: _open_rootfs(pid, path), setting)
    if draft.plan.request is None and edit_config(draft) is config:
        return
    if draft.plan.request is None or draft.config.get("process") != config.get("process"):
        raise CgpuError(
            "a hook is too late to follow a pod's decision: the pod's runtime has to be cgpu's"
        )
    _refuse_withheld(draft)
    admit_container(draft, pid, None)
    try:
        _make_mounts(draft, pid, path)
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


def _parse_state(data: bytes) -> tuple[str, int, str]:
    """Return id, pid on the host, and bundle from the state that a runtime gives its hooks."""
    try:
        state = jsontext.loads(data.decode())
        name, pid, bundle = state["id"], state["pid"], state["bundle"]
        good = isinstance(name, str) and isinstance(pid, int) and isinstance(bundle, str)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good or pid <= 1 or not bundle.startswith("/"):
        raise CgpuError(
            "the state on stdin has no id, pid and bundle: cgpu-hook prestart belongs to the "
            "prestart or createRuntime stage"
        )
    return name, pid, bundle


def _open_rootfs(pid: int, path: str) -> Rootfs:
    """Open the container's root with its mounts, before or after the runtime has changed root."""
    root = f"/proc/{pid}/root"
    changed = not os.path.samestat(os.stat("/"), os.stat(root))
    return Rootfs(root if changed else f"{root}{path}", is_complete=True)


def _refuse_withheld(draft: Draft) -> None:
    """Refuse withheld devices that the engine has already given: a hook cannot take them away."""
    linux = draft.config.get("linux") or {}
    given = {d.get("path") for d in linux.get("devices") or [] if isinstance(d, dict)}
    for node in draft.plan.withheld:
        if node.container in given:
            raise CgpuError(
                f"the engine gives the container {node.container}, which is not among its GPUs"
            )


def _make_mounts(draft: Draft, pid: int, path: str) -> None:
    from cgpu_hook.edit import bind_devices, check_sources

    nodes = bind_devices(draft.plan.devices)
    check_sources(draft.plan)
    fields: list[str] = []
    for mount in (*draft.plan.mounts, *nodes):
        fields += [_mount_kind(mount), mount.source, mount.destination]
    for mask in draft.plan.masks:
        fields += ["mask", "/dev/null", mask]
    arguments = [draft.host_files.hook, "mount", str(pid), path]
    if _run_program(arguments, b"".join(os.fsencode(field) + b"\0" for field in fields)) != 0:
        raise CgpuError("the container's mounts could not be made")


def _mount_kind(mount: Mount) -> str:
    if mount.options[0] == "tmpfs":
        return "tmpfs"
    return "ro" if "ro" in mount.options else "rw"


def _run_program(arguments: list[str], data: bytes) -> int:
    """Run a program with ``data`` on its stdin; ``subprocess`` would take 10 ms to import."""
    fd = os.memfd_create("cgpu")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, 0)]
    child = os.posix_spawn(arguments[0], arguments, {}, file_actions=actions)
    os.close(fd)
    return os.waitpid(child, 0)[1]
