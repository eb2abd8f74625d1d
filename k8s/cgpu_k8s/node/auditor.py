"""Compares the shares of this node's GPUs with its pods, and lowers caps that are too high."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cgpu_k8s.node.audit import ContainerMismatch, audit_containers
from cgpu_k8s.node.node_resources import read_known_gpus
from cgpu_k8s.node.non_pod_usage import NonPodUsage, sum_non_pod_usage
from cgpu_node.settings import kubernetes
from cgpu_node.settings.kubernetes import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cgpu_k8s.node.pods import NodePod
    from cgpu_k8s.node.shares import Shares
    from cgpu_k8s.objects.fields import Json


class ShareAuditor:
    """Audits the shares of the node's GPUs.

    Args:
        shares: the shares on the node.
        setting: the path of ``kubernetes.json``.

    Attributes:
        held: memory and weights that others than pods hold, by the GPU's UUID.
        findings: containers that do not have what their pods ask for.
    """

    def __init__(self, shares: Shares, setting: Path) -> None:
        self._shares, self._setting = shares, setting
        self.held: dict[str, NonPodUsage] = {}
        self.findings: tuple[ContainerMismatch, ...] = ()
        # The ids of the containers with shares at the last audit.
        self._before: frozenset[str] = frozenset()
        self._suspected: frozenset[ContainerMismatch] = frozenset()

    async def audit(self, node: Json, pods: Mapping[str, NodePod]) -> None:
        """Audit the shares, and lower the caps of containers that have more than they ask for.

        Raises:
            CgpuError, OSError: the shares cannot be read, or a cap cannot be set.
        """
        living = self._shares.list_living()
        booked = {uid for uid, pod in pods.items() if pod.shares}
        self.held = sum_non_pod_usage(living, booked, self._before)
        self._before = frozenset(each.id for each in living)
        setting = kubernetes.read_setting(str(self._setting))
        gpus = {gpu.uuid: gpu for gpu in read_known_gpus(node)}
        if setting is None:
            self.findings = ()
            return
        limited = setting.mode not in UNLIMITED
        found = audit_containers(living, pods, gpus, setting.pass_through, limited=limited)
        # The pods' statuses lag behind, so a mismatch without caps counts only if found twice.
        self.findings = tuple(each for each in found if each.caps or each in self._suspected)
        self._suspected = frozenset(found)
        for each in self.findings:
            if each.caps:
                await asyncio.to_thread(self._shares.set_caps, each.container, each.caps)
