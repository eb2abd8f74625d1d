"""The proxies as containers have them: in an overlay, which nobody can make writable.

In a container, a process with ``CAP_SYS_ADMIN`` can remount a bind mount, and write to the host's
file. An overlay without an upper layer has nothing to write to, however it is remounted.
"""

from __future__ import annotations

import os

from cgpu_node.trust import check_source

_BELOW = "cgpu_shim/_lib"  # every release keeps its proxies there, and knows a mount by that
_SPECIAL = ",:\\"  # the kernel would end a path there
_OPTIONS = 0x1 | 0x2 | 0x4  # MS_RDONLY, MS_NOSUID, MS_NODEV
_DETACH = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW


def overlay_path(proxy: str, state_dir: str) -> str:
    """Return the path of a proxy in its overlay, which need not be mounted.

    A proxy that was replaced, or whose mode was changed, has another overlay: in a mounted overlay
    the kernel keeps showing the old file, or the old mode.

    Raises:
        OSError: there is no such proxy.
    """
    facts = os.stat(proxy)
    version = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_ctime_ns:x}"
    return f"{state_dir}/lib/{version}/{_BELOW}/{os.path.basename(proxy)}"


def seal_proxy(proxy: str, state_dir: str, *, mount: bool) -> str:
    """Return the path of the proxy in its overlay; ``proxy`` itself if it has no overlay.

    Args:
        proxy: the path of the proxy, absolute, without links in it.
        state_dir: root's state directory.
        mount: whether the overlay may be mounted, if it is not yet.

    Raises:
        CgpuError: others could change the proxy.
    """
    inside = overlay_path(proxy, state_dir)
    if not os.path.exists(inside):
        if not mount:
            return proxy
        check_source(proxy)
        try:
            _mount_overlay(
                os.path.dirname(proxy), os.path.dirname(inside), f"{state_dir}/lib/empty"
            )
        except OSError:  # no overlayfs: cgpu doctor reports it
            return proxy
    return inside


def is_refused(proxy: str, state_dir: str) -> bool:
    """Return whether the start of a container tried to mount the overlay and could not."""
    inside = overlay_path(proxy, state_dir)
    return os.path.isdir(os.path.dirname(inside)) and not os.path.exists(inside)


def find_special_character(folder: str) -> str:
    """Return the first character of a path that an overlay's options cannot have; else ""."""
    return next((each for each in folder if each in _SPECIAL), "")


def unmount_overlays(state_dir: str) -> None:
    """Unmount and remove the overlays. Containers keep those that they have."""
    from contextlib import suppress

    from cgpu_native import system

    lib = f"{state_dir}/lib"
    try:
        names = os.listdir(lib)
    except OSError:
        return
    for name in names:
        point = f"{lib}/{name}/{_BELOW}"
        with suppress(OSError):
            while True:  # two processes that started at once have mounted it twice
                system.unmount(point, _DETACH)
        for made in (point, os.path.dirname(point), f"{lib}/{name}"):
            with suppress(OSError):  # it is not ours: something is in it
                os.rmdir(made)
    with suppress(OSError):
        os.rmdir(lib)


def _mount_overlay(folder: str, point: str, empty: str) -> None:
    from cgpu_native import system

    before = os.umask(0o022)  # an engine's may be anything
    try:
        os.makedirs(point, exist_ok=True)
        os.makedirs(empty, exist_ok=True)  # without an upper layer, there have to be two lower ones
    finally:
        os.umask(before)
    if find_special_character(folder):
        raise OSError
    system.mount("cgpu", point, "overlay", _OPTIONS, f"lowerdir={folder}:{empty}")
