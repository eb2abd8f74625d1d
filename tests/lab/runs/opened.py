"""Which files a start of ours opens: a count that does not depend on how busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FLAGS = ("-I", "-S", "-E", "-X", "utf8")
_MARK = "opens "
_PROGRAM = """
import os, sys
sys.addaudithook(
    lambda event, given: event == "open" and os.write(2, f"opens {given[0]}\\n".encode())
)
path = sys.argv.pop(1)
sys.argv[0] = path
with open(path, "rb") as file:
    exec(compile(file.read(), path, "exec"), {"__name__": "__main__", "__file__": path})
"""


def opened(
    bootstrap: str | Path, *arguments: str | Path
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Start ``bootstrap`` as the launcher does; return how it ended, and the paths that it opens.

    A path stands there once for each time, whether or not there is such a file.
    """
    command = [sys.executable, *_FLAGS, "-c", _PROGRAM, bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    lines = done.stderr.splitlines()
    return done, [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
