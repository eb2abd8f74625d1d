"""Runs pytest in a mount namespace in which every start of our Python records its lines.

Tests that are not counted leave it, and those of the proxies load other ones
(``lab.runs.counted``).
The product has no switch for it: files that a start passes are covered by copies with one more
statement, on a line that was there. Nothing is left when the last process in the namespace ends.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import proxies

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lab.runs.counted import OUTSIDE, PROXIES  # noqa: E402 - the path comes first

BUILD = ROOT / "build" / "coverage"
LINES = BUILD / "lines"
FOLDERS = ("cgpu_env", "native", "shim", "node", "hook", "server", "cli")
MAIN = 'if __name__ == "__main__":'
# Started by path without site-packages; everything else reads the tree's .pth file.
BY_PATH = ("node/cgpu_node/bootstrap.py", "node/cgpu_node/facts/probe.py")


def _statement() -> str:
    """What a process runs first."""
    spec = find_spec("coverage.tracer")
    assert spec is not None, "pip install '.[test]'"
    folders = tuple(f"{ROOT}/{folder}/" for folder in FOLDERS)
    source = Path(__file__).with_name("tracer.py")
    given = f"{spec.origin!r}, {folders!r}, {str(LINES)!r}"
    return f"exec(open({str(source)!r}).read() + {f'trace({given})'!r}, {{'__name__': 'tracer'}})"


def _texts() -> dict[Path, str]:
    """The files to cover, with their covers' text."""
    statement = _statement()
    covers = {}
    for name in BY_PATH:
        text = (ROOT / name).read_text()
        assert text.count(MAIN) == 1
        covers[ROOT / name] = text.replace(MAIN, f"{MAIN[:-1]} and {statement} is None:")
    for path in Path(sys.prefix).glob("lib/python*/site-packages/__editable__.cgpu-*.pth"):
        covers[path] = f"{path.read_text()}\nimport sys; {statement}\n"
    return covers


def _covers() -> dict[Path, Path]:
    shutil.rmtree(LINES, ignore_errors=True)
    LINES.mkdir(parents=True)
    LINES.chmod(0o1777)  # some processes are another user's
    covers = {}
    for number, (path, text) in enumerate(_texts().items()):
        covers[path] = BUILD / f"{number}-{path.name}"
        covers[path].write_text(text)
    return covers


def _forget_c() -> None:
    for counts in (ROOT / "tests/c/_build/plain").rglob("*.gcda"):
        counts.unlink()


def command(words: list[str]) -> list[str]:
    """``words`` in a namespace that counts; what was counted before is removed."""
    _forget_c()
    proxies.build()
    os.environ[OUTSIDE] = f"/proc/{os.getppid()}/ns/mnt"
    os.environ[PROXIES] = str(proxies.BUILD)
    mounts = [f"mount --bind '{cover}' '{path}'" for path, cover in _covers().items()]
    return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *words]
