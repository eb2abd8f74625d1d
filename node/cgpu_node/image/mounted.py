"""A container's file system as it will be: the image, with the configuration's mounts."""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cgpu_node.image.rootfs import RootfsView

# File systems that begin empty, or that hold only the kernel's files.
_WITHOUT_LIBRARIES = frozenset(
    (
        *("tmpfs", "ramfs", "devtmpfs", "devpts", "mqueue", "hugetlbfs"),
        *("proc", "sysfs", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "bpf"),
        *("configfs", "fusectl", "pstore", "efivarfs", "binfmt_misc"),
    )
)


class Mounted:
    """The view of an image with the mounts added to it, in their order. It remembers links."""

    is_complete = True

    def __init__(self, image: RootfsView, cwd: str = "/") -> None:
        self._image, self._cwd = image, cwd
        self._procs: list[str] = []  # where the kernel shows processes
        self._views: dict[str, RootfsView | None] = {}
        self._opaque: dict[str, str] = {}
        self._links: dict[str, str] = {}

    def add(self, destination: str, mount: dict[str, Any]) -> None:
        """Add a mount.

        Args:
            destination: where it is in the end, after all links.
            mount: the mount, as the configuration has it.
        """
        options = mount.get("options") or []
        kind, source = mount.get("type"), mount.get("source")
        self._links.clear()
        if kind == "proc" or (is_bind(mount) and os.path.normpath(str(source)) == "/proc"):
            self._procs.append(f"{destination}/")
        if self._image.is_complete or "tmpcopyup" in options:
            return
        self._views[destination] = None
        self._opaque.pop(destination, None)
        if is_bind(mount) and isinstance(source, str):
            self._views[destination] = self._image.on_host(source)
        elif kind not in _WITHOUT_LIBRARIES:
            self._opaque[destination] = str(kind)

    def get_kind(self, path: str) -> str | None:
        """See ``RootfsView.get_kind``; also for a mounted file."""
        point, view, below = self._find_visible(path)
        found = None if view is None else view.get_kind(below)
        if below == "/" and point:
            return "directory" if view is None else found or "file"
        return found

    def list_names(self, path: str) -> list[str]:
        """See ``RootfsView.list_names``; without mount points that the runtime will create."""
        _, view, below = self._find_visible(path)
        return [] if view is None else view.list_names(below)

    def list_folders(self, path: str) -> list[str]:
        """See ``RootfsView.list_folders``; without mount points that the runtime will create."""
        _, view, below = self._find_visible(path)
        return [] if view is None else view.list_folders(below)

    def read_link(self, path: str) -> str:
        """See ``RootfsView.read_link``."""
        found = self._links.get(path)
        if found is None:
            _, view, below = self._find_view(path)
            found = "" if view is None or below == "/" else view.read_link(below)
            self._links[path] = found = self._read_process_link(path) or found
        return found

    def _read_process_link(self, path: str) -> str:
        """Return the target of ``/proc/self/root`` or the like, of any process or thread; else "".

        All programs of a container have its root. Their working directory is assumed to be that of
        the first program.
        """
        if not path.startswith(tuple(self._procs)):
            return ""
        return {"root": "/", "cwd": self._cwd}.get(os.path.basename(path), "")

    def read(self, path: str, most: int) -> bytes | None:
        """See ``RootfsView.read``."""
        _, view, below = self._find_visible(path)
        return None if view is None else view.read(below, most)

    def read_part(self, path: str, start: int, most: int) -> bytes:
        """See ``RootfsView.read_part``."""
        _, view, below = self._find_visible(path)
        return b"" if view is None else view.read_part(below, start, most)

    def on_host(self, source: str) -> RootfsView:
        """See ``RootfsView.on_host``."""
        return self._image.on_host(source)

    def _find_view(self, path: str) -> tuple[str, RootfsView | None, str]:
        point = path
        while len(point) > 1:
            if point in self._views:
                return point, self._views[point], path[len(point) :] or "/"
            point = os.path.dirname(point)
        return "", self._image, path

    def _find_visible(self, path: str) -> tuple[str, RootfsView | None, str]:
        point, view, below = self._find_view(path)
        if point in self._opaque:
            raise CgpuError(
                f"the mount of {printable(self._opaque[point])} at {printable(point)} may contain"
                " a driver, but its files cannot be seen: mount a directory there, or mount it"
                " elsewhere"
            )
        return point, view, below


def is_bind(mount: dict[str, Any]) -> bool:
    """Return whether a mount of the configuration shows a file or directory of the host."""
    options = mount.get("options") or []
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options


def is_shared(mount: dict[str, Any], config: dict[str, Any]) -> bool:
    """Return whether a mount below this mount of the configuration also appears on the host."""
    options = mount.get("options") or []
    if "shared" in options or "rshared" in options:
        return True
    own = {"private", "rprivate", "slave", "rslave", "unbindable", "runbindable"}
    whole = (config.get("linux") or {}).get("rootfsPropagation")
    return whole in ("shared", "rshared") and not own.intersection(options)
