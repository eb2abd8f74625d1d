"""A real token of an agent changes what the agent offers of its own node, and nothing else.

K8S-16. Before 1.28, while the guard answers.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.apiserver.client import MERGE, STRATEGIC, open_client
from cgpu_k8s.apiserver.errors import ForbiddenError, InvalidError
from cgpu_k8s.apiserver.resources import NODES
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart, scheduler
from lab.kubernetes.control_plane import ADMIN, AGENT, ControlPlane, control_plane
from lab.kubernetes.objects import node
from lab.worlds.guard import guarding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.kubernetes.programs import Release

pytestmark = pytest.mark.system

Json = dict[str, Any]
APPLY = "application/apply-patch+yaml"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
KINDS = (MERGE, STRATEGIC, APPLY)
MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
OFFERS: list[tuple[str, Json]] = [
    ("", {"metadata": {"labels": {"aliyun.accelerator/nvidia_name": "V100"}}}),
    ("", {"metadata": {"annotations": {"cgpu/gpus": "{}"}}}),
    ("status", {"status": {"capacity": {MEM: "30", CORE: "200"}, "allocatable": {MEM: "30"}}}),
]
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "gpu-a", "uid": "u-1"}
OTHERS: dict[str, tuple[str, Json]] = {
    "cordon": ("", {"spec": {"unschedulable": True}}),
    "taint": ("", {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}}),
    "label": ("", {"metadata": {"labels": {"ack.node.gpu.schedule": "share"}}}),
    "label by status": ("status", {"metadata": {"labels": {"node-role": "x"}}}),
    "annotation": ("", {"metadata": {"annotations": {"mine": "1"}}}),
    "annotation by status": ("status", {"metadata": {"annotations": {"mine": "1"}}}),
    "finalizer": ("", {"metadata": {"finalizers": ["example.com/wait"]}}),
    "owner": ("", {"metadata": {"ownerReferences": [OWNER]}}),
    "processors": ("status", {"status": {"capacity": {"cpu": "1"}}}),
    "GPUs": ("status", {"status": {"allocatable": {"aliyun.com/gpu-count": "9"}}}),
    "condition": ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    "address": ("status", {"status": {"addresses": [{"type": "InternalIP", "address": "::1"}]}}),
}
# Below the 1.5 MiB that etcd stores; an API server writes each "<" for the guard as six bytes.
LARGE = ("status", {"status": {"images": [{"names": ["<" * 1_400_000]}]}})


class Cluster:
    """Two nodes, ``gpu-a`` and ``gpu-b``, and who changes them.

    Attributes:
        token: of the agent on ``gpu-a``.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._numbers = plane, count()
        for name in ("gpu-a", "gpu-b"):
            plane.create(NODES.path(), node(name, {"team": "ml"}, cpu="4"))
        self.token = plane.agents_token("gpu-a")

    def refusal(
        self, name: str, change: tuple[str, Json], token: str, kind: str = MERGE, query: str = ""
    ) -> str:
        """Why the change of a node is refused when it is admitted; "": it is carried out."""
        part, content = change
        about = {"name": name, **content.get("metadata", {})}
        body = {"apiVersion": "v1", "kind": "Node", **content, "metadata": about}
        if kind == APPLY:  # of one manager, what it does not name any more would go
            query = f"?force=true&fieldManager=m{next(self._numbers)}"
        path = f"{NODES.path(name, part=part)}{query}"

        async def run() -> None:
            async with open_client(self._plane.cluster(AGENT, token)) as client:
                await client.patch(path, body, kind)

        try:
            asyncio.run(run())
        except (ForbiddenError, InvalidError) as error:
            why = str(error)
        else:
            return ""
        assert "denied" in why  # and not for want of a right
        return why

    def rights(self, user: str, namespace: str, token: str = "") -> set[tuple[str, str, str]]:
        """Verb, group and resource of all that a user may do to objects of a namespace or none."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
                  "spec": {"namespace": namespace}}  # fmt: skip

        async def run() -> Json:
            async with open_client(self._plane.cluster(user, token)) as client:
                return await client.post(REVIEWS, review)

        return {
            each
            for rule in asyncio.run(run())["status"]["resourceRules"]
            for each in product(rule["verbs"], rule["apiGroups"], rule["resources"])
        }

    def granted(self, namespace: str) -> set[tuple[str, str, str]]:
        """The same, as the chart's roles of the agent allow it."""
        calls = self._plane.granted("cgpu-agent")
        return {each[:3] for each in calls if each.namespace in {"", namespace}}

    def node(self, name: str) -> Json:
        """What the node is but for its version and who wrote what."""
        found: Json = self._plane.read(NODES.path(name))
        for key in ("resourceVersion", "managedFields"):
            found["metadata"].pop(key, None)
        return found


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[Cluster]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane, ExitStack() as programs:
        scheduler.install(plane)
        if not release.has_policies:
            programs.enter_context(guarding(plane))
        cluster = Cluster(plane)
        offer = OFFERS[0]
        wait_until(lambda: cluster.refusal("gpu-b", offer, cluster.token), "rules are in force", 60)
        yield cluster


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_writes_what_its_node_offers(cluster: Cluster, kind: str) -> None:
    for offer in OFFERS:
        assert cluster.refusal("gpu-a", offer, cluster.token, kind) == ""
    found = cluster.node("gpu-a")
    assert found["status"]["capacity"] == {"cpu": "4", MEM: "30", CORE: "200"}
    assert found["metadata"]["annotations"] == {"cgpu/gpus": "{}"}
    taken: Json = {"metadata": {"annotations": {"cgpu/gpus": None}}}
    assert cluster.refusal("gpu-a", ("", taken), cluster.token) == ""
    assert "annotations" not in cluster.node("gpu-a")["metadata"]


@pytest.mark.parametrize("name", OTHERS)
def test_an_agent_changes_nothing_else_of_its_node(cluster: Cluster, name: str) -> None:
    change, before = OTHERS[name], cluster.node("gpu-a")
    assert cluster.refusal("gpu-a", change, ADMIN, query="?dryRun=All") == ""
    for kind in KINDS:
        assert "an agent may change only" in cluster.refusal("gpu-a", change, cluster.token, kind)
    assert cluster.node("gpu-a") == before


def test_an_agent_changes_nothing_of_another_node(cluster: Cluster) -> None:
    before = cluster.node("gpu-b")
    for change in (*OFFERS, *OTHERS.values(), LARGE):
        for kind in KINDS:
            assert "token" in cluster.refusal("gpu-b", change, cluster.token, kind), change[0]
    assert cluster.node("gpu-b") == before


def test_a_token_that_is_bound_to_no_pod_changes_no_node(cluster: Cluster) -> None:
    for offer in OFFERS:
        assert "token" in cluster.refusal("gpu-a", offer, AGENT)


@pytest.mark.parametrize("namespace", ["default", chart.NAMESPACE])
def test_an_agents_account_has_the_rights_of_the_charts_roles_alone(
    cluster: Cluster, namespace: str
) -> None:
    """Beside what everybody may do, which is to ask what one may do."""
    found = cluster.rights(AGENT, namespace, cluster.token)
    assert found - cluster.rights("nobody", namespace) == cluster.granted(namespace)
