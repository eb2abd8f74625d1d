"""A cluster with a real node, started once for each file of tests that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.kubernetes import scheduler
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.kubectl import Kubectl
from lab.kubernetes.kubelet import kubelet_node
from lab.kubernetes.programs import Release, each_release, only_with_a_newer  # noqa: F401 (a fixture)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

collect_ignore = only_with_a_newer("test_policies.py", "test_newer_pods.py", "test_helm.py")


@pytest.fixture(scope="module", name="core_mem_cluster")
def _core_mem_cluster(
    tmp_path_factory: pytest.TempPathFactory, debian_root: Path, release: Release
) -> Iterator[Kubectl]:
    """A control plane, a scheduler with the extender, and a node with two V100."""
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        scheduler.install(plane)
        with kubelet_node(plane, debian_root, "core_mem") as node, scheduler.scheduling(plane):
            yield Kubectl(node)


@pytest.fixture
def kubectl(core_mem_cluster: Kubectl) -> Iterator[Kubectl]:
    """kubectl, when the node offers its GPUs; the test's pods are deleted afterwards."""
    kubectl = core_mem_cluster
    kubectl.await_gpus()
    yield kubectl
    kubectl.clear()
