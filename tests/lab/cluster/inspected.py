"""``kubectl inspect cgpu`` as a process, and an API server with a node and its pods."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.kubernetes.manifests import V100, bound, decided, gpus, node, pod, published_node
from lab.kubernetes.store import KINDS, Key

if TYPE_CHECKING:
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

POLICIES = ("scheduling.alibabacloud.com", "resourcepolicies")
A = gpus("a", V100, V100)
A0, A1 = A
TABLE = """\
NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
gpu-a  127.0.0.1  5/15                   8/15                   2                   15/30
other  127.0.0.1  4/15                   0/0                                        4/15
------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
19/45 (42%)  
"""  # noqa: W291 (as published)
OBJECTS = [
    node("gpu-a", A),
    published_node("other", 15, 1),
    published_node("cpu", 0, 0),
    decided(pod("five", 5), "gpu-a", A, A0),
    decided(pod("eight", 8, namespace="ml"), "gpu-a", A, A1),
    bound(pod("lost", 2), "gpu-a"),
    bound(pod("four", 4), "other", ALIYUN_COM_GPU_MEM_IDX="0"),
    pod("waits", 11),
    {**decided(pod("over", 7), "gpu-a", A, A0), "status": {"phase": "Succeeded"}},
]


class Lab(NamedTuple):
    """An API server, a kubeconfig of it, and the program."""

    server: FakeServer
    kubeconfig: Path
    program: tuple[Path | str, ...] = ("-m", "cgpu_k8s.inspect.main")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *self.program, *words]
        environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def shown(self, *words: str) -> str:
        done = self.run(*words, "--kubeconfig", str(self.kubeconfig))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def refused(self, *words: str) -> str:
        done = self.run(*words, "--kubeconfig", str(self.kubeconfig))
        assert (done.returncode, done.stdout) == (1, ""), done
        assert "Traceback" not in done.stderr
        return done.stderr.removeprefix("kubectl-inspect-cgpu: ")


def put(server: FakeServer, *objects: Any) -> None:
    """Let the server have objects as they are, bound pods among them."""
    for each in objects:
        plural = "pods" if "spec" in each else "events" if "type" in each else "nodes"
        kind = KINDS[POLICIES if "units" in each.get("spec", ()) else ("", plural)]
        key = Key(kind, each["metadata"].get("namespace", ""), each["metadata"]["name"])
        server.change(lambda store, key=key, each=each: store.items.update({key: each}))
