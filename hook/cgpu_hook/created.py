"""A container that exists already, as a hook finds it: its state, its root file system, its mounts.

Device nodes have to come from the engine or the vendor: a hook is too late for the container's
device rules.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError
from cgpu_env.record import NamedTuple
from cgpu_node import jsontext
from cgpu_node.image.rootfs import Rootfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_hook.plan import Draft, Mount


class CreatedContainer(NamedTuple):
    """A container, as its runtime describes it to a hook.

    Attributes:
        id: as the runtime calls it.
        pid: its first process, as the host numbers it.
        bundle: the path of its bundle.
    """

    id: str
    pid: int
    bundle: str


def parse_state(data: bytes, stage: str) -> CreatedContainer:
    """Return the container whose state a runtime gives its hook for ``stage``.

    Raises:
        CgpuError: it is no such state.
    """
    try:
        state = jsontext.loads(data.decode())
        name, pid, bundle = state["id"], state["pid"], state["bundle"]
        good = isinstance(name, str) and isinstance(pid, int) and isinstance(bundle, str)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good or pid <= 1 or not bundle.startswith("/"):
        raise CgpuError(
            f"the state on stdin has no id, pid and bundle: cgpu-hook {stage} belongs to the "
            "prestart or createRuntime stage"
        )
    return CreatedContainer(name, pid, bundle)


def open_rootfs(pid: int, path: str) -> Rootfs:
    """Open the container's root as its mounts show it, before or after the runtime changed root."""
    root = f"/proc/{pid}/root"
    changed = not os.path.samestat(os.stat("/"), os.stat(root))
    return Rootfs(root if changed else f"{root}{path}", is_complete=True)


def refuse_withheld(draft: Draft) -> None:
    """Refuse withheld devices that the engine has already given: a hook cannot take them away.

    Raises:
        CgpuError: it has given one.
    """
    linux = draft.config.get("linux") or {}
    given = {d.get("path") for d in linux.get("devices") or [] if isinstance(d, dict)}
    for node in draft.plan.withheld:
        if node.container in given:
            raise CgpuError(
                f"the engine gives the container {node.container}, which is not among its GPUs"
            )


def make_mounts(draft: Draft, pid: int, path: str) -> None:
    """Make the mounts of the draft's plan in the container of process ``pid``.

    Args:
        draft: what is mounted.
        pid: the container's first process.
        path: of its root file system, before the runtime changes root.

    Raises:
        CgpuError: one cannot be made.
    """
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
