"""The machine that is changed: this one, or a tree of files that will become one."""

from __future__ import annotations

import glob
import os
import stat
from typing import NamedTuple

from cgpu_env import CgpuError

BIN_DIR = "/usr/bin"
BOOTED = "/run/systemd/system"  # exists where systemd runs the machine, as in sd_booted(3)
_NOT_PLAIN = {
    stat.S_IFLNK: "not a link, which another tool owns",
    stat.S_IFDIR: "not a directory",
    stat.S_IFIFO: "not a pipe",
    stat.S_IFSOCK: "not a socket",
}
_BINARIES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")


class ClosedError(CgpuError):
    """A file that this user may not read."""


class Link(NamedTuple):
    """A symbolic link."""

    target: str


Content = bytes | Link | None  # None: nothing is there


class Change(NamedTuple):
    """A change of a file or link. ``undo`` is the content that ``cgpu uninstall`` leaves there."""

    engine: str
    path: str
    before: Content
    after: Content
    undo: Content


class Machine(NamedTuple):
    """A machine: its files are below ``root``, and programs are linked into ``bin_dir``.

    Nobody else may change the tree at ``root`` meanwhile: links in it are checked before they are
    used.
    """

    root: str = ""
    bin_dir: str = BIN_DIR

    def resolve_path(self, path: str) -> str:
        """Return the path by which this process reaches the machine's ``path``.

        Raises:
            CgpuError: its folder is outside the root.
        """
        if self.root:
            folder, top = os.path.dirname(path), os.path.realpath(self.root)
            if os.path.commonpath((os.path.realpath(f"{self.root}{folder}"), top)) != top:
                raise CgpuError(f"{folder}: leads out of --root {self.root}")
        return f"{self.root}{path}"

    def program_path(self, name: str) -> str:
        """Return the path by which engines know a program of cgpu."""
        return f"{self.bin_dir}/{name}"

    def has(self, *paths: str) -> bool:
        """Whether one of ``paths`` exists."""
        return any(os.path.lexists(self.resolve_path(path)) for path in paths)

    def has_program(self, name: str) -> bool:
        """Whether a program is in one of the usual directories."""
        return self.has(*(f"{folder}/{name}" for folder in _BINARIES))

    def find_paths(self, pattern: str) -> list[str]:
        """Return the machine's paths that match a pattern, in order."""
        return sorted(path[len(self.root) :] for path in glob.glob(self.resolve_path(pattern)))

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is no file.

        Raises:
            CgpuError: it is no plain file, or cannot be read.
        """
        try:
            kind = stat.S_IFMT(os.lstat(self.resolve_path(path)).st_mode)
            if kind != stat.S_IFREG:
                because = _NOT_PLAIN.get(kind, "not a device")
                raise CgpuError(f"{path}: expected a plain file, {because}")
            with open(self.resolve_path(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            kind_of = ClosedError if isinstance(error, PermissionError) else CgpuError
            raise kind_of(f"{path}: {error.strerror}") from None

    def read_text(self, path: str) -> str:
        """Return a file's text; "" if there is no file.

        Raises:
            CgpuError: see ``read``; or it is not UTF-8.
        """
        try:
            return (self.read(path) or b"").decode()
        except UnicodeDecodeError:
            raise CgpuError(f"{path}: expected UTF-8") from None

    def read_content(self, path: str) -> Content:
        """Return the content of a file, or a link; None if there is neither.

        Raises:
            CgpuError: it is a directory or a device, or it cannot be read.
        """
        real = self.resolve_path(path)
        return Link(os.readlink(real)) if os.path.islink(real) else self.read(path)

    def check_folder(self, path: str) -> None:
        """Refuse a path whose folder cannot be made, or is outside the root.

        Raises:
            CgpuError: something other than a directory is above it, or a link leads out of the
                root.
        """
        folder = os.path.dirname(path)
        while not os.path.lexists(self.resolve_path(folder)):
            folder = os.path.dirname(folder)
        if not os.path.isdir(self.resolve_path(folder)):
            raise CgpuError(f"{folder}: expected a directory")
        self.resolve_path(path)
