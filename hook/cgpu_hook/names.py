"""What people call a container: the name that its engine gave it.

Nothing of ours keeps it: it is looked up where the engine wrote it down, when somebody asks.
"""

from __future__ import annotations

import functools
import json
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_hook.record import Record

_LARGEST_FILE = 1 << 22
_CRI = ("sandbox-namespace", "sandbox-name", "container-name")


@functools.lru_cache(maxsize=1024)
def name_of(record: Record) -> str:
    """The container's name, a session's program; nothing where the engine gave none."""
    if record.kind == "session":
        return os.path.basename(record.command[0]) if record.command else ""
    config = _read(f"{_bundle(record.owner.runtime_dir)}/config.json")
    annotations = _table(config.get("annotations"))
    return next(filter(None, (ask(config, annotations) for ask in _ENGINES)), "")


def _cri(_: dict[str, Any], annotations: dict[str, Any]) -> str:
    """Kubernetes, by containerd or CRI-O: namespace/pod/container."""
    for prefix in ("io.kubernetes.cri.", "io.kubernetes."):
        parts = [annotations.get(prefix + each) for each in _CRI]
        if parts[-1]:
            return "/".join(str(part) for part in parts if part)
    return str(annotations.get("io.kubernetes.container.name", ""))


def _nerdctl(_: dict[str, Any], annotations: dict[str, Any]) -> str:
    return str(annotations.get("nerdctl/name", ""))


def _docker(config: dict[str, Any], _: dict[str, Any]) -> str:
    """Beside the file that docker mounts as /etc/hostname is what it knows of the container."""
    for mount in config.get("mounts") or []:
        if _table(mount).get("destination") == "/etc/hostname":
            folder = os.path.dirname(str(mount.get("source", "")))
            return str(_read(f"{folder}/config.v2.json").get("Name", "")).lstrip("/")
    return ""


def _hostname(config: dict[str, Any], _: dict[str, Any]) -> str:
    return str(config.get("hostname", ""))


_ENGINES: tuple[Callable[[dict[str, Any], dict[str, Any]], str], ...] = (
    _cri,
    _nerdctl,
    _docker,
    _hostname,
)


def _bundle(runtime_dir: str | None) -> str:
    """Where the low-level runtime, runc or crun, has the container's configuration from."""
    if runtime_dir is None:
        return ""
    labels = _table(_read(f"{runtime_dir}/state.json").get("config")).get("labels") or []
    for each in labels:
        key, _, value = str(each).partition("=")
        if key == "bundle":
            return value
    return str(_read(f"{runtime_dir}/status").get("bundle", ""))


def _read(path: str) -> dict[str, Any]:
    """A file of the host's with a JSON object; nothing where there is none, or one too large.

    Whoever may start containers says which file is mounted: it need not be a file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return {}
            return _table(json.loads(file.read(_LARGEST_FILE)))
    except (OSError, ValueError, RecursionError):
        return {}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
