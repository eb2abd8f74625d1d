"""A cluster with a node whose GPUs are claimed, started once for each file of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.cluster.dra_node import Claiming, claiming_cluster
from lab.kubernetes.programs import Release, only_with_a_newer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

collect_ignore = only_with_a_newer(
    "test_bare_nodes.py",
    "test_claims.py",
    "test_claim_devices.py",
    "test_claim_restarts.py",
    "test_converted_pods.py",
    "test_driver_pods.py",
)


@pytest.fixture(scope="module", name="claiming_cluster")
def _claiming_cluster(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> Iterator[Claiming]:
    """A control plane, the cluster's own scheduler, and a node with two V100."""
    folder, more = tmp_path_factory.mktemp("plane"), ("device-taint-eviction-controller",)
    with claiming_cluster(folder, release, debian_root, more=more) as kubectl:
        kubectl.install()
        kubectl.node.start_driver()
        yield kubectl


@pytest.fixture(name="kubectl")
def _kubectl(claiming_cluster: Claiming) -> Iterator[Claiming]:
    """kubectl, when the node offers its GPUs; pods and claims are deleted afterwards."""
    kubectl = claiming_cluster
    kubectl.await_devices()
    yield kubectl
    kubectl.clear()
    kubectl("delete", "resourceclaims", "--all", "--wait=true", "--timeout=60s")
