"""The container engines that cgpu knows: one row each. Recipe: "Add an engine" in CONTRIBUTING.md.

From a row, ``cgpu install`` knows which configuration to change, the hook how to find a container's
pod, commands how to find a container's name, and the agent how to ask a Kubernetes node's engine.
"""

from __future__ import annotations

import os

from cgpu_env.record import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class KnownContainer(NamedTuple):
    """A container, as the low-level runtime knows it."""

    id: str
    bundle: str
    config: dict[str, Any]
    annotations: dict[str, Any]


class EngineConfig(NamedTuple):
    """The file that names ``cgpu-runtime`` to an engine.

    Attributes:
        path: the file's path.
        format: json or toml.
        keys: the keys that lead to the entry, from the outermost.
        program: the key of the program's path in the entry; empty: the entry is a list with that
            path.
        shipped: the file that is written if there is none, with the whole entry; empty: the entry
            has nothing but the program's path.
        replaces: whether an entry that names others' programs is replaced, not refused.
    """

    path: str
    format: str
    keys: tuple[str, ...]
    program: tuple[str, ...]
    shipped: str = ""
    replaces: bool = False


class ContainerEngine(NamedTuple):
    """A container engine.

    Attributes:
        name: its name on the command line of ``cgpu install``.
        programs: a machine with one of these programs has the engine.
        paths: so does a machine with one of these paths.
        config: the file that names our runtime to it; None: it uses another engine's, or none.
        commands: commands that make it read that file.
        scope: what it puts before a container's id in the name of a systemd scope.
        pod_keys: annotations of a pod's container: its kind, the pod's UID, namespace and name, and
            the container's name.
        name_keys: annotations that make up a container's name.
        find_name: finds a container's name in the engine's files.
        version: the name by which a kubelet reports the engine.
        sockets: where it listens for the kubelet; if there are several, that of the whole
            distribution first.
    """

    name: str
    programs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    config: EngineConfig | None = None
    commands: tuple[str, ...] = ()
    scope: str = ""
    pod_keys: tuple[str, ...] = ()
    name_keys: tuple[str, ...] = ()
    find_name: Callable[[KnownContainer], str] | None = None
    version: str = ""
    sockets: tuple[str, ...] = ()


def _find_docker_name(container: KnownContainer) -> str:
    """Return docker's name of a container, from a file beside the one mounted as /etc/hostname."""
    from cgpu_node.facts.runc_state import read_json, to_table

    for mount in container.config.get("mounts") or []:
        if to_table(mount).get("destination") == "/etc/hostname":
            folder = os.path.dirname(str(mount.get("source", "")))
            known = to_table(read_json(f"{folder}/config.v2.json"))
            return str(known.get("Name", "")).lstrip("/")
    return ""


def _find_podman_name(container: KnownContainer) -> str:
    """Return podman's name of a container by its bundle, which is STORAGE/ID/userdata.

    STORAGE has a list of all containers.
    """
    from cgpu_node.facts.runc_state import read_json, to_table

    storage = os.path.dirname(os.path.dirname(container.bundle))
    for file in ("containers.json", "volatile-containers.json"):
        listed = read_json(f"{storage}/{file}")
        for entry in map(to_table, listed if isinstance(listed, list) else []):
            names = entry.get("names")
            if entry.get("id") == container.id and isinstance(names, list) and names:
                return str(names[0])
    return ""


_CONTAINERD_KEYS = (
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri.sandbox-uid",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.container-name",
)
CRIO_KEYS = (
    "io.kubernetes.cri-o.ContainerType",
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.container.name",
)

ENGINES: tuple[ContainerEngine, ...] = (
    ContainerEngine(
        "docker",
        programs=("dockerd",),
        paths=("/etc/docker/daemon.json",),
        config=EngineConfig("/etc/docker/daemon.json", "json", ("runtimes", "cgpu"), ("path",)),
        commands=("systemctl try-reload-or-restart docker",),
        scope="docker",
        find_name=_find_docker_name,
    ),
    ContainerEngine(
        "containerd",
        paths=("/etc/containerd/config.toml",),
        config=EngineConfig(  # its keys depend on the file: cgpu_install/containerd.py
            "/etc/containerd/config.toml", "toml", (), ("options", "BinaryName")
        ),
        commands=("systemctl try-restart containerd",),
        scope="cri-containerd",
        pod_keys=_CONTAINERD_KEYS,
        name_keys=_CONTAINERD_KEYS[2:],
        version="containerd",
        sockets=(
            "/run/k3s/containerd/containerd.sock",
            "/run/k0s/containerd.sock",
            "/run/containerd/containerd.sock",
        ),
    ),
    ContainerEngine(
        "crio",
        programs=("crio",),
        paths=("/etc/crio",),
        config=EngineConfig(
            "/etc/crio/crio.conf.d/99-cgpu.conf",
            "toml",
            ("crio", "runtime", "runtimes", "cgpu"),
            ("runtime_path",),
            "crio-99-cgpu.conf",
        ),
        commands=("systemctl try-restart crio",),
        scope="crio",
        pod_keys=CRIO_KEYS,
        name_keys=CRIO_KEYS[2:],
        version="cri-o",
        sockets=("/run/crio/crio.sock",),
    ),
    ContainerEngine(
        "podman",
        programs=("podman",),
        config=EngineConfig(
            "/etc/containers/containers.conf.d/cgpu.conf",
            "toml",
            ("engine", "runtimes", "cgpu"),
            (),
            "podman-containers.conf",
        ),
        scope="libpod",
        find_name=_find_podman_name,
    ),
    ContainerEngine("nerdctl", scope="nerdctl", name_keys=("nerdctl/name",)),
)


def config_of(name: str) -> EngineConfig:
    """Return the file that names our runtime to the engine ``name``."""
    return next(row.config for row in ENGINES if row.config and row.name == name)
