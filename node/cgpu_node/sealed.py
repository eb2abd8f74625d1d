"""The proxies as containers have them: in an overlay, which nobody can make writable.

Whoever has ``CAP_SYS_ADMIN`` in a container can remount a bind mount, and write to the file of the
host. An overlay without an upper layer has nothing to write to, however it is remounted.
"""

from __future__ import annotations

import os

from cgpu_node.trust import check_source

_BELOW = "cgpu_shim/_lib"  # where every release keeps its proxies, and by which it knows a mount
_SPECIAL = frozenset(",:\\")  # what the kernel would take for the end of a path
_OPTIONS = 0x1 | 0x2 | 0x4  # MS_RDONLY, MS_NOSUID, MS_NODEV
_DETACH = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW


def path(proxy: str, state_dir: str) -> str:
    """Where a proxy is if its folder's overlay is mounted.

    A folder whose files were replaced has another overlay: the kernel shows the old ones in a
    mounted one.

    Raises:
        OSError: there is no such proxy.
    """
    folder, name = os.path.split(proxy)
    facts = os.stat(folder)
    version = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_ctime_ns:x}"
    return f"{state_dir}/lib/{version}/{_BELOW}/{name}"


def sealed(proxy: str, state_dir: str, *, make: bool) -> str:
    """The proxy in its overlay, which is mounted if need be; ``proxy`` itself if there is none.

    Args:
        proxy: absolute, without links in it.
        state_dir: of root.
        make: whether it may be mounted.

    Raises:
        CgpuError: others could change the proxy.
    """
    inside = path(proxy, state_dir)
    if not os.path.exists(inside):
        if not make:
            return proxy
        check_source(proxy)
        try:
            _mount(os.path.dirname(proxy), os.path.dirname(inside), f"{state_dir}/lib/empty")
        except OSError:  # no overlayfs: cgpu doctor says so
            return proxy
    return inside


def is_refused(proxy: str, state_dir: str) -> bool:
    """Whether a container's start could not mount the overlay."""
    inside = path(proxy, state_dir)
    return os.path.isdir(os.path.dirname(inside)) and not os.path.exists(inside)


def unmount(state_dir: str) -> None:
    """Take the overlays away; containers keep those that they have."""
    import shutil

    from cgpu_native import system

    try:
        names = os.listdir(f"{state_dir}/lib")
    except OSError:
        return
    for name in names:
        point = f"{state_dir}/lib/{name}/{_BELOW}"
        try:
            while True:  # two that started at once mounted it twice
                system.unmount(point, _DETACH)
        except OSError:
            pass
    shutil.rmtree(f"{state_dir}/lib", ignore_errors=True)


def _mount(folder: str, point: str, empty: str) -> None:
    from cgpu_native import system

    before = os.umask(0o022)  # an engine's may be anything
    try:
        os.makedirs(point, exist_ok=True)
        os.makedirs(empty, exist_ok=True)  # without an upper layer, there have to be two lower ones
    finally:
        os.umask(before)
    if _SPECIAL.intersection(folder):
        raise OSError
    system.mount("cgpu", point, "overlay", _OPTIONS, f"lowerdir={folder}:{empty}")
