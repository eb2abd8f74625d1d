"""API servers: the fake one for each test, the real one for each run of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.fake_server import FakeServer, fake_server
from lab.worlds.contract import Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture(params=["fake", "plane"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
