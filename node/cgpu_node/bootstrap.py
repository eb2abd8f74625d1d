"""Start of a module of ours, run as ``python -I -S -E -X utf8 bootstrap.py MODULE ARGUMENT ...``.

``-I -S -E`` leave nothing but the standard library on the path: no directory of a user, no .pth
file, no variable. The directories of cgpu itself are added here, and only those.
"""

from __future__ import annotations

import gc
import os
import sys

_PACKAGE = os.path.dirname(os.path.realpath(__file__))
_TREE_FOLDERS = (".", "native", "shim", "node", "hook", "server", "cli")


def import_path() -> list[str]:
    """The directories that cgpu is imported from: site-packages, or the parts of a source tree."""
    parent = os.path.dirname(_PACKAGE)
    if os.path.isdir(f"{parent}/cgpu_env"):
        return [parent]
    tree = os.path.dirname(parent)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    folders = [os.path.normpath(f"{tree}/{folder}") for folder in _TREE_FOLDERS]
    return [*folders, f"{tree}/.venv/lib/{version}/site-packages"]  # for _cffi_backend


def programs() -> str:
    """The folder of the programs that engines start."""
    parent = os.path.dirname(_PACKAGE)
    beside = os.path.isdir(f"{parent}/cgpu_env")
    return f"{parent if beside else os.path.dirname(parent) + '/hook'}/cgpu_hook/_bin"


if __name__ == "__main__":
    gc.disable()  # looking for garbage takes 0.7 ms of the start, and finds none; cgpud enables it
    sys.path += import_path()
    __import__(sys.argv[1])
    STATUS = sys.modules[sys.argv[1]].main(sys.argv[2:])
    sys.stdout.flush()
    os._exit(STATUS)  # the interpreter's own end takes 2 ms and has nothing left to do
