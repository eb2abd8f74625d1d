"""K8S-7: ``kubectl inspect cgpu``, the program, against an API server."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cgpu_k8s.apiserver.client import Client, open_client
from cgpu_k8s.apiserver.resources import EVENTS, NAMESPACES, NODES, PODS
from lab.cluster.inspected import A0, A1, POLICIES, TABLE, A, Lab, put
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.fake_server import FakeServer, fake_server
from lab.kubernetes.faults import Fault
from lab.kubernetes.manifests import (
    V100,
    controller,
    decided,
    gpus,
    node,
    pod,
)
from lab.kubernetes.objects import binding
from lab.kubernetes.store import KINDS, Key
from lab.worlds.extender import policy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # a file is packed first


def test_the_table_is_the_published_one(lab: Lab) -> None:
    assert lab.shown() == TABLE
    found = lab.run(KUBECONFIG=f"/nowhere/else:{lab.kubeconfig}")
    assert (found.returncode, found.stdout, found.stderr) == (0, TABLE, "")
    assert lab.shown("--context", "lab") == TABLE


def test_one_node_alone_is_asked_for_with_its_pods(lab: Lab) -> None:
    before = len(lab.server.calls)
    lines = lab.shown("other", "-d").splitlines()
    assert [line.split()[0] for line in lines if line][:4] == [
        "NAME:",
        "IPADDRESS:",
        "NAME",
        "four",
    ]
    calls = sorted(lab.server.calls[before:])
    assert calls[0] == "GET /api/v1/nodes/other"
    assert len(calls) == 2
    assert "spec.nodeName%3Dother" in calls[1] or "spec.nodeName=other" in calls[1]


def test_details_show_who_has_what(lab: Lab) -> None:
    rows = [line.split() for line in lab.shown("gpu-a", "-d").splitlines()]
    assert ["five", "default", "5", "0", "0"] in rows
    assert ["eight", "ml", "0", "8", "0"] in rows
    assert ["lost", "default", "0", "0", "2"] in rows


def test_json_and_yaml_have_the_same_content(lab: Lab) -> None:
    content = json.loads(lab.shown("-o", "json"))
    assert yaml.safe_load(lab.shown("-o", "yaml")) == content
    assert (content["allocated"], content["total"]) == (19, 45)
    assert {pod["name"] for node in content["nodes"] for pod in node["pods"]} == {
        *("five", "eight", "lost", "four")
    }


def test_compute_percentages_are_a_second_table(lab: Lab) -> None:
    memory, compute = lab.shown("--core").split("\n\n", 1)
    assert memory + "\n" == TABLE
    assert compute.endswith("Allocated/Total GPU Core In Cluster:\n0/0 (0%)  \n")


def test_groups_and_units_are_further_tables(lab: Lab) -> None:
    """COS-8; the published table stays as it is."""
    member = pod("of-job", 2)
    member["metadata"]["labels"] = {"gpu-topology": "job", "gpu-topology-replica": "2"}
    status = {"units": [{"pods": 3}], "outside": 0}
    put(lab.server, member, {**policy({"max": 5}), "status": status})
    try:
        nodes, groups, units = lab.shown("--groups", "--units").split("\n\n")
        assert nodes + "\n" == TABLE
        assert groups.splitlines()[1].split()[:3] == ["job", "default", "0/2"]
        assert units.splitlines()[1].split() == ["rule", "ns", "1", "any", "3/5"]
        content = json.loads(lab.shown("-o", "json"))
        assert [each["missing"] for each in content["groups"]] == ["1 of its 2 pods are not there"]
        assert [each["name"] for each in content["policies"]] == ["rule"]
        lab.server.fail(Fault(path=".*resourcepolicies.*", status=403, reason="Forbidden", times=2))
        assert json.loads(lab.shown("-o", "json"))["policies"] is None
        assert "with 403" in lab.refused("--units")
        lab.server.fail(Fault(path=".*resourcepolicies.*", status=404, reason="NotFound"))
        assert lab.shown("--units").endswith("MESSAGE\n")
        assert "1 of its 2 pods are there" in lab.shown("--why", "of-job")
        alone = json.loads(lab.shown("gpu-a", "-o", "json"))
        assert (alone["groups"], alone["policies"]) == (None, None)
    finally:
        for key in (
            Key(KINDS["", "pods"], "default", "of-job"),
            Key(KINDS[POLICIES], "ns", "rule"),
        ):
            lab.server.change(lambda store, key=key: store.items.pop(key))


def test_why_a_pod_waits(lab: Lab) -> None:
    assert lab.shown("--why", "waits") == (
        "pod default/waits waits: on gpu-a, the only node that shares its GPUs, no GPU has 11 GiB"
        " of aliyun.com/gpu-mem free\n"
    )
    assert lab.shown("--why", "eight", "-n", "ml") == "pod ml/eight runs on gpu-a\n"


def test_why_a_job_has_no_pod(lab: Lab) -> None:
    job = controller("jobs", pod("p", 2, 33))
    job["metadata"] = {"name": "train", "namespace": "ml", "uid": "uid-train"}
    key = Key(KINDS["batch", "jobs"], "ml", "train")
    lab.server.change(lambda store: store.items.update({key: job}))
    for word in ("job", "jobs"):
        assert lab.shown("--why", f"{word}/train", "-n", "ml") == (
            f"{word} ml/train gets no pod: container main: aliyun.com/gpu-core.percentage=33:"
            " expected a multiple of 5 from 5 to 100\n"
        )
    assert lab.shown("--why", "pod/eight", "-n", "ml") == "pod ml/eight runs on gpu-a\n"
    for words in ("jbo/train", "job/", "pod/"):
        done = lab.run("--why", words)
        assert done.returncode == 2
        assert f"--why {words}: expected a POD, or KIND/NAME with one of cronjob, " in done.stderr


def test_why_a_cron_job_of_kubernetes_1_20_has_no_pod(lab: Lab) -> None:
    cron = controller("cronjobs", pod("p", 2, 33))
    cron["metadata"] = {"name": "nightly", "namespace": "ml", "uid": "uid-nightly"}
    key = Key(KINDS["batch", "cronjobs"], "ml", "nightly")
    lab.server.change(lambda store: store.items.update({key: cron}))
    lab.server.fail(Fault(path="/apis/batch/v1/.*cronjobs.*", status=404, reason="NotFound"))
    sentence = lab.shown("--why", "cronjob/nightly", "-n", "ml")
    assert sentence.startswith("cronjob ml/nightly gets no pod: container main: ")


def test_why_shows_the_pods_own_events(lab: Lab) -> None:
    starting = decided(pod("starts", 1, namespace="new"), "gpu-a", A, A0)
    starting["status"] = {"phase": "Pending"}
    event = {"type": "Warning", "reason": "FailedMount", "message": "no such volume"}
    meta = {"namespace": "new", "name": "e1"}
    others = {**event, "message": "of another pod", "lastTimestamp": "9"}
    put(
        lab.server,
        starting,
        {**event, "metadata": meta, "involvedObject": {"uid": "uid-new-starts"}},
        {**others, "metadata": {**meta, "name": "e2"}, "involvedObject": {"uid": "another"}},
    )
    try:
        asked = ("--why", "starts", "-n", "new")
        assert lab.shown(*asked) == ("pod new/starts waits on gpu-a: FailedMount: no such volume\n")
        lab.server.fail(Fault(path=".*/events.*", status=403, reason="Forbidden"))
        assert lab.shown(*asked) == (
            "pod new/starts waits on gpu-a: its containers are being created\n"
        )
    finally:
        key = Key(KINDS["", "pods"], "new", "starts")
        lab.server.change(lambda store: store.items.pop(key))


def test_lists_are_read_in_pages_and_anew_where_the_first_is_forgotten(tmp_path: Path) -> None:
    with fake_server() as server:
        many = gpus("n", V100)
        put(server, *(node(f"n-{n:04}", many) for n in range(1200)))
        lab = Lab(server, server.kubeconfig(tmp_path / "config"))
        server.fail(Fault(path=".*/nodes.*continue=.*", status=410, reason="Expired"))
        assert len(lab.shown().splitlines()) == 1200 + 4
        lists = [call for call in server.calls if "/nodes" in call]
        assert [("limit=500" in call, "continue=" in call) for call in lists] == [
            *((True, False), (True, True)),
            *((True, False), (True, True), (True, True)),
        ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpu-x"], "node gpu-x: the cluster has no node of this name\n"),
        (["cpu"], "node cpu publishes no memory of GPUs: the node is not labelled for sharing"),
        (["--why", "x"], "pod default/x: there is no pod of this name in this namespace\n"),
        (["--why", "job/x"], "job default/x: there is no job of this name in this namespace\n"),
        (["--context", "lba"], 'has no context "lba": it has lab'),
    ],
)
def test_what_is_not_there_is_one_sentence(lab: Lab, words: list[str], sentence: str) -> None:
    assert sentence in lab.refused(*words)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            Fault(path=".*pods.*", status=403, reason="Forbidden"),
            "answers GET /api/v1/pods with 403",
        ),
        (Fault(path=".*nodes.*", status=500), "answers GET /api/v1/nodes with 500"),
        (Fault(path=".*nodes.*", status=429, retry_after=9), "GET /api/v1/nodes with 429"),
        (Fault(path=".*nodes.*", half=True), "the answer to GET /api/v1/nodes does not come"),
    ],
)
def test_a_refusal_of_the_api_server_is_one_sentence(lab: Lab, fault: Fault, sentence: str) -> None:
    lab.server.fail(replace(fault))
    assert sentence in lab.refused()


def test_a_token_that_is_not_accepted_any_more(lab: Lab, tmp_path: Path) -> None:
    old = lab._replace(kubeconfig=lab.server.kubeconfig(tmp_path / "config", "expired"))
    assert "may have expired" in old.refused()


def with_user(lab: Lab, path: Path, user: dict[str, Any]) -> Lab:
    """The same server for another user of a kubeconfig."""
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(config))
    return lab._replace(kubeconfig=path)


def test_a_token_that_says_when_it_expired(lab: Lab, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(b'{"exp":86400}').decode().rstrip("=")
    old = with_user(lab, tmp_path / "config", {"token": f"h.{claims}.s"})
    assert "config: the token expired at 1970-01-02 00:00:00 UTC" in old.refused()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("exit 3", "fails with status 3: "),
        ("echo {}", "prints what is not an ExecCredential with a status"),
    ],
)
def test_a_plugin_that_gives_no_credential(
    lab: Lab, tmp_path: Path, answer: str, sentence: str
) -> None:
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\necho x >>{tmp_path}/started\n{answer}\n")
    program.chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}
    words = with_user(lab, tmp_path / "config", {"exec": plugin}).refused()
    assert f"the exec plug-in {program} of context" in words
    assert sentence in words
    assert (tmp_path / "started").read_text() == "x\n"


def test_no_kubeconfig_and_no_server(lab: Lab, tmp_path: Path) -> None:
    done = lab.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no kubeconfig: /nowhere/.kube/config does not exist" in done.stderr
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    sentence, hint = lab._replace(kubeconfig=tmp_path / "config").refused().splitlines()
    assert sentence.endswith(" cannot be reached: Connection refused")
    assert hint.startswith("  check that it runs, and that its address in context ")
    assert hint.endswith(f" of {tmp_path / 'config'} is right")


WRONG = ("--why p node", "--why p --core", "--why p --groups", "-n ns", "-o json --core", "-o xml",
         "-o json --groups", "-d -o json", "gpu-a --units")  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_options_that_do_not_go_together_are_refused(lab: Lab, words: str) -> None:
    assert lab.run(*words.split()).returncode == 2


SPACE = "of-inspect"


async def fill(client: Client) -> None:
    """A node, a pod that a Binding has put there, and one that waits for a volume."""
    await client.post(NAMESPACES.path(), {"metadata": {"name": SPACE}})
    await client.post(NODES.path(), node("inspected", A))
    for name, uuid in (("one", A0), ("two", A1)):
        item = pod(name, 9, namespace=SPACE)
        item["spec"]["containers"][0]["image"] = "busybox"
        made = await client.post(PODS.path(namespace=SPACE), item)
        placed = decided(made, "inspected", A, uuid)
        body = binding(name, "inspected", placed["metadata"]["annotations"])
        await client.post(PODS.path(name, namespace=SPACE, part="binding"), body)
    about = {"kind": "Pod", "name": "two", "namespace": SPACE, "uid": made["metadata"]["uid"]}
    event = {
        "metadata": {"name": "two.1", "namespace": SPACE},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedMount",
        "message": "no such volume",
    }
    await client.post(EVENTS.path(namespace=SPACE), event)
    item = pod("waits", 7, namespace=SPACE)
    item["spec"]["containers"][0]["image"] = "busybox"
    await client.post(PODS.path(namespace=SPACE), item)


def test_the_real_api_server_understands_what_is_asked(
    server: FakeServer | ControlPlane, tmp_path: Path
) -> None:
    """Selectors of pods and events, pods that were bound, and objects as it writes them."""

    async def act() -> None:
        async with open_client(server.cluster()) as client:
            await fill(client)

    asyncio.run(act())
    fake = isinstance(server, FakeServer)
    lab = Lab(server, server.kubeconfig(tmp_path / "config") if fake else server.kubeconfig())
    rows = [line.split() for line in lab.shown("inspected", "-d").splitlines()]
    assert [row for row in rows if SPACE in row[1:]] == [
        ["one", SPACE, "9", "0"],
        ["two", SPACE, "0", "9"],
    ]
    assert any(line.startswith("inspected ") for line in lab.shown().splitlines())
    assert "no GPU has 7 GiB" in lab.shown("--why", "waits", "-n", SPACE)
    assert "FailedMount: no such volume" in lab.shown("--why", "two", "-n", SPACE)
