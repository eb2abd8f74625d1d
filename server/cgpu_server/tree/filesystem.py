"""The control tree as a file system, in a thread of its own.

As in procfs, a file is read as a whole when it is opened, and each write sets one value. An error
here ends the tree and nothing else.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NoReturn

from cgpu_env import CgpuError
from cgpu_env.logline import locate_error
from cgpu_server.journal import log
from cgpu_server.tree import mounts
from cgpu_server.tree.nodes import Folder, MissingError, ReadOnlyError, Tree

_FOLDER, _READ_WRITE, _READ_ONLY = 0o755, 0o644, 0o444


class Files:
    """The operations that the FUSE library calls by these names. Their errors are ``OSError``."""

    use_ns = True

    def __init__(self, tree: Tree, write: Callable[[str, str], None]) -> None:
        self._tree, self._write = tree, write
        self._numbers = itertools.count(1)
        self._open: dict[int, bytes] = {}  # the content of each open file
        self._made = time.time_ns()

    def init_with_config(self, _: Any, config: Any) -> None:  # noqa: ANN401
        """Turn the kernel's caches off, so that every read sees the current state."""
        config.entry_timeout = config.attr_timeout = config.negative_timeout = 0
        config.direct_io = 1  # a file's length is not known before it is read

    def getattr(self, path: str, _: object = None) -> dict[str, int]:
        """Answer stat(2)."""
        entry = self._find_node(path)
        if isinstance(entry, Folder):
            mode, links = stat.S_IFDIR | _FOLDER, 2
        else:
            mode, links = stat.S_IFREG | (_READ_WRITE if entry.write else _READ_ONLY), 1
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._made)
        owner = {"st_uid": os.geteuid(), "st_gid": os.getegid()}
        return {"st_mode": mode, "st_nlink": links, "st_size": 0, **owner, **times}

    def readdir(self, path: str, _: int) -> list[str]:
        """Return the names in a folder."""
        try:
            return [".", "..", *self._tree.list_names(path)]
        except MissingError:
            raise OSError(errno.ENOENT, "no such folder") from None

    def open(self, path: str, flags: int) -> int:
        """Open a file; refuse to write to one that can only be read."""
        entry = self._find_node(path)
        if isinstance(entry, Folder):
            raise OSError(errno.EISDIR, "a folder")
        mode = flags & os.O_ACCMODE
        if mode != os.O_RDONLY and entry.write is None:
            raise OSError(errno.EACCES, "can only be read")
        handle = next(self._numbers)
        self._open[handle] = b"" if mode == os.O_WRONLY else self._read_node(path)
        return handle

    def read(self, _: str, size: int, offset: int, handle: int) -> bytes:
        """Return a part of the content that the file had when it was opened."""
        return self._open.get(handle, b"")[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, _: object) -> int:
        """Set a value."""
        if offset:
            raise OSError(errno.EINVAL, "a value is written at once, from the beginning")
        try:
            self._write(path, data.decode("utf-8", "replace"))
        except MissingError:
            raise OSError(errno.ENOENT, "no such file") from None
        except ReadOnlyError:
            raise OSError(errno.EACCES, "can only be read") from None
        except CgpuError as error:
            log.warning("write_refused", path=path, error=error, do="write what is allowed")
            raise OSError(errno.EINVAL, str(error)) from None
        except FutureTimeout:
            log.warning(
                "write_late", path=path, do="look whether it is in force, and write it again"
            )
            raise OSError(errno.ETIMEDOUT, "the server is busy") from None
        return len(data)

    def truncate(self, path: str, _: int, __: object = None) -> int:
        """Do nothing. A shell empties a file before it writes to it."""
        entry = self._find_node(path)
        if isinstance(entry, Folder) or entry.write is None:
            raise OSError(errno.EACCES, "can only be read")
        return 0

    def release(self, _: str, handle: int) -> int:
        """Drop the content of a file that was closed."""
        self._open.pop(handle, None)
        return 0

    def utimens(self, _: str, __: object = None) -> int:
        """Do nothing, for touch(1)."""
        return 0

    def statfs(self, _: str) -> dict[str, int]:
        """Answer df(1) with an empty file system."""
        return {"f_bsize": 4096, "f_namemax": 255}

    def _refuse(self, *_: object) -> NoReturn:
        raise OSError(errno.EPERM, "the tree has the nodes that it has")

    create = mkdir = mknod = unlink = rmdir = rename = symlink = link = chmod = chown = _refuse

    def _find_node(self, path: str) -> Any:  # noqa: ANN401
        try:
            return self._tree.find(path)
        except MissingError:
            raise OSError(errno.ENOENT, "no such node") from None

    def _read_node(self, path: str) -> bytes:
        try:
            return self._tree.read(path).encode()
        except MissingError:
            raise OSError(errno.ENOENT, "no such file") from None


class ControlTree:
    """The tree of one server, mounted at ``path`` and served by a thread.

    Args:
        tree: the tree to show.
        path: a folder, or a path where one can be made.
        write: sets a value; the thread calls it.
    """

    def __init__(self, tree: Tree, path: str, write: Callable[[str, str], None]) -> None:
        self._files, self._path = Files(tree, write), path
        self._lock = threading.Lock()
        self._mounted = self._closed = False
        self._device: int | None = None
        self._thread: threading.Thread | None = None

    def open_device(self) -> int:
        """Open the FUSE device, for a file system that a client is about to mount at the path.

        Raises:
            CgpuError: it cannot be opened.
        """
        if self._device is not None:
            os.close(self._device)
        try:
            self._device = mounts.open_device()
        except OSError as error:
            raise CgpuError(f"{error.filename}: {error.strerror}") from None
        return self._device

    def start_opened(self) -> None:
        """Serve the device that was opened, after the client has mounted it.

        Raises:
            CgpuError: none was opened.
        """
        if self._device is None:
            raise CgpuError("no device was asked for")
        device, self._device = self._device, None
        self.start(device)

    def start(self, device: int | None = None) -> None:
        """Serve the tree. ``device``: that of a file system that is already mounted at the path."""
        self._thread = threading.Thread(
            target=self._run, args=(device,), name="cgpu-tree", daemon=True
        )
        self._thread.start()

    def join(self, seconds: float) -> None:
        """After ``close``: wait until nobody has a file of the tree open, at most for ``seconds``.

        Programs whose requests have no answer yet get the kernel's error for an aborted connection.
        """
        if self._thread:
            self._thread.join(seconds)

    def close(self) -> None:
        """Unmount the tree."""
        with self._lock:
            self._closed = True
            if self._mounted:
                mounts.unmount_tree(self._path)

    def _run(self, device: int | None) -> None:
        try:
            library = _load_library()
            with self._lock:
                if self._closed:
                    return
                if device is None:
                    device = mounts.mount_tree(self._path)
                    self._mounted = True
            log.info("tree_served", path=self._path)
            library.FUSE(self._files, f"/dev/fd/{device}", foreground=True, nothreads=True)
        except CgpuError as error:
            log.warning(
                "tree_missing",
                path=self._path,
                error=error,
                do=error.hint or "mend what the error names, and restart cgpud; cgpu get works",
            )
        except Exception as error:  # noqa: BLE001 (the server goes on without a tree)
            log.error(
                "tree_ended",
                path=self._path,
                error=f"{error!r} at {locate_error(error)}",
                do="restart cgpud; cgpu get and cgpu set work without the tree",
            )


def _load_library() -> Any:  # noqa: ANN401
    """Load the FUSE library, by importing its module, and return it.

    Raises:
        CgpuError: it is not installed.
    """
    os.environ["FUSE_LIBRARY_NAME"] = (
        "fuse3"  # libfuse 2 cannot serve a file system that is already mounted
    )
    try:
        import mfusepy
    except (ImportError, OSError) as error:
        hint = "install your distribution's fuse3"
        raise CgpuError(f"the FUSE library cannot be loaded: {error}", hint=hint) from None
    return mfusepy
