"""How programs end where no test of a whole program gets to (CLI-9)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env import program
from cgpu_server import serve

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

MISSING = 1 << 20  # no process has so many descriptors


def _exit() -> int:
    raise SystemExit("there is no GPU 9")


def _stat() -> int:
    error = OSError(9, "Bad file descriptor")
    error.filename = MISSING  # as functions leave it that take a descriptor
    raise error


def _allocate() -> int:
    raise MemoryError


_NO_MEMORY = "not enough memory\n  ulimit -v shows how much a program may have"


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (_exit, "there is no GPU 9"),
        (_stat, f"{MISSING}: Bad file descriptor"),
        (_allocate, _NO_MEMORY),
    ],
)
def test_any_end_is_a_sentence(
    work: Callable[[], int], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.run("cgpu", work)
    assert (end.value.code, capfd.readouterr().err) == (2, f"cgpu: {sentence}\n")


def test_the_log_says_why_a_server_ends_whatever_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the stderr of one that a command has started."""
    output = []

    def fail(*_: object) -> None:
        raise KeyError("u")

    monkeypatch.setattr(serve, "_detach_process", lambda *_, **__: None)
    monkeypatch.setattr(serve, "_serve_until_stopped", fail)
    monkeypatch.setattr(serve, "is_open", lambda: True)
    monkeypatch.setattr(serve.log, "error", lambda event, **rest: output.append((event, rest)))
    with pytest.raises(KeyError):
        serve.run_server(argparse.Namespace(idle_exit=None), [])
    [(event, rest)] = output
    assert event == "server_fails"
    assert rest["error"].startswith("KeyError('u') at ")
    assert Path(__file__).name in rest["error"]
