"""API servers: the fake one for each test, the real one for each run of tests."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import pytest

from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.fake_server import FakeServer, fake_server
from lab.kubernetes.programs import Release, each_release, releases  # noqa: F401 (a fixture)
from lab.worlds.contract import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def planes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Release], ControlPlane]]:
    """The one control plane of each release."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def of(release: Release) -> ControlPlane:
            return running.enter_context(control_plane(tmp_path_factory.mktemp("plane"), release))

        yield of


@pytest.fixture(scope="session")
def plane(planes: Callable[[Release], ControlPlane], release: Release) -> ControlPlane:
    return planes(release)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture(params=[None, *releases()], ids=lambda each: each.version if each else "fake")
def server(
    request: pytest.FixtureRequest, planes: Callable[[Release], ControlPlane], fake: FakeServer
) -> Server:
    return planes(request.param) if request.param else fake
