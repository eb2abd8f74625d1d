"""Engines and images, started and made once for the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import images
import pytest
from enclosure import Enclosure
from engines import Bundle, Containerd, Docker, Podman
from packages import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
def docker(enclosure: Enclosure, small_root: Path) -> Iterator[Docker]:
    engine = Docker(enclosure, runtimes={})
    engine.load("small", small_root)
    yield engine
    engine.stop()


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


@pytest.fixture
def bundle(enclosure: Enclosure) -> Iterator[Callable[[Path], Bundle]]:
    made: list[Bundle] = []

    def make(root: Path) -> Bundle:
        made.append(Bundle(enclosure, root))
        return made[-1]

    yield make
    for each in made:
        each.remove()
