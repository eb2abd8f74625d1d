"""The files of a container that the low-level runtime, runc or crun, keeps."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

_LARGEST_FILE = 1 << 22


def bundle_of(runtime_dir: str | None) -> str:
    """Return the bundle from which the runtime has the container's configuration."""
    if runtime_dir is None:
        return ""
    state = to_table(read_json(f"{runtime_dir}/state.json"))
    labels = to_table(state.get("config")).get("labels") or []
    for each in labels:
        key, _, value = str(each).partition("=")
        if key == "bundle":
            return value
    return str(to_table(read_json(f"{runtime_dir}/status")).get("bundle", ""))


def first_process_of(runtime_dir: str) -> tuple[int, int] | None:
    """Return the container's first process and its start time; None if it is not known."""
    for file, pid, started in (
        ("state.json", "init_process_pid", "init_process_start"),  # runc
        ("status", "pid", "process-start-time"),  # crun
    ):
        found = to_table(read_json(f"{runtime_dir}/{file}"))
        if isinstance(found.get(pid), int) and isinstance(found.get(started), int):
            return found[pid], found[started]
    return None


def read_json(path: str) -> object:
    """Return the content of a JSON file of the host; None if it is missing or too large.

    The user who starts a container chooses what is mounted, so the path may lead to something else.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return json.loads(file.read(_LARGEST_FILE))
    except (OSError, ValueError, RecursionError):
        return None


def to_table(value: object) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object; otherwise an empty one."""
    return value if isinstance(value, dict) else {}
