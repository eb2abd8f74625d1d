"""The guard as the webhook of the real API server 1.20.2, and a node without it.

K8S-15.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from cgpu_k8s.admission.rules import Review, find_refusal
from cgpu_k8s.admission.settings import Settings
from cgpu_k8s.apiserver.client import MERGE, open_client
from cgpu_k8s.apiserver.errors import ForbiddenError, InvalidError, NotFoundError
from cgpu_k8s.apiserver.resources import MUTATING, SECRETS, VALIDATING, Resource
from cgpu_k8s.names import ASKED, SCHEDULERS
from cgpu_k8s.objects.pods import read_pod
from cgpu_node import podspecs
from cgpu_node.podspecs import Current, Limit, PodSpec
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ACCOUNT, ADMIN, AGENT, GUARD, ControlPlane, control_plane
from lab.kubernetes.manifests import IMPOSSIBLE, ITS_OWN, MEM, whole
from lab.kubernetes.objects import binding, pod, pod_path, pods_path
from lab.kubernetes.programs import free_port
from lab.worlds.guard import NAME, apply, guard, guarding
from lab.worlds.pods import GPUS, NODE, PodWorld, containerd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from cgpu_k8s.apiserver.client import Client

pytestmark = pytest.mark.integration

Json = dict[str, Any]
ALLOCATION = "cgpu/allocation"
FORGED = {ALLOCATION: "{}"}
HALF = b"POST /word/validate HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n"
DENIED = 'admission webhook "{}.guard.cgpu" denied the request: cgpu: '
SECRET = SECRETS.path(NAME, namespace=chart.NAMESPACE)
JOBS = """
apiVersion: batch/v1
kind: Job
metadata: {name: gpu-share-sample}
spec:
  parallelism: 1
  template:
    metadata: {labels: {app: gpu-share-sample}}
    spec:
      schedulerName: ack-co-scheduler
      containers:
      - name: gpu-share-sample
        image: busybox
        workingDir: /root
        resources: {limits: {aliyun.com/gpu-mem: 3}}
      restartPolicy: Never
---
apiVersion: batch/v1
kind: Job
metadata: {name: cuda-sample}
spec:
  parallelism: 1
  template:
    metadata: {labels: {app: cuda-sample}}
    spec:
      containers:
      - name: cuda-sample
        image: busybox
        workingDir: /root
        resources: {limits: {aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 30}}
      restartPolicy: Never
"""


@pytest.fixture(scope="module", name="plane")
def _plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("guarded")) as running:
        rights = running.chart()
        scheduler = [each for each in rights if each["metadata"]["name"] == "cgpu-extender"]
        words = ["apply", "--filename=-", f"--kubeconfig={running.kubeconfig()}"]
        chart.done("kubectl", *words, home=running.folder, given=yaml.safe_dump_all(scheduler))
        yield running


@pytest.fixture(scope="module", name="guarded")
def _guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guarding(plane):
        yield plane


def act(plane: ControlPlane, what: Callable[[Client], Awaitable[Any]], user: str = ADMIN) -> Any:
    """What a user's request brings."""

    async def run() -> Any:
        async with open_client(plane.cluster(user)) as client:
            return await what(client)

    return asyncio.run(run())


def refused(
    plane: ControlPlane, what: Callable[[Client], Awaitable[Any]], user: str = ADMIN
) -> str:
    """What the guard says to a request, with the webhook's name before it."""
    with pytest.raises(ForbiddenError) as error:
        act(plane, what, user)
    return str(error.value).partition(" with 403: ")[2]


def make(plane: ControlPlane, item: Json) -> Json:
    made: Json = act(plane, lambda client: client.post(pods_path(), item))
    return made


def remove(plane: ControlPlane, name: str) -> None:
    act(plane, lambda client: client.delete(pod_path(name), {"gracePeriodSeconds": 0}))


def asks(name: str, **spec: Any) -> Json:
    return pod(name, {MEM: "2"}, **{"schedulerName": "cgpu-scheduler", **spec})


def forged(item: Json, **notes: str) -> Json:
    return {**item, "metadata": {**item["metadata"], "annotations": notes or FORGED}}


@pytest.mark.parametrize("item", [asks("p"), pod("p")], ids=["asks", "plain"])
def test_k8s_15_a_decision_is_forged_on_no_way(guarded: ControlPlane, item: Json) -> None:
    only = f"annotation {ALLOCATION}: only cgpu's scheduler may"
    sentence = refused(guarded, lambda client: client.post(pods_path(), forged(item)))
    assert sentence == f"{DENIED.format('pods')}{only} set it"
    make(guarded, item)
    note = {"metadata": {"annotations": FORGED}}
    for part in ("", "status"):
        sentence = refused(guarded, lambda client: client.patch(pod_path("p", part), note, MERGE))  # noqa: B023
        assert sentence == f"{DENIED.format('annotations')}{only} change it"
    bound = binding("p", "gpu-a", FORGED)
    for path in (pod_path("p", "binding"), pods_path().replace("pods", "bindings")):
        sentence = refused(guarded, lambda client: client.post(path, bound))  # noqa: B023
        assert sentence == f"{DENIED.format('bindings')}{only} set it"
    found = act(guarded, lambda client: client.get(pod_path("p")))
    assert "annotations" not in found["metadata"]
    assert "nodeName" not in found["spec"]
    remove(guarded, "p")


def test_k8s_15_only_the_scheduler_binds_a_pod_that_asks_for_gpus(guarded: ControlPlane) -> None:
    for item in (asks("p"), pod("q")):
        make(guarded, item)
    bare = binding("p", "gpu-a")
    sentence = refused(guarded, lambda client: client.post(pod_path("p", "binding"), bare))
    assert sentence == (
        f"{DENIED.format('bindings')}pod default/p asks for {ASKED}: only cgpu's scheduler may bind"
        f" it, not {ADMIN}"
    )
    decided = binding("p", "gpu-a", FORGED)
    act(guarded, lambda client: client.post(pod_path("p", "binding"), decided), ACCOUNT)
    found = act(guarded, lambda client: client.get(pod_path("p")))
    assert found["metadata"]["annotations"] == FORGED
    for value in ("{}x", None):
        note = {"metadata": {"annotations": {ALLOCATION: value}}}
        assert "may change it" in refused(
            guarded,
            lambda client: client.patch(pod_path("p"), note, MERGE),  # noqa: B023
        )
    other = binding("q", "gpu-a")
    act(guarded, lambda client: client.post(pod_path("q", "binding"), other))
    with pytest.raises(NotFoundError):
        act(guarded, lambda client: client.post(pod_path("r", "binding"), binding("r", "gpu-a")))
    for name in ("p", "q"):
        remove(guarded, name)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"nodeName": "gpu-a"}, f"nodeName=gpu-a: expected none for a pod that asks for {ASKED}"),
        (
            {"schedulerName": "mine"},
            f"schedulerName=mine: a pod that asks for {ASKED} needs {' or '.join(SCHEDULERS)}",
        ),
    ],
)
def test_k8s_15_no_pod_goes_past_the_scheduler(
    guarded: ControlPlane, spec: Json, sentence: str
) -> None:
    given = refused(guarded, lambda client: client.post(pods_path(), asks("p", **spec)))
    assert given == DENIED.format("pods") + sentence


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_gpu_could_give_is_refused_with_its_sentence(
    guarded: ControlPlane, name: str
) -> None:
    item = whole(IMPOSSIBLE[name])
    sentence = find_refusal(Review("CREATE", "pods", ADMIN, item), Settings((ACCOUNT,), AGENT))
    if name in ITS_OWN:
        with pytest.raises(InvalidError):
            make(guarded, item)
    else:
        given = refused(guarded, lambda client: client.post(pods_path(), item))
        assert given == DENIED.format("pods") + sentence


def test_the_documented_jobs_run_as_they_are(guarded: ControlPlane) -> None:
    """As a controller makes their pods, which no controller does here; the second has no name."""
    words = ["apply", "--filename=-", f"--kubeconfig={guarded.kubeconfig()}"]
    done = chart.done("kubectl", *words, home=guarded.folder, given=JOBS)
    assert done == "job.batch/gpu-share-sample created\njob.batch/cuda-sample created\n"
    made = []
    for job in yaml.safe_load_all(JOBS):
        template = job["spec"]["template"]
        about = {"name": job["metadata"]["name"], **template["metadata"]}
        made.append(make(guarded, {"kind": "Pod", "metadata": about, "spec": template["spec"]}))
    assert [each["spec"]["schedulerName"] for each in made] == [
        "ack-co-scheduler",
        "cgpu-scheduler",
    ]
    assert [read_pod(each).refusal for each in made] == ["", ""]
    assert not any("runtimeClassName" in each["spec"] for each in made)
    for each in made:
        remove(guarded, each["metadata"]["name"])


def test_a_dry_run_is_answered_alike_and_other_pods_are_left_alone(guarded: ControlPlane) -> None:
    dry = f"{pods_path()}?dryRun=All"
    made = act(guarded, lambda client: client.post(dry, pod("p", {MEM: "2"})))
    assert made["spec"]["schedulerName"] == "cgpu-scheduler"
    assert "may set it" in refused(guarded, lambda client: client.post(dry, forged(asks("p"))))
    with pytest.raises(NotFoundError):
        act(guarded, lambda client: client.get(pod_path("p")))
    plain = make(guarded, pod("p", nodeName="gpu-a"))
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    remove(guarded, "p")


def shows(port: int) -> str:
    """The certificate that a replica shows; "": none yet."""
    try:
        return ssl.get_server_certificate(("127.0.0.1", port))
    except OSError:
        return ""


def test_replicas_share_a_certificate_that_they_renew_while_they_serve(
    guarded: ControlPlane,
) -> None:
    """And in all that the guard calls for what it has a right to, and has no other rights."""
    ports = [free_port(), free_port()]
    with guard(guarded, ports[0]), guard(guarded, ports[1]):
        wait_until(lambda: all(map(shows, ports)), "both serve")
        before = shows(ports[0])
        assert shows(ports[1]) == before
        damaged = {"data": {"tls.key": None}}
        act(guarded, lambda client: client.patch(SECRET, damaged, MERGE))
        wait_until(lambda: {*map(shows, ports)}.isdisjoint({before, ""}), "both renew", 60)
        wait_until(lambda: shows(ports[0]) == shows(ports[1]), "and show the same", 60)
        act(guarded, lambda client: client.patch(SECRET, {"data": None}, MERGE))
        wait_until(lambda: trusts(guarded, before), "who is trusted is renewed, too", 60)
        wait_until(lambda: shows(ports[0]) == shows(ports[1]) == stored(guarded), "and shown", 60)
    wait_until(lambda: forgery(guarded), "the API server goes on asking", 60)
    calls = {each._replace(namespace="") if each.resource == "pods" else each
             for each in guarded.calls(GUARD)}  # fmt: skip
    assert calls == guarded.granted(NAME)
    for each in guarded.chart():
        if "Role" in each["kind"] and each["metadata"]["name"] == NAME:
            for rule in each.get("rules", []):
                assert "pods" in rule["resources"] or rule["resourceNames"] == [NAME]


def forgery(plane: ControlPlane) -> bool:
    try:
        refused(plane, lambda client: client.post(f"{pods_path()}?dryRun=All", forged(pod("p"))))
    except pytest.fail.Exception:
        return False
    return True


def stored(plane: ControlPlane) -> str:
    """The certificate of the Secret."""
    found = act(plane, lambda client: client.get(SECRET)).get("data") or {}
    return base64.b64decode(found.get("tls.crt", "")).decode()


def trusts(plane: ControlPlane, before: str) -> bool:
    """Whether all webhooks trust the authority of the Secret, which signed another certificate."""
    secret = act(plane, lambda client: client.get(SECRET)).get("data") or {}
    found = [act(plane, lambda client: client.get(each.path(NAME))) for each in CONFIGURED]  # noqa: B023
    bundles = {hook["clientConfig"]["caBundle"] for each in found for hook in each["webhooks"]}
    return stored(plane) not in {before, ""} and bundles == {secret.get("ca.crt")}


CONFIGURED: tuple[Resource, ...] = (MUTATING, VALIDATING)


def test_what_is_applied_again_keeps_whom_api_servers_trust(plane: ControlPlane) -> None:
    with guarding(plane):
        kept = act(plane, lambda client: client.get(SECRET))["data"]
        apply(plane, 1)
        assert act(plane, lambda client: client.get(SECRET))["data"] == kept
        for each in CONFIGURED:
            found = act(plane, lambda client: client.get(each.path(NAME)))  # noqa: B023
            for hook in found["webhooks"]:
                assert hook["clientConfig"]["url"].startswith("https://127.0.0.1:1/")
                assert hook["clientConfig"]["caBundle"] == kept["ca.crt"]


def test_pods_get_the_runtime_class_of_the_cluster_where_it_has_one(plane: ControlPlane) -> None:
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "cgpu"}}
    classes = Resource("node.k8s.io", "v1", "runtimeclasses").path()
    act(plane, lambda client: client.post(classes, {**about, "handler": "cgpu"}))
    with guarding(plane, "--runtime-class", "cgpu"):
        dry = f"{pods_path()}?dryRun=All"
        for limits, expected in (({MEM: "2"}, "cgpu"), ({}, None)):
            made = act(plane, lambda client: client.post(dry, pod("p", limits)))  # noqa: B023
            assert made["spec"].get("runtimeClassName") == expected


def test_k8s_15_without_a_guard_pods_start_and_no_gpu_is_given_above_a_limit(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Before 1.28, where its webhooks have to be ones that an API server does without."""
    with guarding(plane) as process:
        process.terminate()
        process.wait(20)
        grants = {"main": {GPUS[0]: {"mem": 8 << 10}}}
        decision = {"v": 1, "pod": "UID", "node": NODE, "containers": grants}
        made = {
            "plain": make(plane, pod("plain")),
            "above": make(plane, forged(asks("above"), **{ALLOCATION: json.dumps(decision)})),
            "nothing": make(plane, forged(pod("nothing"), **{ALLOCATION: json.dumps(decision)})),
            "undecided": make(plane, pod("undecided", {MEM: "2"})),
        }
        assert made["undecided"]["spec"]["schedulerName"] == "default-scheduler"
        for name in ("above", "nothing"):  # a user learns the UID once the pod is there
            uid = made[name]["metadata"]["uid"]
            text = json.dumps(decision).replace("UID", uid)
            note = {"metadata": {"annotations": {ALLOCATION: text}}}
            made[name] = act(plane, lambda client: client.patch(pod_path(name), note, MERGE))  # noqa: B023
        world = PodWorld(tmp_path / "node")
        outcomes = {name: started(world, item) for name, item in made.items()}
        for name in made:
            remove(plane, name)
    assert outcomes["plain"] == ""
    assert "containers.main: aliyun.com/gpu-mem=" in outcomes["above"]
    assert "expected at most 2, the pod's own limit" in outcomes["above"]
    assert "expected the UID of a pod that asks for aliyun.com/gpu-mem" in outcomes["nothing"]
    assert "and came without its pod's annotation cgpu/allocation" in outcomes["undecided"]
    assert world.shares() == []


def started(world: PodWorld, item: Json) -> str:
    """Why a node with an agent refuses the pod's container; "": it starts, with no GPU."""
    found = read_pod(item)
    uid, notes = item["metadata"]["uid"], item["metadata"].get("annotations", {})
    limits = {each.name: Limit(each.units, each.cores) for each in found.containers}
    if limits:  # as the agent leaves it
        podspecs.write_spec(str(world.state), uid, PodSpec(f"default/{found.name}", limits))
    current = Current(str(world.state))
    assert current.begin()
    try:
        done = world.create(containerd(notes, uid=uid), ["NVIDIA_VISIBLE_DEVICES=all"])
    finally:
        current.end()
    if done.returncode == 0:
        assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == "void"
    return done.stderr if done.returncode else ""


def test_k8s_15_strangers_with_open_connections_keep_no_api_server_out(plane: ControlPlane) -> None:
    """They send nothing, half a handshake or half a review: nothing is parsed, little is kept."""
    with guarding(plane) as process, ExitStack() as kept:
        port = int(process.args[-3].rpartition(":")[2])  # type: ignore[index]
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        before = psutil.Process(process.pid).memory_info().rss
        for number in range(600):
            made = kept.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            if number % 3 == 1:
                made.sendall(b"\x16\x03\x01")
            elif number % 3 == 2:
                made = kept.enter_context(trusting.wrap_socket(made))
                made.sendall(HALF)
                with suppress(OSError):
                    made.sendall(b"[" * (4 << 20))
        assert forgery(plane)
        # TLS keeps about 0.5 MB for each of the 256 that are let in. Each of 200 bodies has 4 MiB.
        assert psutil.Process(process.pid).memory_info().rss - before < 256 << 20
