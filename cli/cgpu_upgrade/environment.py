"""A virtual environment with one release of cgpu: how it is made, checked and run."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cgpu_env import CgpuError
from cgpu_node.installation import UNKNOWN, release_of
from cgpu_node.trust import check_source
from cgpu_upgrade import layouts
from cgpu_upgrade.layouts import Layouts

_MARK = ".cgpu-environment"  # in environments that an upgrade has made or moved, and may remove
_SECONDS = 60
_PROGRAMS = ("cgpu", "cgpu-run", "cgpu-smi", "cgpud")
_STATIC = ("cgpu-runtime", "cgpu-hook")
_LAST_LINES = 12
_SHARED = ["include-system-site-packages", "=", "true"]
# A container that names cgpu but does not want it, so that its configuration is not changed.
UNTOUCHED = json.dumps(
    {
        "process": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=0"], "args": ["true"]},
        "root": {"path": "/"},
        "mounts": [{"destination": "/run/.containerenv", "source": "/none/doctor/userdata/env"}],
    }
)


class Environment(NamedTuple):
    """A virtual environment at ``path``."""

    path: str

    @property
    def python(self) -> str:
        """Return its interpreter."""
        return f"{self.path}/bin/python"

    @property
    def release(self) -> str:
        """Return the release of cgpu in it."""
        return release_of(self.path)

    @property
    def packages(self) -> str:
        """Return the folder of its packages.

        Raises:
            CgpuError: there is none.
        """
        pattern = f"{glob.escape(self.path)}/lib/python3*/site-packages/cgpu_hook/_bin"
        found = [path for path in glob.glob(pattern) if os.path.realpath(path) == path]
        if not found:
            raise CgpuError(f"{self.path}: expected a virtual environment with cgpu in it")
        return os.path.dirname(os.path.dirname(found[0]))

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run its interpreter with ``words``, isolated from our environment and directory."""
        return _run_program([self.python, "-I", *words], given)

    def run_cgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its ``cgpu`` with ``words``."""
        return self.run("-m", "cgpu_cli.main", *words)

    def read_layouts(self) -> Layouts:
        """Return the layouts that its release reads and writes.

        Raises:
            CgpuError: the release does not report them.
        """
        if not os.path.isdir(f"{self.packages}/cgpu_upgrade"):
            return layouts.FIRST
        done = self.run_cgpu("upgrade", "--layouts")
        if done.returncode != 0:
            raise CgpuError(f"cgpu {self.release}: {_tail_output(done)}")
        return layouts.parse_layouts(done.stdout)

    def check(self) -> None:
        """Refuse an environment whose programs do not start, or that others could change.

        Raises:
            CgpuError: one sentence about the first program that is wrong.
        """
        for name in _STATIC:
            check_source(os.path.realpath(f"{self.packages}/cgpu_hook/_bin/{name}"))
        for name in _PROGRAMS:
            done = _run_program([f"{self.path}/bin/{name}", "--help"])
            if done.returncode != 0:
                raise CgpuError(f"{self.path}/bin/{name} does not start: {_tail_output(done)}")
        hook = f"{self.packages}/cgpu_hook/_bin/cgpu-hook"
        with tempfile.TemporaryDirectory() as state:
            done = _run_program([hook, "precreate", "--state-dir", state], UNTOUCHED)
        if done.stdout != UNTOUCHED:
            raise CgpuError(f"{hook} does not start: {_tail_output(done)}")

    def is_ours(self) -> bool:
        """Whether an upgrade has made or moved this environment."""
        return os.path.exists(f"{self.path}/{_MARK}")

    def mark_removable(self) -> None:
        """Mark this environment as one that a later upgrade may remove."""
        with open(f"{self.path}/{_MARK}", "w", encoding="ascii") as file:
            file.write("made by cgpu upgrade, and removed by a later one\n")

    def remove(self) -> None:
        """Remove this environment. Files that containers have mapped continue to exist."""
        shutil.rmtree(self.path, ignore_errors=True)


def make_environment(
    beside: Environment, prefix: str, source: str, options: Sequence[str]
) -> Environment:
    """Make an environment PREFIX-RELEASE with what pip makes of ``source``.

    Args:
        beside: the environment in use, whose interpreter and pip are used.
        prefix: the prefix of the installation.
        source: a wheel, a directory, or whatever else pip understands.
        options: options for pip.

    Raises:
        CgpuError: pip fails, or it is no cgpu; nothing of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="cgpu-upgrade-") as work:
        wheel = _build_wheel(beside, source, options, work)
        release = os.path.basename(wheel).split("-")[1]
        made = Environment(next(_list_free_names(f"{prefix}-{release}")))
        umask = os.umask(0o022)  # all users start programs of it
        try:
            os.mkdir(made.path, 0o755)
            made.mark_removable()
            shared = ["--system-site-packages"] if _has_system_packages(beside) else []
            _run_checked([_find_base_python(beside), "-I", "-m", "venv", *shared, made.path])
            _run_checked([made.python, "-I", "-m", "pip", "install", *_PIP, *options, wheel])
            _keep_old_paths(beside, made)
        except BaseException:
            made.remove()
            raise
        finally:
            os.umask(umask)
    return made


_PIP = ("--quiet", "--disable-pip-version-check")


def _build_wheel(beside: Environment, source: str, options: Sequence[str], folder: str) -> str:
    if os.path.isfile(source) and source.endswith(".whl"):
        wheel = os.path.abspath(source)
    else:
        pip = [beside.python, "-I", "-m", "pip", "wheel", *_PIP, "--no-deps", "--wheel-dir", folder]
        _run_checked([*pip, *options, source])
        wheel = next(iter(glob.glob(f"{folder}/cgpu-*.whl")), source)
    if not os.path.basename(wheel).startswith("cgpu-"):
        raise CgpuError(f"{source}: expected a wheel of cgpu, or what pip makes one of")
    return wheel


def _find_base_python(beside: Environment) -> str:
    """Return the interpreter that made the environment, or the one that has its name today."""
    done = beside.run("-c", "import sys; print(sys._base_executable)")
    path = done.stdout.strip()
    return path if done.returncode == 0 and os.access(path, os.X_OK) else "/usr/bin/python3"


def _has_system_packages(beside: Environment) -> bool:
    try:
        with open(f"{beside.path}/pyvenv.cfg", encoding="utf-8") as file:
            return any(line.split() == _SHARED for line in file)
    except OSError:
        return False


def _keep_old_paths(beside: Environment, made: Environment) -> None:
    """If Python's version changed, link paths with the old version's name to the new one's.

    Running containers, links, and configurations that were made by hand may name programs by such a
    path.
    """
    [new] = glob.glob(f"{glob.escape(made.path)}/lib/python3*")
    for old in glob.glob(f"{glob.escape(beside.path)}/lib/python3*"):
        if not os.path.lexists(link := f"{made.path}/lib/{os.path.basename(old)}"):
            os.symlink(os.path.basename(new), link)


def _list_free_names(path: str) -> Iterator[str]:
    """Yield ``path`` and similar names that nothing has yet."""
    names = (path if number == 1 else f"{path}-{number}" for number in range(1, sys.maxsize))
    return (name for name in names if not os.path.lexists(name))


def free_name(prefix: str, environment: str) -> str:
    """Return a name beside the prefix for the environment that is at the prefix."""
    release = release_of(environment)
    return next(_list_free_names(f"{prefix}-{release if release != UNKNOWN else 'old'}"))


def _run_checked(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        what = " ".join(words[3:5])
        raise CgpuError(f"{what} fails; nothing was changed", hint=_tail_output(done))


def _run_program(words: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _tail_output(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a command's output."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "\n  ".join(lines[-_LAST_LINES:]) or f"exit status {done.returncode}"
