"""Decisions forged by every verb, part and kind of patch, where policies judge: none gets through.

K8S-15; K8S-2 for what no GPU could give. Of each way a harmless annotation shows that it is one.
The administrator, a node's user and the agent's account forge. The last two do so with all rights
too, so that only the policy keeps them from it.
"""

from __future__ import annotations

import http.client
import json
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cgpu_k8s.admission.rules import Review, find_refusal
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.admission.webhooks import CONDITIONS, make_objects
from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.names import RESERVED
from cgpu_k8s.objects.misspelt import find_miscounted, find_misspelt
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ACCOUNT, ADMIN, AGENT, ControlPlane, control_plane
from lab.kubernetes.manifests import CORE, IMPOSSIBLE, ITS_OWN, MEM, container, of, whole
from lab.kubernetes.objects import binding, node, pod, pod_path, pods_path
from lab.kubernetes.programs import Release, newer
from lab.kubernetes.scheduler import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.system, newer]

Json = dict[str, Any]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
OPERATIONS = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PARTS = ("", "status", "ephemeralcontainers", "resize")
NOTED = ("", "status")  # the others leave a pod's annotations as they are
REFUSED = 422
HARMLESS = "mine"
DENIED = "only cgpu's scheduler may"
NODE = "system:node:gpu-a"
SETTINGS = Settings((ACCOUNT,), AGENT)
BEFORE, AFTER = "before", "after"  # values of an annotation


class Way(NamedTuple):
    """How a request changes a pod: the verb, the part of the pod, and the kind of the body."""

    verb: str
    part: str
    kind: str


KINDS = (MERGE, STRATEGIC, OPERATIONS, APPLY)
WAYS = [Way("PATCH", part, kind) for part in PARTS for kind in KINDS]
WAYS += [Way("PUT", part, "application/json") for part in PARTS]


class Who(NamedTuple):
    """Who asks: a user, by a token or, ``mighty``, with all rights that roles can give."""

    user: str
    mighty: bool = False

    def headers(self) -> dict[str, str]:
        """What shows it to the API server."""
        token = {"Authorization": f"Bearer {ADMIN if self.mighty else self.user}"}
        name = {"Impersonate-User": self.user, "Impersonate-Group": "system:masters"}
        return token | (name if self.mighty else {})


ADMINISTRATOR = Who(ADMIN)
# Which parts of a pod each may change.
MAY = {
    ADMINISTRATOR: NOTED,
    Who(NODE): ("status",),
    Who(NODE, mighty=True): NOTED,
    Who(AGENT): (),
    Who(AGENT, mighty=True): NOTED,
}


class Asked(NamedTuple):
    """What the API server answered."""

    status: int
    message: str


class Server:
    """The API server, as anybody with a token asks it."""

    def __init__(self, plane: ControlPlane) -> None:
        trust, host = plane.cluster().trust.make_context(None), plane.address.partition("://")[2]
        self._connection = http.client.HTTPSConnection(host, timeout=30, context=trust)

    def ask(
        self, method: str, path: str, body: object = None, kind: str = "", who: Who = ADMINISTRATOR
    ) -> tuple[Asked, Json]:
        headers = {"Content-Type": kind or "application/json", **who.headers()}
        given = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, given, headers)
        with self._connection.getresponse() as reply:
            status, found = reply.status, json.load(reply)
        if status < http.HTTPStatus.BAD_REQUEST:
            return Asked(status, ""), found
        return Asked(status, found.get("message", "")), {}

    def pod(self, name: str) -> Json:
        return self.ask("GET", pod_path(name))[1]

    def notes(self, name: str) -> Json:
        found: Json = self.pod(name)["metadata"].get("annotations") or {}
        return found

    def change(
        self, name: str, way: Way, note: str, value: str | None, who: Who = ADMINISTRATOR
    ) -> Asked:
        """Give the pod's annotation this value, or take it away."""
        path = pod_path(name, way.part)
        whole: Json = self.pod(name)
        notes = {**(whole["metadata"].get("annotations") or {}), note: value}
        if way.verb == "PUT":
            whole["metadata"]["annotations"] = {k: v for k, v in notes.items() if v is not None}
            return self.ask("PUT", path, whole, way.kind, who)[0]
        if way.kind == OPERATIONS:
            at = f"/metadata/annotations/{note.replace('/', '~1')}"
            change: Json = {"op": "remove", "path": at}
            if value is not None:
                change = {"op": "add", "path": at, "value": value}
            body: object = [change]
        else:
            body = {"metadata": {"annotations": {note: value}}}
        if way.kind == APPLY:
            applied = {} if value is None else {note: value}
            body = {"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "annotations": applied}}  # fmt: skip
            path += "?fieldManager=forger&force=true"
        return self.ask("PATCH", path, body, way.kind, who)[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[Server]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        install(plane)
        asked = Server(plane)
        wait_until(lambda: are_in_force(asked), "the policies are in force", 60)
        yield asked


def are_in_force(server: Server) -> bool:
    """The API server reads policies again once a second: whether each of them refuses."""
    forged = pod("forged")
    forged["metadata"]["annotations"] = {RESERVED[0]: AFTER}
    placed = pod("placed", {"aliyun.com/gpu-mem": "2"}, schedulerName="mine")
    bound = binding("nobody", "gpu-a", {RESERVED[0]: AFTER})
    return all(
        server.ask("POST", f"{path}?dryRun=All", body)[0].status == REFUSED
        for path, body in (
            (pods_path(), forged),
            (pods_path(), placed),
            (pods_path().replace("pods", "bindings"), bound),
        )
    )


@pytest.fixture
def made(server: Server) -> Iterator[Callable[..., str]]:
    """Makes a pod with a harmless annotation, and others that it has from the scheduler."""
    names = []

    def make(name: str, **decided: str) -> str:
        item = pod(name, {"aliyun.com/gpu-mem": "2"}, schedulerName="cgpu-scheduler")
        item["metadata"]["annotations"] = {HARMLESS: BEFORE}
        answer, _ = server.ask("POST", pods_path(), item)
        assert answer.status == 201, answer
        names.append(name)
        if decided:
            bound = binding(name, "gpu-a", decided)
            answer, _ = server.ask("POST", pod_path(name, "binding"), bound, who=Who(ACCOUNT))
            assert answer.status == 201, answer
        return name

    yield make
    for name in names:
        server.ask("DELETE", pod_path(name), {"gracePeriodSeconds": 0})


def working(server: Server, name: str, who: Who) -> list[Way]:
    """The ways by which a harmless annotation gets through."""
    found = []
    for number, way in enumerate(WAYS):
        server.change(name, way, HARMLESS, f"{number}", who)
        if server.notes(name)[HARMLESS] == f"{number}":
            found.append(way)
    return found


@pytest.mark.parametrize("who", MAY, ids=lambda who: f"{who.user}{', all rights' * who.mighty}")
def test_no_way_of_changing_a_pod_adds_changes_or_removes_a_decision(
    server: Server, made: Callable[..., str], who: Who
) -> None:
    """Each annotation, on a pod without it and on one that has it from the scheduler."""
    bare, bound = made("bare"), made("bound", **dict.fromkeys(RESERVED, BEFORE))
    for name in (bare, bound):
        ways = working(server, name, who)
        assert {*ways} == {way for way in WAYS if way.part in MAY[who]}
    had = {name: server.notes(name) for name in (bare, bound)}
    for way, note in product(WAYS, RESERVED):
        for name, value in ((bare, AFTER), (bound, AFTER), (bound, None)):
            answer = server.change(name, way, note, value, who)
            removes_nothing = way.kind == APPLY and value is None  # it was another's field
            if way in ways and not removes_nothing:
                assert DENIED in answer.message, (way, note, value, answer)
    assert {name: server.notes(name) for name in (bare, bound)} == had


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_gpu_could_give_is_refused_with_the_sentence_of_the_guard(
    server: Server, name: str
) -> None:
    """By the policy, where Kubernetes does not refuse it itself."""
    item = whole(IMPOSSIBLE[name])
    item["spec"]["schedulerName"] = "cgpu-scheduler"
    answer, _ = server.ask("POST", pods_path(), item)
    assert answer.status == REFUSED
    if name not in ITS_OWN:
        assert "ValidatingAdmissionPolicy 'cgpu-pods'" in answer.message
        assert answer.message.endswith(
            find_refusal(Review("CREATE", "pods", ADMIN, item), SETTINGS)
        )


@pytest.mark.parametrize("name", ["aliyun.com/gpu_mem", "aliyun.com/GPU-core.percent"])
def test_a_resource_that_is_nearly_ours_is_refused(server: Server, name: str) -> None:
    item = whole(of(container({"cpu": "1", name: "1"})))
    answer, _ = server.ask("POST", pods_path(), item)
    assert answer.message.endswith(find_misspelt(item))
    assert f"{name}: there is no such resource" in answer.message


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_what_is_nearly_the_number_of_gpus_is_refused_where_a_pod_asks(
    server: Server, kind: str
) -> None:
    for limits in ({MEM: "2"}, {"cpu": "1"}):
        item = whole(of(container(limits), schedulerName="cgpu-scheduler"))
        item["metadata"][kind] = {"app": "x", "aliyun.com/gpu_count": "2"}
        answer, _ = server.ask("POST", f"{pods_path()}?dryRun=All", item)
        sentence = find_miscounted(item)
        assert bool(sentence) == (MEM in limits)
        assert answer.message.endswith(sentence) if sentence else answer == Asked(201, "")


def test_the_conditions_of_older_webhooks_compile(server: Server) -> None:
    """Those of 1.28, which no policy has."""
    for each in make_objects(SETTINGS, "cgpu-system", CONDITIONS):
        path = f"/apis/{each['apiVersion']}/{each['kind'].lower()}s?dryRun=All"
        assert server.ask("POST", path, each)[0] == Asked(201, "")


@pytest.mark.parametrize(("count", "limits"), [(2000, {MEM: "2", CORE: "5"}), (5000, {"cpu": "1"})])
def test_the_largest_pods_stay_below_what_an_expression_may_cost(
    server: Server, count: int, limits: Json
) -> None:
    item = whole(of(*(container(limits, limits, f"c{number}") for number in range(count))))
    item["spec"]["schedulerName"] = "cgpu-scheduler"
    assert server.ask("POST", f"{pods_path()}?dryRun=All", item)[0] == Asked(201, "")
    if MEM in limits:
        item["spec"]["containers"][-1]["resources"]["limits"] = {**limits, CORE: "7"}
        item["spec"]["containers"][-1]["resources"]["requests"] = {}
        answer, _ = server.ask("POST", f"{pods_path()}?dryRun=All", item)
        assert f"container c{count - 1}: {CORE}=7: expected a multiple of 5" in answer.message


@pytest.mark.parametrize("user", [ADMIN, NODE, AGENT])
def test_no_way_of_making_or_binding_a_pod_brings_a_decision(
    server: Server, made: Callable[..., str], user: str
) -> None:
    """By POST, as a dry run, by a name that the server makes up, by apply; and both bindings."""
    bare = made("bare")
    for note in RESERVED:
        item = pod("forged")
        item["metadata"]["annotations"] = {note: AFTER}
        nameless = {**item, "metadata": {"generateName": "f-", "annotations": {note: AFTER}}}
        apply = f"{pod_path('forged')}?fieldManager=forger&force=true"
        bound = binding(bare, "gpu-a", {note: AFTER})
        for method, path, body, kind in (
            ("POST", pods_path(), item, ""),
            ("POST", f"{pods_path()}?dryRun=All", item, ""),
            ("POST", pods_path(), nameless, ""),
            ("PATCH", apply, item, APPLY),
            ("POST", pod_path(bare, "binding"), bound, ""),
            ("POST", pods_path().replace("pods", "bindings"), bound, ""),
        ):
            answer, _ = server.ask(method, path, body, kind, Who(user, mighty=True))
            assert DENIED in answer.message, (method, path, note, answer)
    _, listed = server.ask("GET", pods_path())
    [left] = [each["metadata"]["name"] for each in listed["items"]]
    assert left == bare
    assert "nodeName" not in server.pod(bare)["spec"]


def test_a_nodes_user_does_what_kubelets_do(server: Server, made: Callable[..., str]) -> None:
    """It makes its node and mirrors of static pods, says how its pods are, and ends them.

    A static pod has no GPU, as nobody decides on it: its mirror asks for none.
    """
    kubelet, nodes, name = Who(NODE), NODES.path(), NODE.rpartition(":")[2]
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    beats = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    mirror = pod("mirror", nodeName=name)
    asking = pod("asks", {"aliyun.com/gpu-mem": "2"}, nodeName=name, schedulerName="cgpu-scheduler")
    for item in (mirror, asking):
        item["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    bound = made("bound", **{RESERVED[0]: BEFORE})
    for method, path, body, kind in (
        ("POST", nodes, node(name, cpu="4"), ""),
        ("PATCH", f"{nodes}/{name}/status", beats, STRATEGIC),
        ("POST", pods_path(), mirror, ""),
        ("PATCH", pod_path("mirror", "status"), running, STRATEGIC),
        ("PATCH", pod_path(bound, "status"), running, STRATEGIC),
        ("DELETE", pod_path("mirror"), {"gracePeriodSeconds": 0}, ""),
        ("DELETE", pod_path(bound), {"gracePeriodSeconds": 0}, ""),
    ):
        answer, _ = server.ask(method, path, body, kind, kubelet)
        assert answer.message == "", (method, path)
    answer, _ = server.ask("POST", pods_path(), asking, who=kubelet)
    assert f"nodeName={name}: expected none for a pod that asks" in answer.message
    server.ask("DELETE", f"{nodes}/{name}")
