"""The processes inside an enclosure, as this process sees them from outside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lab.driver.stopping import send
from lab.shares.compute import TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NS_GET_PARENT = 0xB702  # ioctl_ns(2)


class Process(NamedTuple):
    """One of them.

    Attributes:
        pid: as we see it.
        inner: as it sees itself.
        state: a letter of proc(5), ``Z`` for a zombie.
        words: its command line; empty of a zombie.
        tag: what the simulated GPU knows it by.
    """

    pid: int
    inner: int
    parent: int
    state: str
    words: tuple[str, ...]
    tag: str

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and nobody has waited for it."""
        return self.state == "Z"


class Inside:
    """Looks for the processes in the pid namespace of process ``first``, or below it."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._top = os.stat(f"/proc/{first}/ns/pid").st_ino
        self._seen: list[Process] | None = None

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Let those who ask in here see the same, at the price of a single look."""
        self._seen = self._look()
        try:
            yield
        finally:
            self._seen = None

    def processes(self) -> list[Process]:
        """All but the first; zombies too."""
        return self._look() if self._seen is None else self._seen

    def _look(self) -> list[Process]:
        found: dict[int, Process] = {}
        zombies = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                process = _read(int(name))
                if process is not None and process.is_zombie:
                    zombies.append(process)  # whose namespace is not known, but its parent's is
                elif process is not None and _is_below(process.pid, self._top):
                    found[process.pid] = process
        found |= {p.pid: p for p in zombies if p.parent in found}
        found.pop(self._first, None)
        return list(found.values())


def _read(pid: int) -> Process | None:
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    known = fields["NSpid"].split()
    if len(known) < 2:
        return None
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    return Process(
        pid,
        int(known[-1]),
        int(fields["PPid"]),
        fields["State"][0],
        tuple(map(os.fsdecode, words)),
        _tag(pid),
    )


def _tag(pid: int) -> str:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == TAG.encode():
                return os.fsdecode(value)
    return ""


def _is_below(pid: int, top: int) -> bool:
    fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        while os.fstat(fd).st_ino != top:
            parent = fcntl.ioctl(fd, _NS_GET_PARENT)
            os.close(fd)
            fd = parent
    except OSError:  # the parent is above ours
        return False
    finally:
        os.close(fd)
    return True


def described(pid: int) -> str:
    """What its threads are at, to explain why it is still there."""
    with contextlib.suppress(OSError, IndexError):
        output = []
        for task in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{task}"
            state = Path(f"{folder}/stat").read_text().rpartition(")")[2].split()[0]
            output.append(f"{state} {Path(f'{folder}/wchan').read_text()}")
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()}: {', '.join(output)}"
    return "gone"


def is_stopped(pid: int) -> bool:
    """Whether it stands still by SIGSTOP."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def kill(pids: Iterable[int]) -> None:
    """SIGKILL."""
    send(pids, signal.SIGKILL)
