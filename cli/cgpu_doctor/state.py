"""Leftovers of ended containers, and whether a server serves those that live."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from shlex import quote
from typing import Any

from cgpu_doctor.finding import Finding, Ground, Level
from cgpu_env import CgpuError, parse_environment
from cgpu_env.errors import LONGEST_PATH, printable
from cgpu_env.request import MEANT, without_size
from cgpu_node import client, installation
from cgpu_node import server as wakeup
from cgpu_node.paths import check_parent, check_state, default_state_dir
from cgpu_node.shares import record
from cgpu_node.shares.mountinfo import list_mounts
from cgpu_node.shares.registry import Registry

_CALM_SECONDS = 5  # longer than an admission takes, or a server that looks once a second
_LEAST_BYTES = 1 << 20
_LOOK = "cgpu get"  # starts a server if none runs, and a server clears up
_SHOWN = 5
_OWN, _LIMITS = "/proc/self", b"/limits"
_TREE, _TREE_SECONDS = "fuse.cgpu_km", 5


def check_directory(ground: Ground) -> Iterator[Finding]:
    """Check that the state directory can be used, and has room."""
    if ground.is_closed:
        yield ground.report_closed()
        yield from _own_account(ground)
    else:
        yield from _check_path(ground.state_dir)


def _own_account(ground: Ground) -> Iterator[Finding]:
    """Report faults of the user's own state directory, and how many containers live in it."""
    own = default_state_dir()
    if own == ground.state_dir or not os.path.lexists(own):
        return
    wrong = [found for found in _check_path(own) if found.level != "ok"]
    yield from wrong
    count = 0 if wrong else len(Registry(own).list_records())
    if count:
        what = f"{count} more of yours in the account {own}"
        yield Finding("note", what, own, f"cgpu doctor --state-dir {own}")


def _check_path(path: str) -> Iterator[Finding]:
    if not os.path.lexists(path):
        yield _check_absent(path)
        return
    try:
        check_state(path)
    except CgpuError as error:
        mend = f"chown {os.geteuid() or 'root'}: {path} && chmod go-w {path}"
        yield Finding("error", str(error), path, mend)
        return
    facts = os.statvfs(path)
    free = facts.f_bavail * facts.f_frsize
    if free < _LEAST_BYTES:
        what = f"{path}: {free} bytes are free: new containers are refused"
        yield Finding("error", what, str(free), f"du -a {path} | sort -n | tail")
    else:
        yield Finding("ok", f"{path} has room", path)


def _check_absent(path: str) -> Finding:
    try:
        check_parent(path)
    except CgpuError as error:
        mend = f"mkdir -p {os.path.dirname(path)}, or name another --state-dir"
        return Finding("error", str(error), path, mend)
    return Finding("ok", f"{path} is not there: nothing has run yet", path)


def check_leftovers(ground: Ground) -> Iterator[Finding]:
    """Check that nothing is left of ended containers."""
    found = [*_find_dead(ground), *_find_dead_trees(ground)]
    yield from found
    if ground.is_closed:
        yield ground.report_closed()
    elif not found:
        living = Registry(ground.state_dir).list_records()
        yield Finding("ok", f"nothing is left of ended containers; running: {len(living)}")


def _find_dead(ground: Ground) -> Iterator[Finding]:
    if ground.is_closed:
        return
    living = {record.id for record in Registry(ground.state_dir).list_records()}
    folder = f"{ground.state_dir}/containers"
    dead = [name for name in _list_names(folder) if name not in living and _is_calm(folder, name)]
    if dead:
        what = "folders are left of containers that are gone and have no share any more: "
        yield Finding("warning", what + ", ".join(dead[:_SHOWN]), dead[0], _LOOK)
    mounts = [point for point, name in _find_mounts(ground, folder) if name not in living]
    for point in mounts:
        what = f"{point} is mounted for a container that is gone"
        yield Finding("warning", what, point, f"umount {quote(point)}")


def _find_dead_trees(ground: Ground) -> Iterator[Finding]:
    for path in _find_trees(ground):
        is_there, point = is_answering(path), printable(path, LONGEST_PATH)
        if is_there is False:
            what = f"{point}: the control tree of a cgpud that is gone"
            yield Finding("warning", what, point, f"umount -l {quote(point)}")
        elif is_there is None:  # without its tree, a server goes on when it is continued
            what = f"{point}: the control tree of a cgpud that is stopped, or hangs"
            mend = f"kill -CONT that cgpud, or kill -KILL it and then: umount -l {quote(point)}"
            yield Finding("warning", what, point, mend)


def check_shares(ground: Ground) -> Iterator[Finding]:
    """Check that no container has another share than its user meant."""
    if ground.is_closed:
        yield ground.report_closed()
        return
    noted = {
        each.id: record.read_notes(each.directory)
        for each in Registry(ground.state_dir).list_records()
    }
    for name, notes in noted.items():
        mend = f"start it with the GPU's size as the whole, or: cgpu set {name} memsize=..."
        if notes:
            yield Finding("warning", f"{name}: {'; '.join(notes)}", name, mend)
    if not noted:
        yield Finding("ok", "no container with a share runs")
    elif not any(noted.values()):
        yield Finding("ok", "no container was created with a size that its GPU has not")
    for pid, warning in _find_without_size(ground):
        yield Finding("warning", f"the container of process {pid}: {warning}", str(pid), MEANT)


def _find_without_size(ground: Ground) -> Iterator[tuple[int, str]]:
    """Yield process and warning for each container whose variables ask for a share without size."""
    at = ground.machine.resolve_path
    seen = {None, _read_namespace(at(_OWN))}
    for pid in sorted(int(name) for name in _list_names(at("/proc")) if name.isdecimal()):
        folder = at(f"/proc/{pid}")
        namespace = _read_namespace(folder)
        if namespace not in seen:
            seen.add(namespace)
            warning = without_size(_read_variables(folder))
            if warning and not _has_limits(folder):
                yield pid, warning


def _has_limits(folder: str) -> bool:
    """Return whether a process sees limits at the path of a container's or a session's."""
    return any(mount.point.endswith(_LIMITS) for mount in list_mounts(folder, _LIMITS))


def _read_namespace(folder: str) -> str | None:
    try:
        return os.readlink(f"{folder}/ns/mnt")
    except OSError:  # it has ended
        return None


def _read_variables(folder: str) -> dict[str, str]:
    try:
        with open(f"{folder}/environ", "rb") as file:
            return parse_environment(os.fsdecode(file.read()).split("\0"))
    except OSError:
        return {}


def check_server(ground: Ground) -> Iterator[Finding]:
    """Check that a server runs if there are containers to divide time between."""
    path = f"{ground.state_dir}/{wakeup.SOCKET}"
    if ground.is_served():
        yield from _check_running(ground, path)
    elif ground.is_closed:
        what = f"no cgpud answers at {path}: only root can see which containers run"
        level: Level = "warning" if os.path.exists(path) else "note"
        yield Finding(level, what, path, ground.by_root(_LOOK))
    else:
        yield from _check_unserved(ground, path)


def _check_running(ground: Ground, path: str) -> Iterator[Finding]:
    try:
        answer = client.send_request(ground.state_dir, {"request": "status"})
    except client.SilentError as error:
        yield Finding("error", str(error), path, error.hint)
    except CgpuError as error:
        yield Finding("warning", str(error), path, ground.by_root(_LOOK))
    else:
        count = _count_containers(ground, answer)
        yield Finding("ok", f"cgpud runs; containers and sessions: {count}", path)
        yield from _check_answer(ground, answer)


def _count_containers(ground: Ground, answer: dict[str, Any]) -> str:
    """Return how many containers live: by the files, or by the server if those cannot be read."""
    if not ground.is_closed:
        return str(len(Registry(ground.state_dir).list_records()))
    of_gpus = [f"{gpu['containers']} on GPU {gpu['index']}" for gpu in answer["gpus"]]
    return f"{', '.join(of_gpus) or 'none'}; yours: {len(answer['containers'])}"


def _check_unserved(ground: Ground, path: str) -> Iterator[Finding]:
    count = len(Registry(ground.state_dir).list_records())
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        yield Finding("warning", f"{path}: nobody listens: cgpud was killed", path, _LOOK)
    if count:
        what = "no cgpud runs: each container keeps to a fixed part of the time"
        yield Finding("warning", what, str(count), _LOOK)
    elif not os.path.exists(path):
        yield Finding("ok", "no cgpud runs, and none is needed: the first container starts one")


def _check_answer(ground: Ground, answer: dict[str, Any]) -> Iterator[Finding]:
    """Report what the server answered about itself. One of another release may answer less."""
    running, installed = answer["node"].get("version"), installation.installed_release()
    if running != installed and ground.is_closed:
        what = f"cgpud is of release {running}, and your commands are of release {installed}"
        yield Finding("note", what, str(running))
    elif running != installed:
        what = f"cgpud is of release {running}, and {installed} is installed"
        yield Finding("warning", what, str(running), "cgpu upgrade")
    for gpu in answer["gpus"]:
        if gpu.get("audited") is False:
            what = f"GPU {gpu['index']}: the driver does not say what processes hold"
            mend = f"see audit_blind and audit_fails: {ground.log}"
            what = f"{what}: the audit sees nothing"
            yield Finding("warning", what, gpu["uuid"], ground.by_root(mend))


def _find_trees(ground: Ground) -> list[str]:
    """Return the mount points of our control trees. One may hide another.

    Any user can mount such a file system, anywhere in a folder of the user's own.
    """
    ours = b"user_id=%d" % os.geteuid()
    mounts = list_mounts(ground.machine.resolve_path(_OWN))
    points = [m.point for m in mounts if m.kind == _TREE and ours in m.options]
    return [os.fsdecode(point) for point in dict.fromkeys(points)]


def is_answering(point: str) -> bool | None:
    """Whether a server answers for what is mounted at ``point``; None if no answer comes.

    Another process asks, because the question may hang. Nobody waits for its end then: it cannot be
    killed while a server that has read the question does not answer.
    """
    try:
        asking = subprocess.Popen(
            ["stat", "--", point],  # noqa: S607 (a program of every system)
            env={**os.environ, "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    except OSError:
        return None
    try:
        _, errors = asking.communicate(timeout=_TREE_SECONDS)
    except subprocess.TimeoutExpired:
        asking.kill()
        return None
    return b"not connected" not in errors  # it may be another user's, and closed to us


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_calm(folder: str, name: str) -> bool:
    try:
        return time.time() - os.lstat(f"{folder}/{name}").st_mtime > _CALM_SECONDS
    except OSError:
        return False


def _find_mounts(ground: Ground, folder: str) -> Iterator[tuple[str, str]]:
    """Yield mount points in our namespace that show a container's files, and the container."""
    try:
        facts = os.stat(ground.state_dir)
    except OSError:
        return
    device = b"%d:%d" % (os.major(facts.st_dev), os.minor(facts.st_dev))
    for mount in list_mounts(ground.machine.resolve_path(_OWN)):
        point = printable(os.fsdecode(mount.point), LONGEST_PATH)
        # The list of mounts names what is mounted by its path in its own file system.
        head, found, name = os.fsdecode(mount.origin.path).partition("/containers/")
        if found and mount.origin.device == device and ground.state_dir.endswith(head):
            yield point, name.partition("/")[0]
        elif point.startswith(f"{folder}/"):
            yield point, point.removeprefix(f"{folder}/").partition("/")[0]
