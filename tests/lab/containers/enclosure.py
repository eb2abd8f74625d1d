"""A private process and mount namespace in which the system tests' engines live.

Everything a test starts runs under one first process (this file, executed): when that ends, the
kernel ends the rest and drops every mount. It ends as soon as the test run does, however that
happens, because it waits for the end of a pipe that the test run holds. ``/run`` and ``/dev/shm``
are private, so no engine meets one that the machine may already run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "cgpu-system-tests-"


class Enclosure:
    """The namespaces, a short-named directory for sockets and state, and a cgroup of their own."""

    def __init__(self, name: str = "") -> None:
        remove_stale()
        self.cgroup = f"{PREFIX}{os.getpid()}{name and f'-{name}'}"
        self.base = Path(tempfile.gettempdir(), self.cgroup)
        self.base.mkdir(mode=0o711)  # root of a user namespace passes through
        try:
            self._start()
        except BaseException:  # also when the process has to end
            shutil.rmtree(self.base)
            raise

    def _start(self) -> None:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
        self._process = subprocess.Popen(
            [*unshare, sys.executable, "-ISE", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the test run
        )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())

    def command(self, *argv: str | Path) -> list[str]:
        """``argv`` as a command that runs inside."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--"]
        return [*inside, *map(str, argv)]

    def run(
        self, *argv: str | Path, check: bool = True, timeout: float = 120, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` inside; both outputs are captured, and shown if a checked run fails."""
        if "stdin" not in options:
            options.setdefault("input", "")  # a pipe: crun gives its stdin to the container's user
        done = subprocess.run(
            self.command(*argv),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )
        if check and done.returncode != 0:
            output = f"{done.stdout}{done.stderr}"
            raise AssertionError(f"exit {done.returncode}: {output}\nof {' '.join(map(str, argv))}")
        return done

    def start(self, *argv: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start ``argv`` inside without waiting for it."""
        return subprocess.Popen(
            self.command(*argv),
            text=True,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )

    def mounts(self) -> list[str]:
        """Mount points of the namespace, as the kernel lists them."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines]

    def reboot(self) -> None:
        """End everything inside, remove its mounts and cgroups, and begin anew with its files."""
        self._end()
        self._start()

    def stop(self) -> None:
        """End everything inside and remove its mounts, cgroups and files."""
        self._end()
        shutil.rmtree(self.base)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        remove_cgroups(self.cgroup)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Return when ``condition`` holds; fail after ``seconds`` with ``what`` in the message.

    Looking takes a fifth of the time at most: what is waited for needs the processors too.
    """
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(min(max(0.02, 4 * (now - began)), 0.5))
        began = time.monotonic()


def remove_cgroups(name: str) -> None:
    """Remove the tree of empty cgroups ``name`` from every hierarchy."""
    for top in [CGROUPS / name, *CGROUPS.glob(f"*/{name}")]:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def remove_stale() -> None:
    """Remove leftovers of killed test runs."""
    temporary = Path(tempfile.gettempdir())
    folders = [CGROUPS, *CGROUPS.glob("*/"), temporary]
    for name in {path.name for folder in folders for path in folder.glob(f"{PREFIX}*")}:
        if not Path("/proc", name.removeprefix(PREFIX).partition("-")[0]).exists():
            remove_cgroups(name)
            shutil.rmtree(temporary / name, ignore_errors=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _reap(_signal: int, _frame: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _first_process() -> None:
    host_pid = Path("/proc/self").readlink()  # /proc still is the host's
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "tmpfs", "/run")
    _mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    if (CGROUPS / "unified").is_mount():
        # crun refuses the hybrid arrangement when the second hierarchy has controllers.
        subprocess.run(["umount", str(CGROUPS / "unified")], check=True)
    signal.signal(signal.SIGCHLD, _reap)
    sys.stdout.write(f"{host_pid}\n")
    sys.stdout.flush()
    while os.read(0, 1):
        pass


if __name__ == "__main__":
    _first_process()
