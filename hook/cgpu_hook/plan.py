"""The planner: decides what cgpu does to one container, and changes nothing.

It sees the container's OCI configuration, the facts about the node and the image's file system
through a view. The editor and the prestart hook carry a plan out.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_env.request import GpuShare, resolve_request
from cgpu_node.image import libraries
from cgpu_node.image.loader import LibraryFinder
from cgpu_node.image.mounted import Mounted, is_bind, is_shared
from cgpu_node.image.rootfs import resolve_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cgpu_env.request import Asked, Request
    from cgpu_node.facts.node import DeviceNode, Node
    from cgpu_node.image.rootfs import RootfsView

BASE = "/dev/cgpu"
SHARE_FILES = (f"{BASE}/limits", f"{BASE}/ledger")
READ_ONLY = ("bind", "ro", "nosuid", "nodev")  # not noexec: the loader has to map libraries
# Of the container's own: a directory that is a mount point can be neither renamed nor replaced.
OWN_BASE = ("tmpfs", "ro", "nosuid", "nodev", "noexec", "mode=755")
_READ_ONLY = ("bind", "ro", "nosuid", "nodev", "noexec")
_LEDGER = ("bind", "rw", "nosuid", "nodev", "noexec")
HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
_HOOK_SECONDS = 10


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

    def without_limits(self) -> Plan:
        """Return a plan with the same GPUs and libraries, and without limits, ledger and hooks."""
        mounts = tuple(m for m in self.mounts if not f"{m.destination}/".startswith(f"{BASE}/"))
        return self._replace(request=None, mounts=mounts, hooks={})

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


def plan_container(
    config: dict[str, Any], asked: Asked, node: Node, rootfs: RootfsView, host_files: HostFiles
) -> Plan:
    """Decide what to do to a container.

    Args:
        config: its OCI configuration, checked by ``document.check_config``.
        asked: what its environment asks for.
        node: the facts about the node.
        rootfs: the image's file system.
        host_files: files of the host.

    Raises:
        CgpuError: one sentence that says why the container must not start.
    """
    request = resolve_request(asked, [gpu.as_gpu for gpu in node.gpus])
    if request is None:
        return Plan()
    return plan_share(config, request, asked.given, node, rootfs, host_files)


def plan_share(  # noqa: PLR0913, PLR0917 (what a plan is made from)
    config: dict[str, Any],
    request: Request,
    env: Mapping[str, str],
    node: Node,
    rootfs: RootfsView,
    host_files: HostFiles,
) -> Plan:
    """Plan for a known share; ``env`` has the container's search path for libraries.

    Raises:
        CgpuError: as ``plan_container``.
    """
    taken, view = _mounts_of(config, rootfs)
    brought = _find_drivers(config, env, taken, view, host_files)
    mounts, masks = _driver_mounts(taken, node, rootfs, host_files, brought)
    everything = (*_own_mounts(node, host_files), *mounts)
    _refuse_covered([*(mount.destination for mount in everything), *masks], taken, brought, config)
    granted = {share.index for share in request.gpus}
    return Plan(
        request,
        notes=request.notes,
        mounts=everything,
        devices=(
            *node.device_nodes,
            *(n for gpu in node.gpus if gpu.index in granted for n in gpu.device_nodes),
        ),
        withheld=tuple(
            n for gpu in node.gpus if gpu.index not in granted for n in gpu.device_nodes
        ),
        masks=masks,
        hooks={"poststop": [_make_poststop_hook(host_files)]},
    )


def _mounts_of(
    config: dict[str, Any], rootfs: RootfsView
) -> tuple[dict[str, dict[str, Any]], Mounted]:
    """Path inside the root -> the configuration's own mount there; and the view with them.

    /dev must be a file system of the container's own, and /dev/cgpu must be free: a file that is
    created there must not end up in a directory of the host.
    """
    fresh = False
    found = {}
    view = Mounted(rootfs, _read_cwd(config))
    for mount in config.get("mounts") or []:
        given = mount["destination"]
        destination = resolve_path(view, given)
        if destination == "/dev" and mount.get("type") == "tmpfs":
            fresh = True
            continue
        if destination in ("/", "/dev") or f"{destination}/".startswith(f"{BASE}/"):
            raise CgpuError(
                f"the mount of {printable(str(mount.get('source', mount.get('type'))))} at"
                f" {printable(given)} covers {BASE}, where the container's limits belong: not"
                " allowed"
            )
        found[destination] = mount
        view.add(destination, mount)
    if not fresh:
        raise CgpuError(f"no tmpfs is mounted at /dev: {BASE} needs a /dev of the container's own")
    return found, view


def _own_mounts(node: Node, host_files: HostFiles) -> list[Mount]:
    real = [Mount(path, f"{BASE}/real/{soname}") for soname, path in node.libraries.items()]
    return [
        Mount(host_files.share_directory, BASE, OWN_BASE),  # a tmpfs takes any source
        Mount(f"{host_files.share_directory}/limits", SHARE_FILES[0], _READ_ONLY),
        Mount(f"{host_files.share_directory}/ledger", SHARE_FILES[1], _LEDGER),
        *real,
    ]


def _find_drivers(
    config: dict[str, Any],
    env: Mapping[str, str],
    taken: dict[str, dict[str, Any]],
    view: Mounted,
    host_files: HostFiles,
) -> dict[str, list[str]]:
    """SONAME -> files of a driver in the image or in a mounted directory."""
    finder = LibraryFinder(view, (*host_files.proxies, libraries.OPENCL))
    shown_directories = [inside for inside, mount in taken.items() if is_bind(mount)]
    finder.search(env, _read_cwd(config), mounts=shown_directories)
    return finder.files


def _read_cwd(config: dict[str, Any]) -> str:
    """The working directory of the container's first program."""
    cwd = (config.get("process") or {}).get("cwd")
    return cwd if isinstance(cwd, str) else "/"


def _driver_mounts(
    taken: dict[str, dict[str, Any]],
    node: Node,
    rootfs: RootfsView,
    host_files: HostFiles,
    brought: dict[str, list[str]],
) -> tuple[list[Mount], tuple[str, ...]]:
    directories = libraries.loader_directories(rootfs)
    chained = any(_find_mounted(taken, soname) for soname in host_files.proxies)
    mounts = []
    for soname, proxy in host_files.proxies.items():
        targets = _find_mounted(taken, soname)
        for directory in directories:
            if chained:
                targets += libraries.find_library_files(rootfs, [directory], soname)
            else:
                targets += libraries.paths_to_cover(rootfs, directory, soname)
        targets += brought[soname]
        mounts += [Mount(proxy, target) for target in dict.fromkeys(targets)]
    if not chained:
        mounts += _mount_companions(node, rootfs, directories)
        mounts += [
            Mount(program, path)
            for path, program in host_files.tools.items()
            if _is_free(rootfs, path) and path not in taken
        ]
    there = {os.path.dirname(path) for paths in brought.values() for path in paths}
    mounts += _cover_companions(node, rootfs, sorted(there.difference(directories)))
    opencl = _find_mounted(taken, libraries.OPENCL)
    opencl += libraries.find_library_files(rootfs, directories, libraries.OPENCL)
    return mounts, tuple(dict.fromkeys(opencl + brought[libraries.OPENCL]))


def _find_mounted(taken: dict[str, dict[str, Any]], soname: str) -> list[str]:
    """Return the paths at which another runtime has mounted a version of a library."""
    return [
        inside
        for inside, mount in taken.items()
        if libraries.select_versions((inside, mount["destination"]), soname)
    ]


def _cover_companions(node: Node, rootfs: RootfsView, directories: list[str]) -> list[Mount]:
    """Cover libraries that another driver in the image would load: they fit only that driver."""
    return [
        Mount(path, target)
        for soname, path in node.companions.items()
        for target in libraries.find_library_files(rootfs, directories, soname)
    ]


def _mount_companions(node: Node, rootfs: RootfsView, directories: list[str]) -> list[Mount]:
    return [
        Mount(path, target)
        for directory in directories
        for soname, path in node.companions.items()
        for target in libraries.paths_to_cover(rootfs, directory, soname)
    ]


def _is_free(rootfs: RootfsView, path: str) -> bool:
    return rootfs.get_kind(os.path.dirname(path)) == "directory" and rootfs.get_kind(path) in (
        None,
        "file",
    )


def _refuse_covered(
    targets: list[str],
    taken: dict[str, dict[str, Any]],
    brought: dict[str, list[str]],
    config: dict[str, Any],
) -> None:
    """Refuse a user's mount above one of ours: our mount point would be created on the host.

    If a directory of the host contains the file already, nothing is created; but then the mount
    must not be shared, or the file would be covered on the host as well.
    """
    there = {path for paths in brought.values() for path in paths}
    for target in targets:
        for inside, mount in taken.items():
            if not target.startswith(f"{inside}/"):
                continue
            if target not in there:
                raise CgpuError(
                    f"a mount at {inside} covers {target}, "
                    "where the driver's library has to be mounted: not allowed"
                )
            if is_shared(mount, config):
                raise CgpuError(
                    f"the mount at {inside} contains the driver's {target} and is shared with the "
                    "host, where it would be covered too: mount it private or slave"
                )


def _make_poststop_hook(host_files: HostFiles) -> dict[str, Any]:
    name = os.path.basename(host_files.hook)
    return {
        "path": host_files.hook,
        "args": [name, "poststop", "--state-dir", host_files.state_dir, host_files.id],
        "env": list(HOOK_ENVIRONMENT),
        "timeout": _HOOK_SECONDS,
    }
