"""Pods' containers as containerd and CRI-O describe them to a runtime, on a node with decisions."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from cgpu_node.allocation_annotation import (
    ANNOTATION,
    AllocationAnnotation,
    Grant,
    format_annotation,
)
from cgpu_node.settings import kubernetes
from cgpu_node.settings.config import KUBERNETES
from cgpu_node.settings.kubernetes import CGPU, Kubernetes
from lab.worlds.hook import HOOK, RUNTIME, World

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NODE = "gpu-a"
UID = "8f3c1f0e-6d2b-4c55-9a70-2f3c1d9b7a11"
GPUS = [f"GPU-{i}0000000-0000-4000-8000-000000000000" for i in range(2)]


def decided(
    containers: Mapping[str, Mapping[str, Grant]], pod: str = UID, node: str = NODE
) -> dict[str, str]:
    """The annotations of a pod with this decision."""
    return {ANNOTATION: format_annotation(AllocationAnnotation(pod, node, containers))}


def containerd(
    own: Mapping[str, str], uid: str = UID, container: str = "main", namespace: str = "default"
) -> dict[str, str]:
    """What containerd gives a container of a pod that has annotations of its own."""
    return {
        **own,
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": container,
        "io.kubernetes.cri.sandbox-id": "5" * 64,
        "io.kubernetes.cri.sandbox-name": "a-pod",
        "io.kubernetes.cri.sandbox-namespace": namespace,
        "io.kubernetes.cri.sandbox-uid": uid,
    }


def crio(
    own: Mapping[str, str], uid: str = UID, container: str = "main", namespace: str = "default"
) -> dict[str, str]:
    """The same of CRI-O."""
    return {
        **own,
        "io.container.manager": "cri-o",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.container.name": container,
        "io.kubernetes.pod.name": "a-pod",
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.uid": uid,
    }


class PodWorld(World):
    """A world whose /etc says that pods follow decisions."""

    def __init__(self, folder: Path, mode: str = CGPU, *pass_through: str) -> None:
        super().__init__(folder)
        self.etc = folder / "etc"
        self.switch(mode, *pass_through)

    def switch(self, mode: str, *pass_through: str) -> None:
        """What the node's agent does when its label has changed."""
        setting = Kubernetes(NODE, mode, pass_through)
        kubernetes.write_setting(str(self.etc / "cgpu" / KUBERNETES), setting)

    def create(
        self,
        annotations: Mapping[str, str],
        env: list[str] | None = None,
        *,
        name: str = "c1",
        launcher: Path = RUNTIME,
        lowlevel: Path | None = None,
        **extra: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Create a container with these annotations, as an engine does.

        It goes on living if there is a folder with its name in ``runs``.
        """
        self.write_config(env or [], annotations={**annotations}, **extra)
        options = [*self.options(lowlevel or self.stub()), "--root", str(self.runs)]
        return self._run(launcher, *options, "create", name)

    def prestart(
        self, annotations: Mapping[str, str], env: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Show the prestart hook a container that another runtime has created."""
        self.write_config(env or [], annotations={**annotations})
        state = {"id": "c1", "pid": os.getpid(), "bundle": str(self.bundle)}
        folders = ["--state-dir", str(self.state), "--driver-dir", str(self.driver)]
        return self._run(HOOK, "prestart", *folders, data=json.dumps(state))

    def _run(self, program: Path, *words: str, data: str = "") -> subprocess.CompletedProcess[str]:
        script = f'mount --bind {self.etc} /etc && exec "$@"'
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", str(program), *words],
            cwd=self.bundle, input=data, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """The container's variables as they are now."""
        entries = self.edited()["process"]["env"]
        return dict(entry.partition("=")[::2] for entry in entries)
