"""Finds where a container has the driver's libraries, which a proxy has to cover.

There are two cases. If another runtime (NVIDIA's) has mounted the driver's files, each of them is
covered. If not, the libraries are put into the directories that the image's own loader searches
even without its cache: nothing of the image is ever run, not even ldconfig, so the cache stays old.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgpu_node.image.rootfs import RootfsView

OPENCL = "libnvidia-opencl.so.1"
# Pairs of directories. Some distributions link the second one to the first.
_LOADER_DIRECTORIES = (
    ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"),
    ("/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"),
    ("/usr/lib64", "/lib64"),
    ("/usr/lib", "/lib"),
)
_CACHED = _LOADER_DIRECTORIES[2:]  # ldconfig always puts what is there into the cache


def strip_version(soname: str) -> str:
    """Return the part that the names of all versions of ``soname`` begin with, like libcuda.so."""
    return soname[: soname.index(".so") + len(".so")]


def is_version(name: str, soname: str) -> bool:
    """Return whether a file ``name`` is a version of ``soname``, such as libcuda.so.535.54."""
    start = strip_version(soname)
    return name == start or name.startswith(start + ".")


def select_versions(paths: Iterable[str], soname: str) -> list[str]:
    """Return the ``paths`` whose file name is any version of ``soname``."""
    return [path for path in paths if is_version(os.path.basename(path), soname)]


def _find_loader_pairs(rootfs: RootfsView) -> list[tuple[str, str]]:
    """Return the pairs of directories that have the image's glibc and that it searches by default.

    Empty for an image without glibc, in which the driver's libraries cannot be loaded.
    """
    return [
        names
        for names in _LOADER_DIRECTORIES
        if any(rootfs.get_kind(f"{name}/libc.so.6") in ("file", "link") for name in names)
    ]


def loader_directories(rootfs: RootfsView) -> list[str]:
    """Return the directories for our libraries: the image's glibc searches them by default."""
    pairs = _find_loader_pairs(rootfs)
    return [
        d for names in pairs for d in [n for n in names if rootfs.get_kind(n) == "directory"][:1]
    ]


def default_directories(rootfs: RootfsView) -> list[str]:
    """Return all directories that the image's glibc may search by default, before or after ours."""
    own = _find_loader_pairs(rootfs)
    return [name for names in dict.fromkeys((*own, *_CACHED)) for name in names if own]


def find_library_files(rootfs: RootfsView, directories: Iterable[str], soname: str) -> list[str]:
    """Return the image's own files that are any version of ``soname``."""
    return [
        path
        for directory in directories
        for path in select_versions(
            (f"{directory}/{n}" for n in rootfs.list_names(directory)), soname
        )
        if rootfs.get_kind(path) == "file"
    ]


def paths_to_cover(rootfs: RootfsView, directory: str, soname: str) -> list[str]:
    """Return the paths to cover so that the loader finds ours as ``directory/soname``.

    An image that once ran with a driver may still have a link at that path. If the link leads to a
    file in the same directory, that file is covered; if it leads elsewhere, it is refused.

    Some programs load libcuda.so.1 as libcuda.so. NVIDIA's runtimes make a link of that name, so
    ours is there too, unless the image has something at that path: a file is covered, a link is
    left alone.

    Raises:
        CgpuError: the image has something at a path that cannot be covered safely.
    """
    present = find_library_files(rootfs, [directory], soname)
    short = strip_version(soname)
    if (
        soname.removeprefix(f"{short}.").isdecimal()
        and rootfs.get_kind(f"{directory}/{short}") is None
    ):
        present.append(f"{directory}/{short}")
    path = f"{directory}/{soname}"
    kind = rootfs.get_kind(path)
    if kind is None:
        return [path, *present]
    if kind == "link":
        text = rootfs.read_link(path)
        if f"{directory}/{text}" in present:
            return present
        raise CgpuError(
            f"the image has a symbolic link {path} -> {printable(text)}, "
            "where the driver's library has to be mounted: expected a file, or nothing"
        )
    if kind != "file":
        raise CgpuError(
            f"the image has {path}, which is not a file: the driver's library goes there"
        )
    return present
