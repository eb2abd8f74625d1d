"""Engines, images and simulated nodes, started and made once for the run."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from lab.containers import contained, images
from lab.containers.enclosure import Enclosure
from lab.containers.engines import Bundle, Containerd, Docker, Overlay, Podman
from lab.machine.node import CRUN, T4, Node
from lab.runs.packages import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab.containers.engines import Volume

OverlayT = TypeVar("OverlayT", bound=Overlay)


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    assert os.geteuid() == 0, "system tests start container engines: run them as root"
    ensure_packages()


@pytest.fixture(scope="session")
def enclosure() -> Iterator[Enclosure]:
    made = Enclosure()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def small_root() -> Path:
    return images.small()


@pytest.fixture(scope="session")
def debian_root() -> Path:
    return images.debian()


@pytest.fixture(scope="session")
def guests() -> list[Volume]:
    return contained.volumes()


@pytest.fixture(scope="session")
def node(enclosure: Enclosure) -> Node:
    """One T4: the machine of the main cases."""
    return Node(enclosure.base / "one", T4)


@pytest.fixture(scope="session")
def four_gpus(enclosure: Enclosure) -> Node:
    return Node(enclosure.base / "four", T4, T4, "Tesla V100-SXM2-16GB:16160", T4)


@pytest.fixture(scope="session")
def full_disk(enclosure: Enclosure) -> Node:
    """The state directory is on a file system without space."""
    state = _tmpfs(enclosure, enclosure.base / "full", "size=64k,mode=700")
    enclosure.run("sh", "-c", f"cat /dev/zero > {state}/filler", check=False)
    return Node(enclosure.base / "on-full", T4, state=state)


@pytest.fixture(scope="session")
def read_only_disk(enclosure: Enclosure) -> Node:
    """The state directory is on a file system that nobody can write."""
    state = _tmpfs(enclosure, enclosure.base / "read-only", "ro,mode=700")
    return Node(enclosure.base / "on-read-only", T4, state=state)


def _tmpfs(enclosure: Enclosure, folder: Path, options: str) -> Path:
    folder.mkdir()
    enclosure.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    return folder


@pytest.fixture(scope="session")
def docker(
    enclosure: Enclosure,
    small_root: Path,
    node: Node,
    four_gpus: Node,
    full_disk: Node,
    read_only_disk: Node,
) -> Iterator[Docker]:
    runtimes = {
        "cgpu": node.daemon_entry(),
        "cgpu-crun": node.daemon_entry(CRUN),
        "cgpu-four": four_gpus.daemon_entry(),
        "cgpu-full": full_disk.daemon_entry(),
        "cgpu-read-only": read_only_disk.daemon_entry(),
    }
    engine = Docker(enclosure, runtimes)
    engine.load("small", small_root)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def debian(docker: Docker, debian_root: Path) -> str:
    docker.load("debian", debian_root)
    return "debian"


@pytest.fixture
def started(docker: Docker) -> Iterator[Callable[..., str]]:
    """``docker run --detach``, removed when the test ends."""
    ids: list[str] = []

    def start(*arguments: str, **keywords: object) -> str:
        ids.append(docker.start(*arguments, **keywords))  # type: ignore[arg-type]
        return ids[-1]

    yield start
    if ids:
        docker.docker("rm", "--force", *ids)


@pytest.fixture(scope="session")
def containerd(enclosure: Enclosure) -> Iterator[Containerd]:
    engine = Containerd(enclosure)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def podman(enclosure: Enclosure, small_root: Path) -> Podman:
    hooks = enclosure.base / "hooks.d"
    hooks.mkdir()
    engine = Podman(enclosure, hooks)
    engine.load("small", small_root)
    return engine


@pytest.fixture(scope="session")
def podman_debian(podman: Podman, debian_root: Path) -> str:
    podman.load("debian", debian_root)
    return "debian"


@pytest.fixture
def bundle(enclosure: Enclosure) -> Iterator[Callable[[Path], Bundle]]:
    with _made(enclosure, Bundle) as make:
        yield make


@pytest.fixture
def overlay(enclosure: Enclosure) -> Iterator[Callable[[Path], Overlay]]:
    with _made(enclosure, Overlay) as make:
        yield make


@contextmanager
def _made(enclosure: Enclosure, kind: type[OverlayT]) -> Iterator[Callable[[Path], OverlayT]]:
    made: list[OverlayT] = []

    def make(root: Path) -> OverlayT:
        made.append(kind(enclosure, root))
        return made[-1]

    yield make
    for each in made:
        each.remove()


@pytest.fixture(scope="session")
def t4_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver folder with one T4."""
    return Node(tmp_path_factory.mktemp("machine"), T4).driver
