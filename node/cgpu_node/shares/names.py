"""Names of containers, as their engines gave them.

cgpu does not store them: they are read from the engine's files at each request.
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_node.shares.runc_state import bundle_of, read_json, to_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cgpu_node.shares.record import Record

_REMEMBERED_SECONDS = 5
# Annotations of containerd and of CRI-O: namespace, pod and container.
_CRI = (
    (
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.container-name",
    ),
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"),
)


def name_of(record: Record) -> str:
    """The container's name, a session's program; nothing if the engine gave none.

    A container that is renamed goes by its new name a few seconds later.
    """
    if record.kind == "session":
        return os.path.basename(record.command[0]) if record.command else ""
    return _find_name(
        record.id, record.owner.runtime_dir, int(time.monotonic() / _REMEMBERED_SECONDS)
    )


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """Their names, by id."""
    return {record.id: name_of(record) for record in records}


@functools.lru_cache(maxsize=1024)
def _find_name(id_: str, runtime_dir: str | None, _: int) -> str:
    bundle = bundle_of(runtime_dir)
    config = to_table(read_json(f"{bundle}/config.json"))
    found = _Found(id_, bundle, config, to_table(config.get("annotations")))
    return next(filter(None, (ask(found) for ask in _ENGINES)), "")


class _Found(NamedTuple):
    """A container, as the low-level runtime knows it."""

    id: str
    bundle: str
    config: dict[str, Any]
    annotations: dict[str, Any]


def _find_cri_name(container: _Found) -> str:
    """Kubernetes, by containerd or CRI-O: namespace/pod/container."""
    for names in _CRI:
        parts = [container.annotations.get(each) for each in names]
        if parts[-1]:
            return "/".join(str(part) for part in parts if part)
    return ""


def _find_nerdctl_name(container: _Found) -> str:
    return str(container.annotations.get("nerdctl/name", ""))


def _find_docker_name(container: _Found) -> str:
    """Beside the file that docker mounts as /etc/hostname is what it knows of the container."""
    for mount in container.config.get("mounts") or []:
        if to_table(mount).get("destination") == "/etc/hostname":
            folder = os.path.dirname(str(mount.get("source", "")))
            known = to_table(read_json(f"{folder}/config.v2.json"))
            return str(known.get("Name", "")).lstrip("/")
    return ""


def _find_podman_name(container: _Found) -> str:
    """Podman's bundle is in its storage, STORAGE/ID/userdata; a list of all is in STORAGE."""
    storage = os.path.dirname(os.path.dirname(container.bundle))
    for file in ("containers.json", "volatile-containers.json"):
        listed = read_json(f"{storage}/{file}")
        for entry in map(to_table, listed if isinstance(listed, list) else []):
            names = entry.get("names")
            if entry.get("id") == container.id and isinstance(names, list) and names:
                return str(names[0])
    return ""


def _find_host_name(container: _Found) -> str:
    return str(container.config.get("hostname", ""))


_ENGINES: tuple[Callable[[_Found], str], ...] = (
    _find_cri_name,
    _find_nerdctl_name,
    _find_docker_name,
    _find_podman_name,
    _find_host_name,
)
