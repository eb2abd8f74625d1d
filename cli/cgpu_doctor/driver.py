"""Checks the driver: does it exist and answer, are its parts of one version, does cgpu know it?"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator
from functools import cache

import cgpu_shim
from cgpu_doctor.elf import glibc_needed, list_exports
from cgpu_doctor.finding import Finding, Ground
from cgpu_env import CgpuError
from cgpu_env.devices import format_lost_gpu
from cgpu_env.values import format_misstated_default
from cgpu_node import sealed
from cgpu_node.facts.discovery import compute_modes
from cgpu_node.facts.driver import CUDA, PROXIED
from cgpu_node.facts.node import Node, load_node
from cgpu_node.settings import rules
from cgpu_node.settings.config import CONFIG_PATH, find_unknown_gpus, load_config

MODULE = "/proc/driver/nvidia/version"
# If the name of a driver's function begins with one of these, or contains one of the verbs, it may
# take device memory or GPU time. A test compares this with shim/cuda/entry/lookup.c.
FAMILIES = (
    "cuArray", "cuCheckpoint", "cuCtxAttach", "cuCtxCreate", "cuCtxFromGreenCtx", "cuCtxSetLimit",
    "cuDevicePrimaryCtx", "cuDeviceSetGraphMem", "cuEGLStream", "cuExternal", "cuFabric",
    "cuFuncLoad", "cuGLCtx", "cuGraph", "cuGreenCtx", "cuImport", "cuIpc", "cuKernelGetFunction",
    "cuLaunch", "cuLibrary", "cuLogicalEndpoint", "cuMem", "cuMipmapped", "cuModule", "cuMulticast",
    "cuStreamAttachMem", "cuStreamBatch", "cuSubgrid", "cuVDPAUCtx",
)  # fmt: skip
VERBS = ("Alloc", "Import", "Launch")
_SHOWN = 5
# By NVML's numbers; 0 is the default mode.
_MODES = {
    1: ("Exclusive Thread", "only one thread at a time can use it"),
    2: ("Prohibited", "no program can use it"),
    3: ("Exclusive Process", "while one process uses it, those of all other containers fail"),
}
_SIMULATED = f"cgpu demo; or {shlex.quote(sys.executable)} -m cgpu_sim DIR and --driver-dir DIR"


@cache
def _probe_driver(ground: Ground) -> Node | CgpuError:
    """Return the driver's answer, or the error. A driver may take minutes to fail."""
    try:
        return load_node(ground.state_dir, ground.driver_dir, refresh=True, keep=False)
    except CgpuError as error:
        return error


def _require_node(ground: Ground) -> Node:
    found = _probe_driver(ground)
    if isinstance(found, CgpuError):
        raise found
    return found


def check_driver(ground: Ground) -> Iterator[Finding]:
    """Check that the driver answers, and that libraries and kernel module are of one version."""
    found = _probe_driver(ground)
    if isinstance(found, CgpuError) and _is_unnamed(ground) and ground.read_word(MODULE) is None:
        yield Finding("error", str(found), mend=found.hint)
        yield Finding("note", "a simulated GPU will do to try cgpu", mend=_SIMULATED)
        return
    node = _require_node(ground)
    where = f"driver {node.driver_version} in {node.driver_dir}"
    answering = [gpu for gpu in node.gpus if not gpu.lost]
    if not node.gpus:
        yield Finding("error", f"{where}: it has no GPU", "0", "nvidia-smi")
    else:
        names = ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in answering)
        yield Finding("ok", f"{where}: {names or 'no GPU answers'}", node.driver_version)
    for gpu in node.lost_gpus:
        what, _, mend = format_lost_gpu(gpu.as_gpu).partition("; ")
        yield Finding("error", what, str(gpu.index), f"{mend}; then: cgpu probe")
    yield from (Finding("warning", note, mend="cgpu probe") for note in node.notes)
    for name in find_unknown_gpus(node.config, node.gpus):
        what = f"{CONFIG_PATH}: [gpu.{name}]: this node has no such GPU"
        yield Finding("warning", what, name, f"mend {CONFIG_PATH}; cgpu-smi -L lists the GPUs")
    yield from _check_default_size(ground, node)
    yield from _check_versions(ground, node)
    nodes = [*node.device_nodes, *(n for gpu in answering for n in gpu.device_nodes)]
    missing = [n.host for n in nodes if not os.path.exists(n.host)]
    if missing:
        what = f"device nodes are missing: {', '.join(missing)}"
        yield Finding("error", what, missing[0], "nvidia-modprobe -c 0 -u")


def _check_default_size(ground: Ground, node: Node) -> Iterator[Finding]:
    """Report the default cap on each GPU if it differs from the setting."""
    configured = load_config(ground.machine.resolve_path(CONFIG_PATH)).default_memsize
    size = rules.default_memsize(ground.state_dir, configured)
    totals = ((gpu.index, gpu.total_bytes) for gpu in node.gpus if gpu.total_bytes)
    name = rules.DEFAULT_MEMSIZE
    mend = f"cgpu set node {name}=SIZE, or to outlive a reboot {name} in {CONFIG_PATH}"
    for note in format_misstated_default(totals, size):
        yield Finding("warning", note, str(size), ground.by_root(mend))


def _is_unnamed(ground: Ground) -> bool:
    """Whether no option or configuration names the driver's directory: there may be no driver."""
    try:
        config = load_config(ground.machine.resolve_path(CONFIG_PATH))
    except CgpuError:
        return False
    return not (ground.driver_dir or config.library_dir)


def _check_versions(ground: Ground, node: Node) -> Iterator[Finding]:
    found = {name: _parse_version(node.libraries[name], name) for name in PROXIED}
    if len({version for version in found.values() if version}) > 1:
        found_in = ", ".join(f"{name} is {version}" for name, version in found.items())
        mend = "reinstall the driver: its files are of two releases"
        yield Finding("error", f"the driver's libraries differ: {found_in}", found_in, mend)
    module = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", ground.read_word(MODULE) or "")
    simulated = os.path.exists(f"{node.driver_dir}/driver.json")
    if module and not simulated and module[1] != node.driver_version:
        what = f"the kernel module is {module[1]}, the libraries are {node.driver_version}"
        yield Finding("error", what, module[1], "reboot")


def _parse_version(path: str, soname: str) -> str:
    """Return the version in a real library's name: 535.129.03 of libcuda.so.535.129.03."""
    name = os.path.basename(path).removeprefix(soname.removesuffix("1"))
    return name if "." in name else ""


def check_compute_mode(ground: Ground) -> Iterator[Finding]:
    """Check that several processes can use each GPU at once."""
    node = _require_node(ground)
    modes = compute_modes(node.driver_dir)
    found = [(gpu, _MODES[mode]) for gpu in node.gpus if (mode := modes.get(gpu.uuid, 0)) in _MODES]
    for gpu, (name, effect) in found:
        what = f"GPU {gpu.index} is in compute mode {name}: {effect}"
        yield Finding("warning", what, name, f"nvidia-smi -i {gpu.index} -c DEFAULT")
    unknown = [str(gpu.index) for gpu in node.gpus if not gpu.lost and gpu.uuid not in modes]
    if unknown:
        what = f"the driver does not report the compute mode of GPU {', '.join(unknown)}"
        yield Finding("note", what, unknown[0])
    elif modes and not found:
        yield Finding("ok", "several processes can use each GPU", "Default")


def check_entry_points(ground: Ground) -> Iterator[Finding]:
    """Check that this release knows all entry points of the driver that allocate or launch."""
    node = _require_node(ground)
    with open(cgpu_shim.library(CUDA), "rb") as file:
        proxy = file.read()
    names = [name for name in list_exports(node.libraries[CUDA]) if name.startswith("cu")]
    unknown = sorted(name for name in names if f"{name}\0".encode() not in proxy)
    refused = [
        name for name in unknown if name.startswith(FAMILIES) or any(verb in name for verb in VERBS)
    ]
    if refused:
        first = ", ".join(refused[:_SHOWN])
        what = f"this cgpu hides newer entry points of the driver from containers: {first}"
        what += f" and {len(refused) - _SHOWN} more" if refused[_SHOWN:] else ""
        mend = "install a newer cgpu, then: cgpu install"
        yield Finding("warning", what, first, mend)
    elif unknown:
        what = f"new entry points, none of which allocates or launches: {len(unknown)}"
        yield Finding("note", what, ", ".join(unknown[:_SHOWN]))
    else:
        yield Finding("ok", f"all {len(names)} of the driver are known", str(len(names)))


def check_proxies(ground: Ground) -> Iterator[Finding]:
    """Check that all users of containers can read the proxies: pip's files follow root's umask."""
    paths = [os.path.realpath(cgpu_shim.library(name)) for name in PROXIED]
    closed = [path for path in paths if not os.stat(path).st_mode & stat.S_IROTH]
    if closed:
        what = f"programs in containers that do not run as root cannot read {' and '.join(closed)}"
        yield Finding("error", what, closed[0], f"chmod a+r {shlex.join(closed)}")
    elif any(sealed.is_refused(path, ground.state_dir) for path in paths):
        what = "no overlay was mounted: a container with CAP_SYS_ADMIN can change cgpu's libraries"
        yield Finding("warning", what, paths[0], _advise_overlay(ground, os.path.dirname(paths[0])))
    else:
        yield Finding("ok", "all users of containers can read cgpu's libraries")


def _advise_overlay(ground: Ground, folder: str) -> str:
    """Return the command that lets the next container's start mount the overlay."""
    if character := sealed.find_special_character(folder):
        return f"install cgpu where the path has no '{character}'"
    if "overlay" not in (ground.read_word("/proc/filesystems") or "").split():
        return "modprobe overlay"
    return "the kernel has overlayfs: let the engine mount it in the mount namespace of the host"


def check_glibc(ground: Ground) -> Iterator[Finding]:
    """Report the oldest C library that an image may have, for the driver and for cgpu."""
    node = _require_node(ground)
    proxies = max(glibc_needed(cgpu_shim.library(name)) for name in PROXIED)
    own = max(glibc_needed(path) for path in node.libraries.values())
    needed, both = (".".join(map(str, pair)) for pair in (proxies, max(proxies, own)))
    here = re.search(r"(\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    if here and (int(here[1]), int(here[2])) < proxies:
        what = f"this machine has glibc {here[0]}, cgpu needs {needed}"
        yield Finding("error", what, here[0], "upgrade the system")
    elif proxies > own > (0, 0):
        what = f"images with a glibc older than {needed} can use the driver, and not cgpu"
        yield Finding("note", what, needed)
    else:
        yield Finding("ok", f"images need glibc {both} or newer", both)
