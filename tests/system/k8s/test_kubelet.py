"""Pods on a real kubelet 1.20.2 with containerd, cgpu and simulated GPUs, placed by a scheduler."""

from __future__ import annotations

import pytest

from lab.kubernetes.kubectl import CORE, MEM, Kubectl, asking, decided

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TABLE = """\
NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
gpu-a  unknown    2/15                   0/15                   2/30
"""


def test_k8s_2_the_documents_job_has_its_part_of_a_gpu(kubectl: Kubectl) -> None:
    """K8S-7: ``kubectl inspect cgpu`` shows it."""
    kubectl.create(asking("cuda-sample", {MEM: 2, CORE: 30}))
    [pod] = kubectl.running("cuda-sample")
    assert list(kubectl.seen(pod).values()) == [2154]
    assert kubectl.seen(pod) == decided(pod)
    [share] = kubectl.node.shares()
    assert (share["weight"], share["policy"]) == (6, 3)
    assert kubectl.inspect().startswith(TABLE)
