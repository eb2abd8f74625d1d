"""The files of a driver installation, and the directories where it may be."""

from __future__ import annotations

import os

from cgpu_env.errors import LONGEST_PATH, CgpuError, printable
from cgpu_node.paths import make_nested_error
from cgpu_node.trust import check_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
OPENCL = "libnvidia-opencl.so.1"  # talks to the devices itself: masked, never handed out
PROXIED = (CUDA, NVML)
_WHERE = (
    f"{CUDA} and {NVML} may be anywhere: name their directory with --driver-dir,"
    " or as driver.library_dir in /etc/cgpu/config.toml"
)
REPAIR = "install the driver again, or name its directory with --driver-dir"
_ANOTHER = (
    "leave --driver-dir and CGPU_DRIVER_DIR out, or name another --state-dir for the GPUs there"
)

SEARCHED = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
)
# A 64-bit proxy could not be loaded from these: libraries in them are masked instead.
SEARCHED_32_BIT = (
    "/usr/lib/i386-linux-gnu",
    "/usr/lib32",
    "/usr/lib/i386-linux-gnu/nvidia/current",
)

# The two libraries load these by name; {} is the driver's version.
_COMPANIONS = (
    "libnvidia-fatbinaryloader.so.{}",  # which libcuda needs up to driver 440
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4",
    "libnvidia-gpucomp.so.{}",
    "libnvidia-tileiras.so.{}",
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-allocator.so.1",
)
_LARGEST_PROXY = 4 << 20


def find_driver_dir() -> str:
    """Return the first usual directory with both libraries, else the one in a CDI specification.

    A directory that others could change is skipped; a later one may have the driver too.

    Raises:
        CgpuError: there is none.
    """
    refused = None
    for folder in SEARCHED:
        if all(os.path.exists(f"{folder}/{soname}") for soname in PROXIED):
            try:
                check_source(os.path.realpath(folder))
            except CgpuError as error:
                refused = refused or error
            else:
                return folder
    from cgpu_node.facts.cdi import driver_directory  # rare

    named = driver_directory(PROXIED)
    if named is not None:
        return named
    if refused:
        raise refused
    raise CgpuError("no NVIDIA driver found on this machine", hint=_WHERE)


def list_withheld_nodes(folder: str, *, is_simulated: bool) -> list[str]:
    """Return the device nodes of GPUs that this process may not open.

    Its control group or the nodes' mode may forbid it.

    Args:
        folder: the directory of the driver's libraries.
        is_simulated: whether the nodes are files beside these.
    """
    where, prefix = (folder, "gpu") if is_simulated else ("/dev", "nvidia")
    try:
        names = os.listdir(where)
    except OSError:
        return []
    nodes = (f"{where}/{n}" for n in names if n.startswith(prefix) and n[len(prefix) :].isdecimal())
    return sorted(node for node in nodes if not os.access(node, os.R_OK))


def check_trust(driver_dir: str) -> str:
    """Return the real path of a directory from which root may load the driver.

    A process of another user loads whatever that user names.

    Raises:
        CgpuError: we are root, and others could change the directory or one of the two libraries.
    """
    real = os.path.realpath(driver_dir)
    if os.geteuid() == 0:
        known: set[str] = set()
        for path in (real, *(f"{real}/{soname}" for soname in PROXIED)):
            check_source(os.path.realpath(path), known=known)
    return real


def hold_libraries(driver_dir: str) -> list[int]:
    """Open the two libraries, so that no reader has to wait, and return their descriptors.

    A container has the libraries mounted, and its root user owns them. So it can take a lease on a
    library that nobody has open (``fcntl(2)``), and a process that loads the library then waits for
    45 s.

    Raises:
        CgpuError: a library is missing, or a process holds a lease on it, which the kernel now
            breaks.
    """
    held: list[int] = []
    try:
        held.extend(_open_library(f"{driver_dir}/{soname}") for soname in PROXIED)
    except CgpuError:
        release_libraries(held)
        raise
    return held


def release_libraries(held: Sequence[int]) -> None:
    """Close the descriptors that ``hold_libraries`` returned."""
    for fd in held:
        os.close(fd)


def _open_library(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        raise CgpuError(
            f"{path}: a process holds a lease on it, which the kernel breaks within a minute",
            hint="no ordinary program takes one: see /proc/locks for its process",
        ) from None
    except OSError as error:
        raise CgpuError(f"{path}: {error.strerror}: {REPAIR}") from None


def check_driver_dir(driver_dir: str) -> None:
    """Refuse a directory that somebody named and that has no driver.

    Raises:
        CgpuError: one of the two libraries is missing there.
    """
    for soname in PROXIED:
        if not os.path.exists(f"{driver_dir}/{soname}"):
            raise make_missing_error(driver_dir, soname)


def make_missing_error(driver_dir: str, soname: str) -> CgpuError:
    """Return the error for a directory that somebody named and that lacks ``soname``."""
    what = f"no {soname} there" if os.path.isdir(driver_dir) else "there is no such directory"
    return CgpuError(f"driver directory {driver_dir}: {what}", hint=_WHERE)


def format_refusal(error: str, given: str | None) -> str:
    """Return the sentence of a refusal; it names the command's directory if that does not exist."""
    if not given or os.path.isdir(given) or error == str(make_missing_error(given, CUDA)):
        return error
    return f"{error}; there is no directory {printable(given, LONGEST_PATH)}"


def make_other_driver_error(state_dir: str, own: str, given: str) -> CgpuError:
    """Return the error for a command that names another driver than the server's.

    The server does not check whether that driver exists: a guest's path could make it hang.
    """
    return CgpuError(
        f"the server of {state_dir} shares the GPUs of {own}, not of"
        f" {printable(given, LONGEST_PATH)}",
        hint=_ANOTHER,
    )


def find_libraries(driver_dir: str) -> dict[str, str]:
    """Return the files behind the SONAMEs of the two libraries that get a proxy.

    Raises:
        CgpuError: one is missing, or is a proxy: this runs inside a cgpu container or session.
    """
    found = {}
    for soname in PROXIED:
        path = os.path.realpath(f"{driver_dir}/{soname}")
        if not os.path.isfile(path):
            raise make_missing_error(driver_dir, soname)
        if _is_proxy(path, soname):
            raise make_nested_error()
        found[soname] = path
    return found


def find_companions(driver_dir: str, version: str) -> dict[str, str]:
    """Return by SONAME the files of the libraries that the driver loads when it needs them."""
    names = [name.format(version) for name in _COMPANIONS]
    paths = {name: os.path.realpath(f"{driver_dir}/{name}") for name in names}
    return {name: path for name, path in paths.items() if os.path.isfile(path)}


def _is_proxy(path: str, soname: str) -> bool:
    """Whether ``path`` loads a real library from a base directory, as only proxies do."""
    if os.stat(path).st_size > _LARGEST_PROXY:
        return False
    with open(_open_library(path), "rb") as file:
        return f"/real/{soname}\0".encode() in file.read()
