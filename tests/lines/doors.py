"""Runs pytest in a mount namespace in which our Python notes the lines that it runs.

Tests that are not counted leave it, and those of the proxies load other ones
(``lab.runs.counted``).
The product has no switch for it: Python finds other files where it keeps what it has compiled.
Nothing is left when the last process in the namespace ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.util import cache_from_source
from pathlib import Path

import proxies
from marks import HEADER, Marks

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from lab.runs.counted import OUTSIDE, PROXIES  # noqa: E402 - the path comes first

BUILD = ROOT / "build" / "coverage"
COMPILED = BUILD / "python"
NOTES = BUILD / "notes"  # a byte for each line
LINES = BUILD / "lines.json"  # which line that is
FOLDERS = ("cgpu_env", "native", "shim", "node", "hook", "server", "cli", "k8s")
# Started by their paths: Python compiles them each time.
BY_PATH = (ROOT / "node/cgpu_node/facts/probe.py", ROOT / "cli/cgpu_cli/demo/tenant.py")


def _covers() -> dict[Path, Path]:
    """What to cover, with its cover: the folders of compiled files, and programs."""
    shutil.rmtree(COMPILED, ignore_errors=True)
    marks, covers = Marks(ROOT, NOTES), {}
    for source in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        cached = Path(cache_from_source(str(source)))
        cover = COMPILED / cached.parent.relative_to(ROOT)
        cover.mkdir(parents=True, exist_ok=True)
        cached.parent.mkdir(exist_ok=True)
        covers[cached.parent] = cover
        (cover / cached.name).write_bytes(marks.compiled(source))
        if source in BY_PATH:
            covers[source] = COMPILED / source.name
            covers[source].write_text(_program(cover / cached.name))
    LINES.write_text(json.dumps(marks.lines))
    NOTES.unlink(missing_ok=True)  # programs of an earlier run may have it still
    NOTES.write_bytes(bytes(len(marks.lines)))
    NOTES.chmod(0o666)  # some processes are another user's
    return covers


def _program(compiled: Path) -> str:
    content = f"open({str(compiled)!r}, 'rb').read()[{len(HEADER)}:]"
    return f"import marshal\nexec(marshal.loads({content}))\n"


def _forget_c() -> None:
    for counts in (ROOT / "tests/c/_build/plain").rglob("*.gcda"):
        counts.unlink()


def command(words: list[str]) -> list[str]:
    """``words`` in a namespace that counts; what was counted before is removed."""
    umask = os.umask(0o022)  # some tests run these files as another user
    _forget_c()
    proxies.build()
    os.environ[OUTSIDE] = f"/proc/{os.getppid()}/ns/mnt"
    os.environ[PROXIES] = str(proxies.BUILD)
    mounts = [f"mount --bind '{cover}' '{path}'" for path, cover in _covers().items()]
    os.umask(umask)
    return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *words]
