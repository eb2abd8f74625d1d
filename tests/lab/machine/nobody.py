"""Commands of an ordinary user."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

NOBODY = 65534


def become_nobody(command: list[str], node_state: Path | None = None) -> str:
    """A script: become nobody, where nobody may reach the interpreter and this source tree.

    Root's state directory is ``node_state`` then, or none.
    """
    needed = [Path(sys.base_prefix), Path(__file__).resolve().parents[3], Path(sys.prefix)]
    # Folder that is closed to others -> what is needed below it; one in the other is there already.
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(needed):
        shut = [p for p in reversed(path.parents) if not p.stat().st_mode & 1]
        if shut and not any(other in path.parents for other in needed):
            closed.setdefault(shut[0], []).append(path)
    lines = ["set -e"]
    for number, (folder, paths) in enumerate(closed.items()):
        aside = {path: f"/mnt/{number}.{i}" for i, path in enumerate(paths)}
        lines.append("mountpoint -q /mnt || mount -t tmpfs -o mode=755 tmpfs /mnt")
        lines += [f"mkdir {to} && mount --bind {path} {to}" for path, to in aside.items()]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {folder}")
        lines += [f"mkdir -p {path} && mount --bind {to} {path}" for path, to in aside.items()]
    lines.append("mount -t tmpfs -o mode=755 tmpfs /run")  # not this machine's own server
    if node_state is not None:
        lines.append(f"mkdir /run/cgpu && mount --bind {node_state} /run/cgpu")
    user = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
    return "\n".join([*lines, f"{user} {shlex.join(command)}"])
