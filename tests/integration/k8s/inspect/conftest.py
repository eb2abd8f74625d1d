"""The program that shows who has what, started once for each file of tests and each form of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.cluster.inspected import OBJECTS, Lab, put
from lab.kubernetes.fake_server import fake_server
from lab.products import distribution

if TYPE_CHECKING:
    from collections.abc import Iterator

LIKE_MACOS = Path(__file__).resolve().parents[3] / "programs" / "like_macos.py"


@pytest.fixture(scope="module", params=["installed", "file"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The program as it is installed on a node, and as the one file for a Mac."""
    folder = tmp_path_factory.mktemp("kube")
    with fake_server() as server:
        put(server, *OBJECTS)
        lab = Lab(server, server.kubeconfig(folder / "config"))
        if request.param == "file":
            lab = lab._replace(program=("-I", "-S", LIKE_MACOS, distribution.plugin(folder)))
        yield lab
