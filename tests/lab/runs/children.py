"""Hanging processes of a test: they are ended with the test's time, and their output is shown.

The time limit of pytest is an exception in the test. Whoever waits for a child on the way out, as
``with subprocess.Popen(...)`` does, would wait for good.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

_GRACE = 10.0  # seconds in which a test without its children is to end by itself
_SHOWN = 240  # characters of a command line
_PARENT, _START = 1, 19  # fields of /proc/PID/stat, counted behind the program's name


class Child(subprocess.Popen[str]):
    """A program with pipes; in a ``with`` that fails it is killed, and its output is shown."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        *,
        session: bool = False,
    ) -> None:
        pipe = subprocess.PIPE
        super().__init__(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=dict(environment),
            start_new_session=session,
        )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for its end."""
        if kind is not None:
            self.kill()
            self._show()
        super().__exit__(None, None, None)

    def _show(self) -> None:
        if self.stdin is not None and self.stdin.closed:
            self.stdin = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child of its own has the pipes
            out, log = self.communicate(timeout=5)
            sys.stdout.write(f"Process {self.pid} was killed. It had printed:\n{out}{log}\n")


class _Alarm:
    """The end of a test's time: first its children are killed, then it fails."""

    def __init__(self, fail: Callable[..., Any]) -> None:
        self.killed: list[str] = []
        self._fail = fail
        self._begun = _now()

    def __call__(self, *arguments: Any) -> None:
        if pytest_timeout.is_debugging():
            return
        signal.setitimer(signal.ITIMER_REAL, _GRACE)
        is_first = not self.killed
        self.killed += [_killed(pid) for pid in _children(self._begun)]
        if not (is_first and self.killed):
            self._fail(*arguments)


_ALARM = pytest.StashKey[_Alarm]()
_OVER = "its time was over and its children were killed; then it failed as shown above"


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let the alarm of pytest-timeout end the children first."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if callable(fail):
        item.stash[_ALARM] = _Alarm(fail)
        signal.signal(signal.SIGALRM, item.stash[_ALARM])
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test whose children were killed, and say so."""
    alarm = item.stash.get(_ALARM, None)
    try:
        result = yield
    except Exception as error:
        if alarm is not None and alarm.killed:
            raise pytest.fail.Exception(_OVER) from error
        raise
    finally:
        if alarm is not None and alarm.killed:
            item.add_report_section(
                "call", "killed when its time was over", "\n".join(alarm.killed)
            )
    if alarm is not None and alarm.killed:
        pytest.fail("it passed when its time was over and its children were killed")
    return result


def _now() -> int:
    """Ticks since boot, as the kernel notes a process's start."""
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return int(uptime * os.sysconf("SC_CLK_TCK"))


def _children(since: int) -> Iterator[int]:
    """Our children and theirs that were started since then, by their numbers."""
    offspring = {os.getpid()}
    started: dict[int, tuple[int, int]] = {}
    for folder in filter(lambda path: path.name.isdecimal(), Path("/proc").iterdir()):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            started[int(folder.name)] = int(fields[_PARENT]), int(fields[_START])
    while found := {p for p, (of, _) in started.items() if of in offspring} - offspring:
        offspring |= found
    yield from (p for p in sorted(offspring - {os.getpid()}) if started[p][1] >= since)


def _killed(pid: int) -> str:
    """Kill a process; its number and command line."""
    line = b""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        os.kill(pid, signal.SIGKILL)
    words = " ".join(line.replace(bytes(1), b" ").decode(errors="replace").split())
    return f"{pid} {words if len(words) < _SHOWN else f'{words[:60]} [...] {words[60 - _SHOWN :]}'}"
