"""The programs of a cluster: of which versions, where they are, how they start, and their end.

Tests run on 1.20.2, and also on the version in the folder that ``CGPU_KUBERNETES`` names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

_SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes.sh"
_OLDEST = "1.20.2"  # what the script builds
_GRACE = 5.0  # seconds to end in, before a program is killed
_LOWEST = 10_000  # of the ports that tests take
_CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_STAMP = re.compile(r"[IWEF]\d{4} \S+ +\d+ ")  # what a line of Kubernetes' logs begins with
_CHANCE = random.SystemRandom()  # the usual one begins alike in all processes of a test run


class Release(NamedTuple):
    """A version of Kubernetes.

    Attributes:
        version: such as ``1.36.2``.
        folder: its programs, and perhaps the etcd that it wants; None: that of the script.
    """

    version: str
    folder: Path | None = None

    def program(self, name: str) -> Path | str:
        """Such as ``kube-apiserver``, or ``etcd``: the machine's where the folder has none.

        Fails the test where it is not there.
        """
        path = (self.folder or _built()) / name
        if path.exists():
            return path
        if name != "etcd":
            pytest.fail(f"{path} is not there")
        return name

    @property
    def has_policies(self) -> bool:
        """Whether the chart brings admission policies, and no webhook that judges."""
        return self.is_since(30)

    @property
    def has_controllers(self) -> bool:
        """Whether it has kube-controller-manager, which the script does not build."""
        return self.folder is not None

    def is_since(self, minor: int) -> bool:
        """Whether it is 1.``minor`` or later."""
        return int(self.version.split(".")[1]) >= minor


@functools.cache
def _built() -> Path:
    found = subprocess.run(
        ["sh", _SCRIPT, "-n"], capture_output=True, text=True, check=False, timeout=60
    )
    if found.returncode:
        pytest.fail(found.stderr.strip())
    return Path(found.stdout.strip())


@functools.cache
def releases() -> tuple[Release, ...]:
    """The oldest first; the second one is in the folder that ``CGPU_KUBERNETES`` names."""
    oldest, named = Release(_OLDEST), os.environ.get("CGPU_KUBERNETES", "")
    if not named:
        return (oldest,)
    folder = Path(named).resolve()
    try:
        shown = subprocess.run(
            [folder / "kube-apiserver", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise pytest.UsageError(f"CGPU_KUBERNETES={named}: {error}") from None
    version = shown.removeprefix("Kubernetes v").partition("-")[0].partition("+")[0].strip()
    return (oldest, Release(version, folder))


@pytest.fixture(scope="session", params=releases(), ids=lambda each: each.version, name="release")
def each_release(request: pytest.FixtureRequest) -> Release:
    """Each version in turn: a test that wants it, or what is made of it, runs on all of them."""
    found: Release = request.param
    return found


_NEWER = [each for each in releases() if each.has_policies]
# Marks what an older one cannot show; without a newer one, its file is not collected.
newer = pytest.mark.parametrize(
    "release", _NEWER, ids=[each.version for each in _NEWER], indirect=True, scope="session"
)


def only_with_a_newer(*files: str) -> list[str]:
    """Which of these files are not collected."""
    return [] if _NEWER else [*files]


def free_port() -> int:
    """A TCP port of loopback that nobody has now.

    No client is given it meanwhile, unless the machine's clients have ports below ``2 * _LOWEST``.
    """
    lowest = int(_CLIENTS.read_text(encoding="ascii").split()[0])
    while True:
        port = _CHANCE.randrange(_LOWEST, max(lowest, 2 * _LOWEST))
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def running(log: Path, command: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its output in ``log``, which ends with the block, or with the test run.

    The kernel kills the program when the thread that started it ends. So only the main thread may.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{command[0]} must be started by the main thread, which outlives it")
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, lines: int = 20) -> str:
    """The end of a program's output; what comes again and again is there once."""
    kept: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        kept.pop(_STAMP.sub("", line), None)
        kept[_STAMP.sub("", line)] = line
    return "\n".join([*kept.values()][-lines:])
