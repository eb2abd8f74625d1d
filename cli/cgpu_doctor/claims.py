"""Checks of a node that gives its GPUs to claims of Kubernetes. On other nodes they find nothing.

Such a node has a DRA driver, which Kubernetes starts. The driver's socket, or its files for the
engine, show it. The kubelet's command line may name another folder for the socket.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from shlex import quote
from socket import AF_UNIX, SOCK_STREAM, socket

from cgpu_doctor.finding import BY_ROOT, Finding, Ground
from cgpu_env.errors import printable
from cgpu_install import containerd, running
from cgpu_node.shares.record import CLAIM, Record
from cgpu_node.shares.registry import Registry

DRIVER = "gpu.cgpu"
CDI, KUBELET = "/var/run/cdi", "/var/lib/kubelet"
SOCKETS = (f"plugins_registry/{DRIVER}-reg.sock", f"plugins/{DRIVER}/dra.sock")
PREFIX, SUFFIX = f"{DRIVER}-claim_", ".json"
PODS = "kubectl get pods -A -o wide -l app.kubernetes.io/component=dra-driver"
_NEW = f"{SUFFIX}.new"
_CALM_SECONDS = 5  # a claim's record follows its file sooner than that
_ROOT_DIR = re.compile(r"\0--root-dir[=\0]([^\0]+)")
_SHOWN = 3
_ENABLE = (
    'set enable_cdi = true below [plugins."io.containerd.grpc.v1.cri"] of containerd 1.7, or below'
    ' [plugins."io.containerd.cri.v1.runtime"] of containerd 2 (an older one has to be replaced)'
)


def check_claims(ground: Ground) -> Iterator[Finding]:
    """Check that pods with claims get what they claim; other nodes are not checked."""
    if not _is_for_claims(ground):
        return
    found = [*_check_sockets(ground), *_check_folder(ground)]
    if ground.is_closed:
        yield from found
        yield ground.report_closed()
        return
    if not ground.machine.root:
        found += _check_engines()
    held = {each.id: each for each in Registry(ground.state_dir).list_records()}
    claims = {id_: each for id_, each in held.items() if each.kind == CLAIM}
    found += _check_pairs(ground, claims)
    yield from found
    if not found:
        yield Finding("ok", f"the driver of claims answers; claims with a share: {len(claims)}")


def _is_for_claims(ground: Ground) -> bool:
    at = ground.machine.resolve_path
    return os.path.lexists(at(f"{KUBELET}/{SOCKETS[0]}")) or any(
        name.startswith(PREFIX) for name in _list_names(at(CDI))
    )


def _check_sockets(ground: Ground) -> Iterator[Finding]:
    """Check that a kubelet can find the driver, and call it."""
    folder = KUBELET if ground.machine.root else _find_kubelets_folder()
    for path in (f"{folder}/{name}" for name in SOCKETS):
        problem = _try_connect(ground.machine.resolve_path(path))
        if problem == errno.EACCES:
            yield Finding("note", f"{path} is not reachable for you", path, BY_ROOT)
            return
        if problem:
            what = f"no driver of claims answers at {path}, so pods with claims wait"
            yield Finding("error", what, path, f"see why this node's has ended: {PODS}")
            return


def _find_kubelets_folder() -> str:
    for folder in running.find_processes("kubelet"):
        given = _ROOT_DIR.search(running.read_text(f"{folder}/cmdline"))
        if given:
            return given[1].rstrip("/")
    return KUBELET


def _try_connect(path: str) -> int:
    """Connect to a socket, whose path may have any length; return the error's number, or 0."""
    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno or errno.ENOENT
    with socket(AF_UNIX, SOCK_STREAM) as end:
        end.settimeout(0)
        try:
            number = end.connect_ex(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            return 0 if number == errno.EAGAIN else number  # its queue is full
        finally:
            os.close(folder)


def _check_folder(ground: Ground) -> Iterator[Finding]:
    """Check that only root can give containers devices."""
    path = ground.machine.resolve_path(CDI)
    try:
        facts = os.stat(path)
    except FileNotFoundError:  # the driver makes it
        return
    except OSError as error:
        yield Finding("error", f"{CDI}: {error.strerror}", CDI, f"ls -ld {CDI}")
        return
    if not os.path.isdir(path):
        yield Finding("error", f"{CDI} is no directory, so claims get no devices", CDI, f"rm {CDI}")
    elif facts.st_uid != 0 or facts.st_mode & 0o022:
        what = f"{CDI} is not root's alone: whoever writes there gives containers devices"
        yield Finding("error", what, CDI, f"chown root: {CDI} && chmod go-w {CDI}")


def _check_engines() -> Iterator[Finding]:
    """Check that containerd gives containers the devices of CDI files."""
    for pid, config in containerd.dump_configurations():
        problem = find_cdi_problem(config, CDI)
        if problem:
            what = f"containerd (pid {pid}) {problem[0]}"
            yield Finding("error", what, str(pid), f"{problem[1]}, and restart it")


def find_cdi_problem(config: dict[str, object], folder: str) -> tuple[str, str] | None:
    """Return why containers get no CDI devices, and what to do; None: they get them.

    Args:
        config: the settings of containerd's CRI plugin, as they are in force.
        folder: of the driver's CDI files.
    """
    if config.get("enable_cdi", "cdi_spec_dirs" in config) is not True:
        return (
            "gives containers no CDI devices, so pods with claims do not get their GPUs",
            _ENABLE,
        )
    given = config.get("cdi_spec_dirs")
    folders = [str(each) for each in given] if isinstance(given, list) else []
    short = folder.replace("/var/run/", "/run/", 1)
    if short in {each.replace("/var/run/", "/run/", 1) for each in folders}:
        return None
    listed = printable(", ".join(folders), 300) or "nowhere"
    return f"reads CDI files in {listed}", f"add {folder} to its cdi_spec_dirs"


def _check_pairs(ground: Ground, claims: dict[str, Record]) -> Iterator[Finding]:
    """Check that each claim has both its share and its file, and that no file is unfinished."""
    folder = ground.machine.resolve_path(CDI)
    names = [each for each in _list_names(folder) if each.startswith(PREFIX)]
    calm = [each for each in names if _is_calm(f"{folder}/{each}")]
    files = {each.removeprefix(PREFIX).removesuffix(SUFFIX) for each in names}
    alone = [
        f"{CDI}/{each}"
        for each in calm
        if each.endswith(SUFFIX) and each.removeprefix(PREFIX).removesuffix(SUFFIX) not in claims
    ]
    if alone:
        what = f"nothing is held for {_join(alone)}: containers with this claim do not start"
        mend = f"restart the driver, which removes the file, and delete the claim's pods: {PODS}"
        yield Finding("error", what, alone[0], mend)
    lost = [" ".join(each.command) or id_ for id_, each in claims.items() if id_ not in files]
    if lost:
        what = f"the share of claim {_join(lost)} has no file in {CDI}: it ends with its containers"
        yield Finding("warning", what, lost[0], "delete the claim's pods, which get a new share")
    half = [f"{CDI}/{each}" for each in calm if each.endswith(_NEW)]
    if half:
        what = f"left by a driver that was killed while it wrote: {_join(half)}"
        yield Finding("warning", what, half[0], f"rm {' '.join(map(quote, half[:_SHOWN]))}")


def _join(names: Iterable[str]) -> str:
    listed = [printable(each) for each in names]
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_calm(path: str) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime > _CALM_SECONDS
    except OSError:  # it has just gone
        return False
