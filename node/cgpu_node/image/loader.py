"""Finds drivers that the container's own loader could load, in an image or a mounted directory.

NVIDIA's images have a compatibility driver; some nodes mount a directory with the driver in it. A
loader searches LD_LIBRARY_PATH, its cache, then its default directories. In each directory it
prefers subdirectories for the processor. When a container starts, the cache may be built again from
the directories that /etc/ld.so.conf names. Paths that programs open themselves are not covered.
"""

from __future__ import annotations

import os

from cgpu_env.errors import CgpuError, printable
from cgpu_node.image.libraries import default_directories, is_version, strip_version
from cgpu_node.image.rootfs import resolve_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cgpu_node.image.rootfs import RootfsView

# Directories where NVIDIA's images expect a driver. Their scripts add these to the path later.
_USUAL = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
_TOOLKITS, _TOOLKIT, _COMPAT = "/usr/local", "cuda", "compat"
_BELOW_A_MOUNT = ("", "/lib64", "/lib")
_CACHE, _PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
_CONFIGURATION = "/etc/ld.so.conf"
_MOST_CACHED, _MOST_PRELOADED, _MOST_CONFIGURED = 16 << 20, 1 << 20, 1 << 20  # bytes of a file
_MOST_ENTRIES, _MOST_DIRECTORIES, _MOST_FILES, _DEEPEST = 1024, 256, 1024, 8
_LONGEST = 4096  # bytes of a path, by the kernel
# If every directory is searched: how many directories, and how many entries in them, at most.
_MOST_ANYWHERE, _MOST_NAMES = 1 << 16, 1 << 20
_ORIGIN = ("$ORIGIN", "${ORIGIN}")  # the directory of whichever program is loaded
_KERNELS = ("/proc", "/sys", "/dev")
# What ends a word in each kind of file. Python's own ``split`` and ``strip`` take more characters
# for blanks than the loader does.
_BETWEEN_PRELOADED = str.maketrans(dict.fromkeys(":\t\n\0", " "))  # in the file
_BLANKS = " \t\v\f\r"
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
# Subdirectories for the processor, which the loader prefers; they may be nested.
_HARDWARE = frozenset(
    (
        *("glibc-hwcaps", "x86-64-v4", "x86-64-v3", "x86-64-v2"),
        *("tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "atomics", "aarch64"),
    )
)
_TOKENS = {
    "LIB": ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"),
    "PLATFORM": ("x86_64", "haswell", "xeon_phi", "aarch64"),
}


class LibraryFinder:
    """Finds every file that is a version of one of ``sonames``. It follows links.

    Attributes:
        files: SONAME -> the files, with absolute paths without links.
    """

    def __init__(self, view: RootfsView, sonames: Iterable[str]) -> None:
        self._view = view
        self._stems = {soname: strip_version(soname) for soname in sonames}
        self._prefixes = tuple(self._stems.values())
        self._seen: set[str] = set()
        self._looked = 0
        self._most = _MOST_DIRECTORIES
        self._entries = 0
        self._plain: set[str] = set()
        self._examined: set[str] = set()
        self.files: dict[str, list[str]] = {soname: [] for soname in self._stems}

    def search(
        self,
        environment: Mapping[str, str],
        cwd: str,
        *,
        mounts: Sequence[str] = (),
        usual: Iterable[str] = _USUAL,
        follow_origin: bool = True,
    ) -> None:
        """Search everywhere that the loader of a program with ``environment`` may search.

        Args:
            environment: the program's environment.
            cwd: its working directory.
            mounts: where directories of the host are mounted.
            usual: directories that may be added to the path later.
            follow_origin: whether ``$ORIGIN`` may lead to every directory.

        Raises:
            CgpuError: there is more to search than in any real image, or it cannot be read.
        """
        searched = list(_split_search_path(environment.get("LD_LIBRARY_PATH"), cwd))
        preloaded, self._plain = _read_preloads(self._view, environment, cwd)
        if follow_origin:
            self._follow_origin(searched + preloaded, ["/", *mounts])
        for folder in searched:
            self._search_directory(folder)
        for path in preloaded:
            self._examine_library(path)
        self._search_cache()
        configured = (_make_absolute(folder, cwd) for folder in _read_configuration(self._view))
        for folder in (*usual, *default_directories(self._view), *configured):
            self._search_directory(folder)
        self._search_toolkits()
        for point in mounts:
            for below in _BELOW_A_MOUNT:
                folder = f"{point}{below}"
                if any(self._view.get_kind(f"{folder}/{name}") for name in self._usual_names()):
                    self._search_directory(folder)

    def _usual_names(self) -> list[str]:
        """Return names by which programs load a driver, to find one without a listing."""
        return [*self._stems, *self._stems.values()]

    def _search_cache(self) -> None:
        """Add what the cache lists under a driver's or preload's name, whatever the file's name."""
        data = self._view.read(resolve_path(self._view, _CACHE), _MOST_CACHED) or b""
        names = [*self._prefixes, *self._plain]
        if not any(os.fsencode(name) in data for name in names):
            return
        from cgpu_node.image import ldcache  # rare: most images name no driver

        for soname, start in self._stems.items():
            for path in ldcache.find_by_stems(data, (start,)):
                self._add_file(soname, path)
        for path in ldcache.find_by_names(data, self._plain):
            self._examine_library(path)

    def _follow_origin(self, paths: list[str], roots: list[str]) -> None:
        """If one of ``paths`` begins with ``$ORIGIN``, search every directory below ``roots``."""
        if not any(word in path for path in paths for word in _ORIGIN):
            return
        self._most = _MOST_ANYWHERE
        todo = [resolve_path(self._view, root) for root in roots]
        known = {*_KERNELS}
        while todo:
            path = todo.pop()
            if path in known:
                continue
            known.add(path)
            self._entries += len(self._search_directory(path))
            todo += [f"{path.rstrip('/')}/{name}" for name in self._view.list_folders(path)]
            if len(known) + len(todo) > _MOST_ANYWHERE or self._entries > _MOST_NAMES:
                raise self._make_limit_error()

    def _search_toolkits(self) -> None:
        for name in self._view.list_names(_TOOLKITS):
            if name.startswith(_TOOLKIT):
                self._search_tree(f"{_TOOLKITS}/{name}/{_COMPAT}", 0)

    def _search_tree(self, path: str, depth: int) -> None:
        """Search a directory and all below it: scripts of images may link to any of them."""
        names = self._search_directory(path)
        if names and depth >= _DEEPEST:
            raise CgpuError(
                f"the image's {printable(path)} is more than {_DEEPEST} directories below compat"
            )
        for name in names:
            below = f"{path}/{name}"
            if (
                ".so" not in name
                and self._view.get_kind(resolve_path(self._view, below)) == "directory"
            ):
                self._search_tree(below, depth + 1)

    def _search_directory(self, path: str) -> list[str]:
        """Search one directory, and return the names in it; none if it was searched before."""
        real = resolve_path(self._view, path)
        if real in self._seen or self._view.get_kind(real) != "directory":
            return []
        self._seen.add(real)
        if len(self._seen) > self._most:
            raise self._make_limit_error()
        names = self._view.list_names(real)
        for name in names:
            if name in self._plain:
                self._examine_library(f"{real}/{name}")
            elif name.startswith(self._prefixes):
                self._examine_name(f"{real}/{name}")
            elif name in _HARDWARE:
                self._search_directory(f"{real}/{name}")
        return names

    def _make_limit_error(self) -> CgpuError:
        if self._most == _MOST_ANYWHERE:
            return CgpuError(
                "$ORIGIN in LD_LIBRARY_PATH or LD_PRELOAD may lead to any directory, and the image"
                f" with its mounts has more than {self._most}, or {_MOST_NAMES} files: write the"
                " directory itself instead"
            )
        return CgpuError(
            f"LD_LIBRARY_PATH and the image have more than {self._most} directories with"
            " libraries, which is too many to search for a driver: use fewer"
        )

    def _examine_name(self, path: str) -> None:
        """Add a file if it has a driver's name."""
        for soname in self.files:
            if is_version(os.path.basename(path), soname):
                self._add_file(soname, path)

    def _examine_library(self, path: str) -> None:
        """Add a file that every program loads, if it is a driver, perhaps under another name."""
        self._count_file()
        self._examine_name(path)
        real = resolve_path(self._view, path)
        if real not in self._examined and self._view.get_kind(real) == "file":
            from cgpu_node.image import elf  # rare: few images preload anything

            self._examined.add(real)
            own = elf.read_soname(lambda start, most: self._view.read_part(real, start, most))
            for soname in self.files:
                if is_version(own, soname):
                    self._add_file(soname, real)

    def _count_file(self) -> None:
        self._looked += 1
        if self._looked > _MOST_FILES:
            raise CgpuError(
                f"the image has more than {_MOST_FILES} files that are preloaded or named like a"
                " driver's library, which is too many to examine: remove some"
            )

    def _add_file(self, soname: str, path: str) -> None:
        """Add a file that the loader may load as SONAME."""
        self._count_file()
        real = resolve_path(self._view, path)
        if real not in self.files[soname] and self._view.get_kind(real) == "file":
            self.files[soname].append(real)


def _split_search_path(text: str | None, cwd: str) -> Iterator[str]:
    """Yield the directories of a search path; an empty entry is the working directory."""
    if not text:
        return
    entries = dict.fromkeys(text.replace(";", ":").split(":"))
    if len(entries) > _MOST_ENTRIES:
        raise CgpuError(f"LD_LIBRARY_PATH has more than {_MOST_ENTRIES} entries: use fewer")
    looked = 0
    for entry in entries:
        folders = _expand_tokens(entry)
        looked += len(folders)
        if looked > _MOST_ENTRIES:
            raise CgpuError(
                f"LD_LIBRARY_PATH means more than {_MOST_ENTRIES} directories by $LIB and"
                " $PLATFORM: use fewer of these"
            )
        for folder in folders:
            yield _make_absolute(folder, cwd)


def _make_absolute(path: str, cwd: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"


def _expand_tokens(entry: str) -> list[str]:
    """Return the paths that an entry may mean: the loader replaces ``$LIB`` and ``$PLATFORM``.

    Raises:
        CgpuError: the entry is too long; each token multiplies the paths.
    """
    found = [entry]
    if "$" in entry and len(entry) > _LONGEST:
        raise CgpuError(
            "LD_LIBRARY_PATH, LD_PRELOAD or the image's /etc/ld.so.preload has a path with $ in it"
            f" of more than {_LONGEST} characters, the longest there is: shorten it"
        )
    for token, words in _TOKENS.items():
        for form in (f"${{{token}}}", f"${token}"):
            if form in entry:
                found = [each for text in found for each in _replace_token(text, form, words)]
    return found


def _replace_token(text: str, form: str, words: Sequence[str]) -> dict[str, None]:
    """Return each text that some glibc makes of ``text`` by replacing the token ``form``.

    glibc replaces it with one of ``words``: ``${LIB}`` always, ``$LIB`` before a slash and at the
    end. Newer releases also replace ``$LIB`` before any other character that cannot be in a name.
    No release replaces it in ``$LIBS``, which may be a directory's name.
    """
    first, *rest = text.split(form)
    has_braces = form.endswith("}")

    def replace_all(word: str, *, is_new: bool) -> str:
        def replace_before(after: str) -> str:
            following = after[:1]
            ends = following not in _NAME if is_new else following in {"", "/"}
            return (word if has_braces or ends else form) + after

        return first + "".join(map(replace_before, rest))

    return dict.fromkeys(replace_all(word, is_new=new) for word in words for new in (False, True))


def _read_preloads(
    view: RootfsView, environment: Mapping[str, str], cwd: str
) -> tuple[list[str], set[str]]:
    """Return the paths that every program loads first, and the plain names among them.

    The loader looks for a plain name on its search path.

    Raises:
        CgpuError: there are too many to examine.
    """
    data = view.read(resolve_path(view, _PRELOAD), _MOST_PRELOADED) or b""
    if b"#" in data:  # the loader skips what follows as a comment, but not always the second time
        data = b" ".join((data, data.replace(b"#", b" "), _strip_comments(data)))
    listed = os.fsdecode(data).translate(_BETWEEN_PRELOADED)
    entries = f"{environment.get('LD_PRELOAD', '').replace(':', ' ')} {listed}"
    found: list[str] = []
    plain: set[str] = set()
    for entry in filter(None, entries.split(" ")):
        if any(word in entry for word in _ORIGIN):
            plain.add(os.path.basename(entry))  # in whatever directory
        if "/" in entry:
            found += (_make_absolute(path, cwd) for path in _expand_tokens(entry))
        else:
            plain.add(entry)
        if len(found) + len(plain) > _MOST_FILES:
            raise CgpuError(
                f"LD_PRELOAD and the image's {_PRELOAD} name more than {_MOST_FILES} libraries,"
                " which is too many to examine: use fewer"
            )
    return found, plain - {""}


def _strip_comments(data: bytes) -> bytes:
    """Return ``data`` without the comments that the loader finds; it misses some.

    After each comment, the loader searches the file from its beginning again, but only as many
    bytes as were left behind that comment. So the rest of a later comment may count as a name.
    """
    found, left = bytearray(data), len(data)
    while (start := found.find(b"#", 0, left)) >= 0:
        left -= start
        end = found.find(b"\n", start, start + left)
        length = left if end < 0 else end - start
        found[start : start + length] = bytes(length)
        left -= length
    return bytes(found)


def _read_configuration(view: RootfsView) -> dict[str, None]:
    """Return the directories from which the image's ldconfig makes the cache.

    Raises:
        CgpuError: there is more to read than in any real image.
    """
    folders: dict[str, None] = {}
    seen: set[str] = set()
    todo: list[tuple[str, list[str], int]] = [(_CONFIGURATION, [], 0)]
    steps = size = 0
    while todo:
        path, pattern, at = todo.pop()  # the first ``at`` parts of the pattern are in the path
        steps += 1
        if at < len(pattern):
            names = _match_names(view, path, pattern[at])
            steps += len(names)
            todo += [(f"{path}/{name}", pattern, at + 1) for name in names[:_MOST_ENTRIES]]
        elif (real := resolve_path(view, path)) not in seen:
            seen.add(real)
            data = view.read(real, _MOST_CONFIGURED) or b""
            size += len(data)
            for entry, is_included in _parse_entries(os.fsdecode(data)):
                if is_included:
                    included = _make_absolute(entry, os.path.dirname(path))
                    todo.append(("", included.split("/")[1:], 0))
                else:
                    folders[entry] = None
        if max(steps, len(folders)) > _MOST_ENTRIES or size > _MOST_CONFIGURED:
            raise CgpuError(
                f"the image's {_CONFIGURATION} leads to more than {_MOST_ENTRIES} files or"
                f" directories, or {_MOST_CONFIGURED >> 20} MiB, which is too much to search for"
                " a driver: name fewer"
            )
    return folders


def _parse_entries(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each directory in a file for ldconfig, and each pattern of files that it includes."""
    for line in text.replace("\0", "\n").split("\n"):
        words = line.partition("#")[0].lstrip(_BLANKS)
        if words.startswith(("include ", "include\t")):
            names = words.replace("\t", " ").split(" ")[1:]
            yield from ((name, True) for name in names if name)
        elif folder := words.partition("=")[0].rstrip(_BLANKS).rstrip("/"):
            yield folder, False


def _match_names(view: RootfsView, folder: str, part: str) -> list[str]:
    """Return the names that may match a part of a shell's pattern: those with its fixed ends."""
    first = next((at for at, letter in enumerate(part) if letter in "*?[\\"), None)
    if first is None:
        return [part]
    start, end = part[:first], part[max(map(part.rfind, "*?]\\")) + 1 :]
    names = view.list_names(resolve_path(view, folder))
    return [name for name in names if name.startswith(start) and name.endswith(end)]
