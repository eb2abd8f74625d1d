"""What is in a container's root file system, seen without ever leaving it.

Every step is taken from the file descriptor of the directory before, and no symbolic link is
followed by the kernel: an image can show whatever it likes, it cannot lead us outside.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class View(Protocol):
        """The file system that a planner looks at; paths are absolute inside it."""

        def kind(self, path: str) -> str | None:
            """``file``, ``directory``, ``link``, ``other``, or None where there is nothing."""

        def names(self, path: str) -> list[str]:
            """The entries of a directory, sorted; empty where it is none."""

        def link(self, path: str) -> str:
            """What a symbolic link says; empty where it is none."""


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
_MOST_LINKS = 40


class Rootfs:
    """The tree below the directory ``path`` of the host."""

    def __init__(self, path: str) -> None:
        self.path = path

    def kind(self, path: str) -> str | None:
        """``file``, ``directory``, ``link``, ``other``, or None where there is nothing."""
        folder, name = os.path.split(path)
        fd = self._directory(folder)
        if fd is None:
            return None
        try:
            mode = os.stat(name or ".", dir_fd=fd, follow_symlinks=False).st_mode
        except OSError:
            return None
        finally:
            os.close(fd)
        return _KINDS.get(stat.S_IFMT(mode), "other")

    def names(self, path: str) -> list[str]:
        """The entries of a directory, sorted; empty where it is none."""
        fd = self._directory(path)
        if fd is None:
            return []
        readable = None
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            return sorted(os.listdir(readable))
        except OSError:
            return []
        finally:
            os.close(fd)
            if readable is not None:
                os.close(readable)

    def link(self, path: str) -> str:
        """What a symbolic link says; empty where it is none."""
        folder, name = os.path.split(path)
        fd = self._directory(folder)
        if fd is None:
            return ""
        try:
            return os.readlink(name, dir_fd=fd)
        except OSError:
            return ""
        finally:
            os.close(fd)

    def _directory(self, path: str) -> int | None:
        """A descriptor of a directory that is reached without any link, or None."""
        try:
            fd = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None
        for part in filter(None, path.split("/")):
            try:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
            except OSError:
                return None
            finally:
                os.close(fd)
            fd = below
        return fd


def resolved(view: View, path: str) -> str:
    """Where ``path`` leads inside the root, its symbolic links followed as a runtime does.

    A path that does not exist, or a loop, ends where it can be followed no further.
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
        text = view.link("/" + "/".join([*done, part])) if links < _MOST_LINKS else ""
        if not text:
            done.append(part)
            continue
        links += 1
        if text.startswith("/"):
            done.clear()
        todo.extend(text.split("/")[::-1])
    return "/" + "/".join(done)
