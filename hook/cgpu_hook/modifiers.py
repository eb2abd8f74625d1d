"""The steps of a container's creation. Each adds to one draft, and changes nothing on the node.

One step finds the container's share; the others add what the container gets for it.
"""

from __future__ import annotations

import os

from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError, printable
from cgpu_env.request import MEANT, parse_variables, resolve_request, without_size
from cgpu_hook.plan import BASE, HOOK_ENVIRONMENT, SHARE_FILES, Draft, Mount, variables_of
from cgpu_node.image import libraries
from cgpu_node.image.loader import LibraryFinder
from cgpu_node.image.mounted import Mounted, is_bind, is_shared
from cgpu_node.image.rootfs import resolve_path
from cgpu_node.paths import state_path
from cgpu_node.settings.config import load_config
from cgpu_node.settings.rules import default_of_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from cgpu_hook.plan import HostFiles, Setting
    from cgpu_node.facts.node import Node
    from cgpu_node.image.rootfs import RootfsView

    Modifier = Callable[[Draft], None]

# A tmpfs of the container's own: nobody can rename or replace a directory that is a mount point.
_OWN_BASE = ("tmpfs", "ro", "nosuid", "nodev", "noexec", "mode=755")
_READ_ONLY = ("bind", "ro", "nosuid", "nodev", "noexec")
_LEDGER = ("bind", "rw", "nosuid", "nodev", "noexec")
_HOOK_SECONDS = 10


def draft_container(
    config: dict[str, Any], name: str, rootfs: Callable[[], RootfsView], setting: Setting
) -> Draft:
    """Draft the creation of the container ``name``; nothing is changed.

    If cgpu is off, the draft is empty, and neither state directory nor driver is needed.

    Raises:
        CgpuError: the container must not start; one sentence says why.
    """
    try:
        return modify(Draft(config, name, rootfs, setting, load_config()))
    except GpuLostError:  # by the known facts
        return modify(Draft(config, name, rootfs, setting, load_config(), refresh=True))


def modify(draft: Draft) -> Draft:
    """Let all modifiers add to ``draft``."""
    for modifier in _list_modifiers(draft):
        modifier(draft)
    return draft


def edit_config(draft: Draft) -> dict[str, Any]:
    """Return the container's new configuration; the given one itself if nothing is to be changed.

    Raises:
        CgpuError: see ``apply_plan``.
    """
    if not any(draft.plan):
        return draft.config
    from cgpu_hook.edit import apply_plan

    return apply_plan(draft.config, draft.plan)


def _list_modifiers(draft: Draft) -> tuple[Modifier, ...]:
    """Return the modifiers for the container, in order. The first one finds its share."""
    kubernetes = draft.settings.kubernetes
    if kubernetes is not None:
        from cgpu_hook.pod import pod_of

        draft.pod = pod_of(draft.config)
        if draft.pod is not None and draft.pod.namespace not in kubernetes.pass_through:
            from cgpu_hook import allocation

            return (
                allocation.withhold_gpus,
                allocation.check_allocation,
                allocation.read_allocation,
                *GIVING,
            )
    return read_variables, *GIVING


def read_variables(draft: Draft) -> None:
    """Find the share that the container's own variables ask for."""
    setting, settings = draft.setting, draft.settings

    def read_default() -> int | str:
        if setting.default_memsize is not None:
            return setting.default_memsize
        return default_of_new(state_path(setting.state_dir), settings.default_memsize)

    variables = variables_of(draft.config)
    asked = parse_variables(variables, read_default, allow_off=settings.allow_off)
    if asked is None:
        if not setting.dry:
            _warn_administrator(without_size(variables), draft.id)
        return
    from cgpu_hook.container import load_host

    config = load_host(draft)
    draft.request = resolve_request(asked, [gpu.as_gpu for gpu in draft.node.gpus])
    if draft.request is not None:
        draft.config = config


def _warn_administrator(note: str | None, name: str) -> None:
    """Warn the node's administrator: engines show a hook's output only if the hook fails."""
    if note is not None:
        from cgpu_hook.systemlog import WARNING, log

        log(WARNING, "size_missing", {"container": name, "note": note, "do": MEANT})


def add_share(draft: Draft) -> None:
    """Hold the container to its share, by limits, ledger, the real libraries and the hook."""
    request = draft.request
    if request is None or not draft.is_capped:
        return
    files = draft.host_files
    mounts = (
        Mount(files.share_directory, BASE, _OWN_BASE),  # a tmpfs takes any source
        Mount(f"{files.share_directory}/limits", SHARE_FILES[0], _READ_ONLY),
        Mount(f"{files.share_directory}/ledger", SHARE_FILES[1], _LEDGER),
        *(Mount(path, f"{BASE}/real/{name}") for name, path in draft.node.libraries.items()),
    )
    draft.plan = draft.plan._replace(
        request=request, notes=request.notes, mounts=mounts, hooks=_make_hooks(files)
    )


def _make_hooks(files: HostFiles) -> dict[str, list[dict[str, Any]]]:
    poststop = {
        "path": files.hook,
        "args": [
            os.path.basename(files.hook),
            "poststop",
            "--state-dir",
            files.state_dir,
            files.id,
        ],
        "env": list(HOOK_ENVIRONMENT),
        "timeout": _HOOK_SECONDS,
    }
    return {"poststop": [poststop]}


def add_libraries(draft: Draft) -> None:
    """Mount proxies and driver where the container's loader finds them, over the image's own.

    Raises:
        CgpuError: a mount or a file of the image is in the way.
    """
    if draft.request is None:
        return
    config, node, rootfs = draft.config, draft.node, draft.open_rootfs()
    # Without a cap there are no proxies: the driver's own libraries are mounted in their place.
    proxies = draft.host_files.proxies if draft.is_capped else node.libraries
    taken, view = _mounts_of(config, rootfs)
    finder = LibraryFinder(view, (*proxies, libraries.OPENCL))
    shown_directories = [inside for inside, mount in taken.items() if is_bind(mount)]
    finder.search(variables_of(config), _read_cwd(config), mounts=shown_directories)
    brought = finder.files  # SONAME -> files of a driver in the image or in a mounted directory
    mounts = _mount_driver(draft, proxies, taken, rootfs, brought)
    directories = libraries.loader_directories(rootfs)
    opencl = _find_mounted(taken, libraries.OPENCL)
    opencl += libraries.find_library_files(rootfs, directories, libraries.OPENCL)
    masks = tuple(dict.fromkeys(opencl + brought[libraries.OPENCL]))
    _refuse_covered([*(mount.destination for mount in mounts), *masks], taken, brought, config)
    draft.plan = draft.plan._replace(mounts=(*draft.plan.mounts, *mounts), masks=masks)


def add_devices(draft: Draft) -> None:
    """Add the device nodes of the GPUs that were granted, and withhold those of all others."""
    if draft.request is None:
        return
    node, granted = draft.node, {share.index for share in draft.request.gpus}
    mine = (n for gpu in node.gpus if gpu.index in granted for n in gpu.device_nodes)
    others = (n for gpu in node.gpus if gpu.index not in granted for n in gpu.device_nodes)
    draft.plan = draft.plan._replace(devices=(*node.device_nodes, *mine), withheld=tuple(others))


GIVING: tuple[Modifier, ...] = (add_share, add_libraries, add_devices)


def _mounts_of(
    config: dict[str, Any], rootfs: RootfsView
) -> tuple[dict[str, dict[str, Any]], Mounted]:
    """Return the configuration's own mounts by path inside the root, and the view with them.

    /dev must be a file system of the container's own, and /dev/cgpu must be free: otherwise a file
    that is created there could be created in a directory of the host.
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


def _read_cwd(config: dict[str, Any]) -> str:
    """Return the working directory of the container's first program."""
    cwd = (config.get("process") or {}).get("cwd")
    return cwd if isinstance(cwd, str) else "/"


def _mount_driver(
    draft: Draft,
    proxies: Mapping[str, str],
    taken: dict[str, dict[str, Any]],
    rootfs: RootfsView,
    brought: dict[str, list[str]],
) -> list[Mount]:
    node, directories = draft.node, libraries.loader_directories(rootfs)
    chained = any(_find_mounted(taken, soname) for soname in proxies)
    mounts = []
    for soname, proxy in proxies.items():
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
            for path, program in draft.host_files.tools.items()
            if _is_free(rootfs, path) and path not in taken
        ]
    there = {os.path.dirname(path) for paths in brought.values() for path in paths}
    return mounts + _cover_companions(node, rootfs, sorted(there.difference(directories)))


def _find_mounted(taken: dict[str, dict[str, Any]], soname: str) -> list[str]:
    """Return the paths at which another runtime has mounted a version of the library ``soname``."""
    return [
        inside
        for inside, mount in taken.items()
        if libraries.select_versions((inside, mount["destination"]), soname)
    ]


def _mount_companions(node: Node, rootfs: RootfsView, directories: list[str]) -> list[Mount]:
    return [
        Mount(path, target)
        for directory in directories
        for soname, path in node.companions.items()
        for target in libraries.paths_to_cover(rootfs, directory, soname)
    ]


def _cover_companions(node: Node, rootfs: RootfsView, directories: list[str]) -> list[Mount]:
    """Cover libraries of another driver in the image, which fit only that driver."""
    return [
        Mount(path, target)
        for soname, path in node.companions.items()
        for target in libraries.find_library_files(rootfs, directories, soname)
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

    If the host's directory has the file already, nothing is created. But then the mount must not be
    shared, or the file would be covered on the host as well.
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
