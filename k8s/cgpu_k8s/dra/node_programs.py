"""Installs what a claim's hook needs on the node, and removes it from there.

Each version has a folder of its own, which appears at once and never changes. A claim's CDI file
names its folder, so that containers start again by what they were started by before. The node's
files are reached by one of its processes, whose mounts and root are the node's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.dra import cdi
from cgpu_k8s.dra.programs import LOADER
from cgpu_k8s.names import AGENT_LOCK
from cgpu_node.client import send_request
from cgpu_node.lockfile import try_lock
from cgpu_node.server import LOCK, is_listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cgpu_k8s.dra.programs import ProgramFiles
    from cgpu_node.shares.registry import Registry

_PROC = Path("/proc")
_PYTHON = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
_HOOK, _BOOTSTRAP = f"{_PYTHON}/cgpu_hook/_bin/cgpu-hook", f"{_PYTHON}/cgpu_node/bootstrap.py"
_UNFINISHED = ".unfinished-"
_LONGEST = 600  # characters of a sentence
_REST_SECONDS = 30.0  # between two attempts
_END_SECONDS, _POLL_SECONDS = 10.0, 0.05
_PATIENCE = 400.0  # seconds; the first question of a boot waits for the driver
_TURN_SECONDS = 5.0  # that a claim waits while another thread asks
_ELSEWHERE = "name another folder of the node by the chart's value dra.folder"


class NodePlace(NamedTuple):
    """The place of programs on the node.

    Attributes:
        folder: has a folder for each version.
        process: of the node, by whose root and mounts the node's files are reached.
        cdi: the folder of CDI files.
        state_dir: the state directory.
        driver_dir: the directory of the driver's libraries; None: it is searched.
    """

    folder: str
    process: int
    cdi: Path
    state_dir: str
    driver_dir: str | None = None

    def path(self, path: str) -> Path:
        """Return where this process finds a path of the node."""
        return Path(f"/proc/{self.process}/root{path}")


class NodePrograms:
    """The programs of this version on a node.

    Args:
        place: where.
        programs: what.
    """

    def __init__(self, place: NodePlace, programs: ProgramFiles) -> None:
        self._place, self._programs = place, programs
        self._own = f"{place.folder}/{programs.name}"
        self._lock = threading.Lock()
        self._problem: str | None = None  # None: not known
        self._tried_at = 0.0

    @property
    def hook(self) -> str:
        """Return the hook's path on the node."""
        return f"{self._own}/{_HOOK}"

    def find_problem(self) -> str:
        """Install the programs unless they are there and work; return what prevents it, or "".

        One thread at a time does that. The driver may hang, so the others soon give up: they are
        those by which claims are given back, too.
        """
        if not self._lock.acquire(timeout=_TURN_SECONDS):
            return (
                f"whether cgpu's programs work at {self._own} of this node is being found out:"
                " claims wait for that, some seconds unless NVIDIA's driver hangs"
            )
        try:
            now = time.monotonic()
            is_there = self._place.path(self.hook).exists()
            is_known = is_there if self._problem == "" else now - self._tried_at < _REST_SECONDS
            if self._problem is not None and is_known:
                return self._problem
            try:
                self._install()
                driver_dir = self._place.driver_dir
                self._run_there("check", *([driver_dir] if driver_dir else []))
                self._remove_others()
                self._problem = ""
            except OSError as error:
                what = f"cgpu's programs cannot be installed at {self._own} of this node"
                self._problem = f"{what}: {error.strerror}; {_ELSEWHERE}"
            except CgpuError as error:
                self._problem = f"{error} ({error.hint})" if error.hint else str(error)
            self._tried_at = time.monotonic()
            return self._problem
        finally:
            self._lock.release()

    def _install(self) -> None:
        folder, own = (self._place.path(path) for path in (self._place.folder, self._own))
        if own.exists():
            return
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for each in folder.glob(f"{_UNFINISHED}*"):  # of a driver that was killed
            shutil.rmtree(each)
        new = folder / f"{_UNFINISHED}{self._programs.name}"
        try:
            for name, source in self._programs.files.items():
                target = new / name
                target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o644 if name.endswith(".py") else 0o755)
            os.sync()  # so that a folder of this name is whole, whenever the power fails
            new.rename(own)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    def _run_there(self, command: str, *words: str) -> None:
        """Run a command of ``cgpu_hook.installed`` in the node's mounts.

        Raises:
            CgpuError: one sentence says why it failed.
        """
        place = self._place
        python = [f"{self._own}/bin/python3", "-I", "-S", "-E", "-X", "utf8"]
        started = [f"{self._own}/{_BOOTSTRAP}", "cgpu_hook.installed", command, place.state_dir]
        enter = ["nsenter", f"--mount=/proc/{place.process}/ns/mnt", "--"]
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        what = "cgpu's programs do not run on this node"
        try:
            done = subprocess.run(
                [*enter, *python, *started, *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CgpuError(f"{what}: {error}") from None
        if done.returncode == 0:
            return
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        last = printable(last, _LONGEST)
        if last.startswith("nsenter: "):  # it could not be started
            hint = f"if {place.folder} is mounted noexec, {_ELSEWHERE}"
            raise CgpuError(f"{what}: {last.removeprefix('nsenter: ')}", hint=hint)
        raise CgpuError(last)

    def _remove_others(self) -> None:
        """Remove other versions that nothing uses."""
        names = {*self._list_versions()} - {self._programs.name}
        for name in names - {*self._find_used(names)} if names else ():
            self._remove_version(name)

    def _list_versions(self) -> list[str]:
        """Return the names of folders that a driver has made; others are not ours to remove."""
        found = _list(self._place.path(self._place.folder))
        return [each.name for each in found if (each / LOADER).exists()]

    def _remove_version(self, name: str) -> None:
        folder = self._place.path(self._place.folder)
        going = folder / f"{_UNFINISHED}{name}"
        with contextlib.suppress(OSError):  # the next driver tries again
            (folder / name).rename(going)
            shutil.rmtree(going)

    def _find_used(self, names: set[str]) -> Iterator[str]:
        """Yield which versions a claim, a process or a container's mounts need."""
        hooks = [_read(each) for each in _list_files(self._place.cdi)]
        users = [*hooks, *_list_executables(), *_list_overlays(f"{self._place.state_dir}/")]
        for name in names:
            if any(f"{self._place.folder}/{name}/" in each for each in users):
                yield name

    def remove(self, registry: Registry) -> str:
        """Remove all that cgpu has on the node, if nobody has a share of its GPUs.

        Returns:
            What keeps it there; "": it is removed.
        """
        with self._lock:  # what is being installed is then removed, too
            return self._remove(registry)

    def _remove(self, registry: Registry) -> str:
        held = registry.list_records()
        if held:
            return f"{len(held)} shares of GPUs are held"
        state_dir = registry.state_dir
        process = _read_server(state_dir)
        if process is not None and self._owns(process):
            with contextlib.suppress(CgpuError):
                send_request(state_dir, {"request": "stop"})
            if not _await_end(process):
                return f"cgpud (pid {process}) does not end"
            process = None
        place = self._place
        if process is None:  # else cgpu is installed here in another way, too
            is_free = _await_agent(state_dir)  # before anybody waits for the lock
            with registry.lock(create=True):
                if registry.list_records():
                    return "a share of a GPU has just been given"
                if place.path(self.hook).exists():
                    self._run_there("unmount")
                if is_free and _has_no_agent(state_dir):
                    shutil.rmtree(state_dir, ignore_errors=True)
            _remove_empty(Path(f"{state_dir}_km"))
        for each in _list_files(place.cdi):  # of claims that nothing is held for
            each.unlink(missing_ok=True)
        _remove_empty(place.cdi)
        for name in self._list_versions():
            self._remove_version(name)
        _remove_empty(place.path(place.folder))
        return ""

    def _owns(self, process: int) -> bool:
        """Return whether a process runs from one of the folders."""
        return _read_executable(process).startswith(f"{self._place.folder}/")


def _list(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _list_files(folder: Path) -> list[Path]:
    """Return the CDI files of claims, finished or not."""
    names = ((each, each.name.removesuffix(".new")) for each in _list(folder))
    return [each for each, name in names if cdi.read_uid(name) is not None]


def _read(path: Path) -> str:
    """Return a file's text; "": it has just gone."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _list_processes() -> Iterator[Path]:
    for each in _list(_PROC):
        if each.name.isdecimal():
            yield each


def _read_executable(process: int) -> str:
    try:
        return str(Path(f"/proc/{process}/exe").readlink())
    except OSError:
        return ""


def _list_executables() -> Iterator[str]:
    for each in _list_processes():
        yield _read_executable(int(each.name))


def _list_overlays(hosts: str) -> Iterator[str]:
    """Yield the overlays that containers have; the host's own are mounted below ``hosts``."""
    seen: set[str] = set()
    for each in _list_processes():
        with contextlib.suppress(OSError):  # it has ended
            space = str((each / "ns/mnt").readlink())
            if space in seen:
                continue
            seen.add(space)
            for line in (each / "mountinfo").read_text(errors="replace").splitlines():
                if "lowerdir=" in line and not line.split(maxsplit=5)[4].startswith(hosts):
                    yield line.partition("lowerdir=")[2]


def _read_server(state_dir: str) -> int | None:
    """Return the server's process; None: none serves the state directory."""
    try:
        return int(Path(state_dir, LOCK).read_text()) if is_listening(state_dir) else None
    except (OSError, ValueError):
        return None


def _await_end(process: int) -> bool:
    """Return whether a process has ended before long."""
    return _await(lambda: not Path(f"/proc/{process}").exists())


def _await_agent(state_dir: str) -> bool:
    """Return whether before long no agent uses the state directory: the chart removes both."""
    return _await(lambda: _has_no_agent(state_dir))


def _has_no_agent(state_dir: str) -> bool:
    lock = try_lock(f"{state_dir}/{AGENT_LOCK}")
    if lock is not None:
        os.close(lock)
    return lock is not None


def _await(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + _END_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # something is in it, or it is not there
        folder.rmdir()
