"""What cgpu does to one container: mounts, devices, masks and hooks; as data.

The modifiers make a plan; the editor and the prestart hook carry it out.
"""

from __future__ import annotations

from cgpu_env.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_env.request import GpuShare, Request
    from cgpu_node.facts.node import DeviceNode

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
        id: the container.
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
        """The directory of this container's limits and ledger."""
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
        notes: what is odd about the request, one sentence each.
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
        """The caps, in the order of the visible list."""
        return self.request.gpus if self.request else ()

    def as_json(self) -> dict[str, Any]:
        """The plan as ``cgpu plan --json`` prints it.

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
