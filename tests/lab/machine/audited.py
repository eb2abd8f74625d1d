"""A server with a configuration of its own, and a program that bypasses cgpu."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

BYPASS = Path(__file__).resolve().parents[2] / "system" / "programs" / "bypass.py"


def server_command(folder: Path, audit: str, *flags: str | Path) -> list[str]:
    """``cgpud`` in a private view of /etc, made in ``folder``, whose ``[audit]`` is ``audit``."""
    config_folder = folder / "etc" / "cgpu"
    config_folder.mkdir(parents=True, exist_ok=True)
    configure(folder, audit)
    script = f'mount --bind {folder}/etc /etc && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-m", "cgpu_server.main"]
    return [*words, *map(str, flags)]


def configure(folder: Path, audit: str) -> None:
    """Change it while the server runs."""
    (folder / "etc" / "cgpu" / "config.toml").write_text(f"[audit]\n{audit}\n")


class Bypass:
    """The program ``bypass.py``, started by ``process``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> Any:
        """What it answers."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Tell it to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What it says of it."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 120)
        assert ready, "no answer in 120 s"
        answer = self._process.stdout.readline()
        assert answer, f"it has ended: {self._process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError, ValueError):  # it is closed already
            self._process.communicate(timeout=20)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Return when ``condition`` holds; fail after ``seconds`` saying ``what`` did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.02)
