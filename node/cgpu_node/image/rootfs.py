"""The content of a container's root file system, read without ever leaving it.

Each step starts from the file descriptor of the previous directory, and the kernel follows no
symbolic link. So an image can contain anything, but cannot lead us outside.
"""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import CgpuError, printable, refuse_exhausted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class RootfsView(Protocol):
        """The file system that a planner reads; paths in it are absolute."""

        def get_kind(self, path: str) -> str | None:
            """Return ``file``, ``directory``, ``link``, ``other``, or None if there is nothing."""

        def list_names(self, path: str) -> list[str]:
            """Return the names in a directory, sorted; empty if it is no directory."""

        def list_folders(self, path: str) -> list[str]:
            """Return the names of the directories in a directory, without links to directories."""

        def read_link(self, path: str) -> str:
            """Return the target of a symbolic link; "" if ``path`` is no link."""

        def read(self, path: str, most: int) -> bytes | None:
            """Return the content of a file; None if there is no file."""

        def read_part(self, path: str, start: int, most: int) -> bytes:
            """Return at most ``most`` bytes of a file from ``start``; none if there is no file."""

        def on_host(self, source: str) -> RootfsView:
            """Return the tree below ``source``, a directory of the host from a configuration."""

        @property
        def is_complete(self) -> bool:
            """Whether the root file system already contains the container's mounts."""


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_MOST_LINKS = 40
_DEEPEST, _MOST_OPEN = 64, 256


class Rootfs:
    """The tree below the directory ``path`` of the host.

    It keeps directories open until it is closed, because most paths begin alike, and remembers
    their names.
    """

    def __init__(self, path: str, *, bundle: str = "/", is_complete: bool = False) -> None:
        self.path = path
        self.bundle = bundle
        self.is_complete = is_complete
        self._open: dict[str, int | None] = {}
        self._names: dict[str, list[str]] = {}

    def __del__(self) -> None:
        """Close it if the caller has not."""
        self.close()

    def get_kind(self, path: str) -> str | None:
        """Return ``file``, ``directory``, ``link``, ``other``, or None if there is nothing."""
        folder, name = os.path.split(path)
        fd = self._open_directory(folder)
        if fd is None:
            return None
        try:
            mode = os.stat(name or ".", dir_fd=fd, follow_symlinks=False).st_mode
        except OSError:
            return None
        return _KINDS.get(stat.S_IFMT(mode), "other")

    def list_names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it is no directory."""
        if path not in self._names:
            self._names[path] = sorted(self._list_directory(path, os.listdir))
        return self._names[path]

    def list_folders(self, path: str) -> list[str]:
        """Return the names of the directories in a directory, without links to directories."""
        return self._list_directory(path, _scan_folders)

    def _list_directory(self, path: str, listed: Callable[[int], list[str]]) -> list[str]:
        fd = self._open_directory(path)
        if fd is None:
            return []
        readable = None
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            return listed(readable)
        except OSError as error:
            _refuse_exhausted(error)
            return []
        finally:
            if readable is not None:
                os.close(readable)

    def read_link(self, path: str) -> str:
        """Return the target of a symbolic link; "" if ``path`` is no link."""
        folder, name = os.path.split(path)
        fd = self._open_directory(folder)
        if fd is None:
            return ""
        try:
            return os.readlink(name, dir_fd=fd)
        except OSError:
            return ""

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a file; None if there is no file.

        Raises:
            CgpuError: it is larger than ``most``, or a process holds a lease on it.
        """
        file = self._open_file(path)
        if file is None:
            return None
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                return None
            if facts.st_size > most:
                raise CgpuError(f"the image's {printable(path)} is larger than {most >> 20} MiB")
            return os.pread(file, facts.st_size, 0)
        except OSError:
            return None
        finally:
            os.close(file)

    def read_part(self, path: str, start: int, most: int) -> bytes:
        """Return at most ``most`` bytes of a file from ``start``; none if there is no file.

        Raises:
            CgpuError: a process holds a lease on it.
        """
        file = self._open_file(path)
        if file is None:
            return b""
        try:
            is_plain = stat.S_ISREG(os.fstat(file).st_mode)
            return os.pread(file, most, start) if is_plain else b""
        except (OSError, OverflowError):  # an offset that no file has
            return b""
        finally:
            os.close(file)

    def _open_file(self, path: str) -> int | None:
        folder, name = os.path.split(path)
        fd = self._open_directory(folder)
        if fd is None:
            return None
        try:
            return os.open(name, _READ, dir_fd=fd)
        except BlockingIOError:  # the container will read it, so it must not be skipped
            raise CgpuError(
                f"the image's '{printable(path)}': another process holds a lease on it",
                hint="end the container that shares this file and holds the lease",
            ) from None
        except OSError as error:
            _refuse_exhausted(error)
            return None

    def on_host(self, source: str) -> Rootfs:
        """Return the tree below ``source``, whose links are followed, as the runtime does."""
        return Rootfs(os.path.join(self.bundle, source))

    def _open_directory(self, path: str) -> int | None:
        """Open a directory whose path has no link, and keep it open; None if there is none.

        Raises:
            CgpuError: the path is deeper than in any real image.
        """
        if path in self._open:
            return self._open[path]
        parts = [part for part in path.split("/") if part]
        if len(parts) > _DEEPEST:
            raise CgpuError(f"the path {printable(path)} has more than {_DEEPEST} directories")
        if len(self._open) > _MOST_OPEN:
            self.close()
        reached = ""
        fd = self._open_step(reached, self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, None)
        for part in parts:
            if fd is None:
                break
            reached = f"{reached}/{part}"
            fd = self._open_step(reached, part, _DIRECTORY, fd)
        self._open[path] = fd
        return fd

    def _open_step(self, reached: str, name: str, flags: int, above: int | None) -> int | None:
        if reached not in self._open:
            try:
                self._open[reached] = os.open(name, flags, dir_fd=above)
            except OSError as error:
                _refuse_exhausted(error)
                self._open[reached] = None
        return self._open[reached]

    def close(self) -> None:
        """Close the directories that were kept open."""
        for fd in {fd for fd in self._open.values() if fd is not None}:
            os.close(fd)
        self._open.clear()


def _scan_folders(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _refuse_exhausted(error: OSError) -> None:
    refuse_exhausted(
        error,
        "what the image and its mounts have",
        hint="mount fewer directories, or raise the engine's limit of open files",
    )


def resolve_path(view: RootfsView, path: str) -> str:
    """Resolve ``path`` inside the root, and follow its symbolic links as a runtime does.

    If a path does not exist or is a loop, returns the path up to which it can be followed.
    """
    todo = [part for part in path.split("/") if part][::-1]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part in (".", ""):
            continue
        if part == "..":
            del done[-1:]
            continue
        text = view.read_link("/" + "/".join([*done, part])) if links < _MOST_LINKS else ""
        if not text:
            done.append(part)
            continue
        links += 1
        if text.startswith("/"):
            done.clear()
        todo.extend(text.split("/")[::-1])
    return "/" + "/".join(done)
