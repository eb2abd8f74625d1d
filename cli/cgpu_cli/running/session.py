"""Puts a program under the proxies: with a mount namespace of its own, or with a library path.

With a namespace, the session's base directory is a small tmpfs, mounted over the whole state
directory. The program sees only its own limits and ledger there. Files in it may be mapped for
execution, even if the state directory is on a file system that forbids it (``/run`` often does).
"""

from __future__ import annotations

import os

import cgpu_native
from cgpu_cli import namespaces
from cgpu_cli.running import visible
from cgpu_env.errors import CgpuError
from cgpu_env.record import NamedTuple
from cgpu_native.system import mount
from cgpu_node.facts import driver
from cgpu_node.image.loader import LibraryFinder
from cgpu_node.image.rootfs import Rootfs
from cgpu_shim import library
from cgpu_shim.relocation import relocate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgpu_env.request import Request
    from cgpu_node.facts.node import DeviceNode, Node

_LOADER_DIRECTORIES = (
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
_MASKED = "masked"
_SHARED = ("limits", "ledger")
# The name of a link from a base directory to itself. It is in the path by which a proxy needs the
# real library. In a sandbox that lacks the directory, the loader prints that path, and no code of
# ours can run. So the name is advice.
_ADVICE = "bind-this-directory-into-the-sandbox"
_LOADER_CACHE = "/etc/ld.so.cache"


class Session(NamedTuple):
    """An admitted session, or one without a GPU, which needs no admission.

    Attributes:
        directory: the session's directory, ``containers/<id>`` in the state directory of its
            account; empty without a GPU.
        state_dir: the state directory.
        node: the facts about the node.
        request: the session's share.
    """

    directory: str
    state_dir: str
    node: Node
    request: Request

    @property
    def is_own(self) -> bool:
        """Whether the session is in an account of the user's own, not in the node's."""
        return self.directory.startswith(f"{self.state_dir}/")


def enter_namespace(session: Session, environment: dict[str, str]) -> None:
    """Enter a mount namespace where every driver library is a proxy under the session's limits.

    Args:
        session: the session.
        environment: the program's environment.

    Raises:
        OSError: the kernel does not allow it; nothing was mounted.
        CgpuError: it failed later; the program must not be started.
    """
    base = session.state_dir
    proxies = _load_proxies(base)
    brought = _find_libraries(session.node, environment)
    namespaces.enter_own()
    sources = _open_sources(session)
    flags = namespaces.MS_NOSUID | namespaces.MS_NODEV
    mount("cgpu", base, "tmpfs", flags, "mode=0755")
    try:
        _fill_base(base, proxies, session)
        if not session.directory:
            _make_empty(base)
        for name, source in sources.items():
            _touch_file(f"{base}/{name}")
            namespaces.bind_mount(source, f"{base}/{name}")
        namespaces.make_read_only(f"{base}/limits")
        for soname, path in session.node.libraries.items():
            _touch_file(f"{base}/real/{soname}")
            namespaces.bind_mount(path, f"{base}/real/{soname}")
        _touch_file(f"{base}/{_MASKED}")
        namespaces.make_read_only(base)
        _cover_libraries(base, brought)
        namespaces.lock_mounts()
    except OSError as error:
        raise CgpuError(f"cannot mount {error.filename}: {error.strerror}") from None


def _open_sources(session: Session) -> dict[str, str]:
    """Return paths to the session's limits and ledger that work even where the base covers them."""
    if not session.directory:
        return {name: f"{session.state_dir}/{name}" for name in _SHARED}
    files = {name: os.open(f"{session.directory}/{name}", os.O_PATH) for name in _SHARED}
    return {name: f"/proc/self/fd/{fd}" for name, fd in files.items()}


def _make_empty(base: str) -> None:
    """Make the limits and the ledger of a session that has no GPU."""
    _write_file(f"{base}/limits", cgpu_native.pack_limits("no-gpu", ()))
    cgpu_native.create_ledger(base, "ledger")


def _find_libraries(node: Node, environment: dict[str, str]) -> dict[str, str]:
    """Return for each driver library that a program could find (links followed) what covers it."""
    places = {path: soname for soname, path in node.libraries.items()}
    for folder in driver.SEARCHED_32_BIT:
        for soname in (*driver.PROXIED, driver.OPENCL):
            if os.path.isfile(path := f"{folder}/{soname}"):
                places.setdefault(os.path.realpath(path), _MASKED)
    finder = LibraryFinder(Rootfs("/", is_complete=True), (*driver.PROXIED, driver.OPENCL))
    usual = (node.driver_dir, *driver.SEARCHED)
    finder.search(environment, os.getcwd(), usual=usual, follow_origin=False)
    for soname, paths in finder.files.items():
        for path in paths:
            places.setdefault(path, soname if soname in driver.PROXIED else _MASKED)
    return places


def _cover_libraries(base: str, places: dict[str, str]) -> None:
    """Mount over each library what covers it."""
    for path, cover in places.items():
        namespaces.bind_mount(
            f"{base}/{cover}" if cover == _MASKED else f"{base}/lib/{cover}", path
        )


def use_library_path(session: Session, environment: dict[str, str]) -> None:
    """Let the loader find the proxies first, without namespaces.

    This works only as long as the program does not change ``LD_LIBRARY_PATH``.

    Raises:
        CgpuError: libraries cannot be loaded from the state directory's file system.
    """
    directory = session.directory
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        message = f"{directory}: libraries cannot be loaded from there (mounted noexec)"
        raise CgpuError(message, hint="name another place with --state-dir")
    proxies = _load_proxies(directory)
    try:
        _fill_base(directory, proxies, session)
        for soname, path in session.node.libraries.items():
            os.symlink(path, f"{directory}/real/{soname}")
            os.symlink(soname, f"{directory}/lib/{soname.removesuffix('.1')}")
    except OSError as error:
        raise CgpuError(f"{error.filename}: {error.strerror}") from None
    _prepend_path(environment, f"{directory}/lib")


def loader_finds(folder: str) -> bool:
    """Whether programs find the driver libraries in ``folder`` without help."""
    if folder in _LOADER_DIRECTORIES:
        return True
    try:
        with open(_LOADER_CACHE, "rb") as file:
            return os.fsencode(f"{folder}/{driver.CUDA}\0") in file.read()
    except OSError:
        return False


def set_environment(environment: dict[str, str], session: Session) -> None:
    """Set the program's variables: its GPUs in order, and an unusual driver directory."""
    visible.set_variables(environment, session.request.gpus, session.node)
    if not loader_finds(session.node.driver_dir):
        _prepend_path(environment, session.node.driver_dir)


def _prepend_path(environment: dict[str, str], folder: str) -> None:
    present = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = f"{folder}:{present}" if present else folder


def _load_proxies(base: str) -> dict[str, bytes]:
    """Return the proxies for a base directory.

    Raises:
        CgpuError: the proxies were not built, or the directory's name is too long for them.
    """
    found = {}
    try:
        for soname in driver.PROXIED:
            with open(library(soname), "rb") as file:
                found[soname] = relocate(file.read(), f"{base}/{_ADVICE}")
    except (OSError, ValueError) as error:
        raise CgpuError(str(error)) from None
    return found


def _fill_base(base: str, proxies: dict[str, bytes], session: Session) -> None:
    """Make ``lib/`` with the proxies, and ``real/``."""
    os.symlink(".", f"{base}/{_ADVICE}")
    os.mkdir(f"{base}/lib")
    os.mkdir(f"{base}/real")
    for soname, data in proxies.items():
        _write_file(f"{base}/lib/{soname}", data)
    node = session.node
    for device in (*node.device_nodes, *(each for gpu in node.gpus for each in gpu.device_nodes)):
        _link_simulated(base, device, node.driver_dir)


def _link_simulated(base: str, device: DeviceNode, folder: str) -> None:
    """Link a device node beside the real library, if a simulated driver looks for it there."""
    if os.path.dirname(device.host) == folder:
        os.symlink(device.host, f"{base}/real/{os.path.basename(device.host)}")


def _write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _touch_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
