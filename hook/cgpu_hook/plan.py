"""The draft of a container's creation: facts about the container, and what cgpu does to it.

It is plain data. Modifiers add to the draft; the editor and the prestart hook carry its plan out.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError
from cgpu_env.record import NamedTuple
from cgpu_env.request import parse_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cgpu_env.request import GpuShare, Request
    from cgpu_hook.pod import ContainerPod
    from cgpu_node.allocation_annotation import AllocationAnnotation
    from cgpu_node.facts.node import DeviceNode, Node
    from cgpu_node.image.rootfs import RootfsView
    from cgpu_node.settings.config import Config

BASE = "/dev/cgpu"
SHARE_FILES = (f"{BASE}/limits", f"{BASE}/ledger")
READ_ONLY = ("bind", "ro", "nosuid", "nodev")  # not noexec: the loader has to map libraries
HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


class Mount(NamedTuple):
    """A file of the host that the container sees at ``destination``.

    ``options`` begin with the mount's type: ``bind``, or ``tmpfs`` for a directory of its own.
    """

    source: str
    destination: str
    options: tuple[str, ...] = READ_ONLY


class HostFiles(NamedTuple):
    """The host's files that a plan refers to.

    Attributes:
        id: the container's id.
        state_dir: the state directory of the host.
        proxies: SONAME -> our proxy.
        tools: path in the container -> program of the driver, such as nvidia-smi.
        hook: our hook program.
    """

    id: str
    state_dir: str
    proxies: dict[str, str]
    tools: dict[str, str]
    hook: str

    @property
    def share_directory(self) -> str:
        """Return the directory of this container's limits and ledger."""
        return f"{self.state_dir}/containers/{self.id}"


class Plan(NamedTuple):
    """The changes to make; everything is empty if cgpu is off.

    Attributes:
        request: the share to be admitted; None if cgpu is off.
        mounts: in the order in which they are made, after the configuration's own.
        devices: device nodes of the host that the container gets.
        withheld: device nodes that the container must not have.
        masks: paths to hide.
        hooks: OCI hooks by stage.
        notes: warnings about the request, one sentence each.
    """

    request: Request | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    withheld: tuple[DeviceNode, ...] = ()
    masks: tuple[str, ...] = ()
    hooks: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012 (never changed)
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[GpuShare, ...]:
        """Return the caps, in the order of the visible list."""
        return self.request.gpus if self.request else ()

    def as_json(self) -> dict[str, Any]:
        """Return the plan as ``cgpu plan --json`` prints it.

        Device nodes and masks are among the mounts, with the options ``device`` and ``mask``.
        """
        nodes = [Mount(node.host, node.container, ("device",)) for node in self.devices]
        masks = [Mount("/dev/null", path, ("mask",)) for path in self.masks]
        mounts = (*self.mounts, *nodes, *masks)
        return {
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "cap_bytes": gpu.cap_bytes,
                    "memory_bytes": gpu.cap_bytes,  # as release 0.1 calls it
                }
                for gpu in self.gpus
            ],
            "weight": self.request.weight if self.request else 1,
            "high_priority": self.request is not None and self.request.high_priority,
            "mounts": [dict(zip(Mount._fields, mount, strict=True)) for mount in mounts],
            "hooks": self.hooks,
            "notes": list(self.notes),
        }


class Setting(NamedTuple):
    """The paths that the caller gives.

    Attributes:
        state_dir: None: the default.
        driver_dir: None: as configured; if it is not, it is searched.
        dry: whether nothing may be written, not even facts that the driver was asked for.
        default_memsize: used if the state directory's files cannot be read; None: they are read.
    """

    state_dir: str | None = None
    driver_dir: str | None = None
    dry: bool = False
    default_memsize: int | str | None = None


class Draft:
    """The creation of a container: what is known of it, and what modifiers have added so far.

    Attributes:
        config: its configuration. A modifier replaces it, and never changes it in place.
        id: the container's id.
        open_rootfs: opens a view of the image.
        setting: the paths that the caller gives.
        settings: the node's settings.
        refresh: whether to ask the driver again for facts about the node.
        pod: its pod. None: Kubernetes did not make it, or pods on this node do not follow
            allocations.
        allocation: what the pod was given, if that names this container.
        node: the facts about the node. They and ``host_files`` are known if ``request`` is.
        host_files: files of the host.
        request: the share that was found; None: no GPU is given.
        is_capped: whether the container is held to that share. If not, it only gets the share's
            GPUs.
        plan: what cgpu does, apart from what ``config`` has already.
    """

    node: Node
    host_files: HostFiles

    def __init__(  # noqa: PLR0913 (what a draft is made from)
        self,
        config: dict[str, Any],
        name: str,
        open_rootfs: Callable[[], RootfsView],
        setting: Setting,
        settings: Config,
        *,
        refresh: bool = False,
    ) -> None:
        self.config = config
        self.id, self.open_rootfs = name, open_rootfs
        self.setting, self.settings, self.refresh = setting, settings, refresh
        self.pod: ContainerPod | None = None
        self.allocation: AllocationAnnotation | None = None
        self.request: Request | None = None
        self.is_capped = True
        self.plan = Plan()


def variables_of(config: dict[str, Any]) -> dict[str, str]:
    """Return the container's own environment: ``process.env`` of its configuration."""
    process = config.get("process") or {}
    return parse_environment(process.get("env") or [])


def rootfs_path(config: dict[str, Any], bundle: str) -> str:
    """Return the absolute path of the root file system. In a configuration it may be relative.

    Raises:
        CgpuError: the configuration names none.
    """
    path = (config.get("root") or {}).get("path")
    if not path or not isinstance(path, str):
        raise CgpuError("config.json names no root.path")
    return os.path.join(bundle, path)
