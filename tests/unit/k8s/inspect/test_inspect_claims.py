"""DRA-7: ``kubectl inspect cgpu`` shows claims as decisions, and why pods wait for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.inspect.claim_reasons import make_claims_view
from cgpu_k8s.inspect.claim_text import format_claims
from cgpu_k8s.inspect.claims import DRIVERS, ClaimFacts, ClaimsView
from cgpu_k8s.inspect.cluster import read_gpu_pod, read_node_facts
from cgpu_k8s.inspect.document import make_document
from cgpu_k8s.inspect.text import format_details, format_summary
from cgpu_k8s.inspect.why import explain_pod
from cgpu_k8s.objects.claims import read_claim, read_claiming_pod, read_devices, read_own_class
from lab.cluster.claim_objects import (
    V100,
    claim_of,
    claims_node,
    device_class,
    pod_with,
    slice_of,
    tainted,
)
from lab.kubernetes.manifests import bound

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "kubernetes.md"
NODES = [claims_node("gpu-a", "10.0.0.1"), claims_node("gpu-b", "")]
SLICES = [slice_of("gpu-a", V100, V100), slice_of("gpu-b", 8000)]
PART = claim_of("part", ("gpu-a", "gpu-0", "2500Mi", "30"), pods=("one",))
COMMON = claim_of("common", ("gpu-a", "gpu-1", "4Gi", "50"), pods=("two", "three"))
WIDE = claim_of(
    "wide", ("gpu-a", "gpu-0", "1Gi", "10"), ("gpu-a", "gpu-1", "1Gi", "10"), namespace="ml"
)


def known(
    claims: Iterable[Any] | None = (PART, COMMON, WIDE),
    waiting: Iterable[Any] = (),
    slices: Iterable[Any] = SLICES,
    classes: Iterable[Any] = (),
    problem: str = "",
) -> ClaimFacts:
    """What the program has of these objects."""
    found = None if claims is None else [read_claim(each) for each in claims]
    return ClaimFacts(
        {each["spec"]["nodeName"]: read_devices(each) for each in slices},
        None if found is None else {(each.namespace, each.name): each for each in found},
        [pod for pod in map(read_claiming_pod, waiting) if pod],
        frozenset({"gpu.cgpu", *(each.name for each in map(read_own_class, classes) if each)}),
        {},
        problem,
    )


def view(facts: ClaimFacts, nodes: Iterable[Any] = NODES, node: str = "") -> ClaimsView:
    return make_claims_view(map(read_node_facts, nodes), facts, node)


def test_dra_7_nodes_show_what_claims_have_of_their_gpus() -> None:
    memory, compute = format_claims(view(known()), format_summary, cores=True)
    assert memory == (
        "NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  Claimed GPU Memory(MiB)\n"
        "gpu-a  10.0.0.1   3524/16160             5120/16160             8644/32320\n"
        "gpu-b  unknown    0/8000                 0/0                    0/8000\n"
        "--------------------------------------------------------------------\n"
        "Allocated/Total Claimed GPU Memory In Cluster:\n"
        "8644/40320 (21%)  \n"
    )
    assert compute == (
        "NAME   IPADDRESS  GPU0 Core(Allocated/Total)  GPU1 Core(Allocated/Total)"
        "  Claimed GPU Core(%)\n"
        "gpu-a  10.0.0.1   40/100                      60/100                      100/200\n"
        "gpu-b  unknown    0/100                       0/0                         0/100\n"
        "---------------------------------------------------------\n"
        "Allocated/Total Claimed GPU Core In Cluster:\n"
        "100/300 (33%)  \n"
    )


def test_dra_7_details_have_a_line_for_each_pod_and_count_a_common_claim_once() -> None:
    [details] = format_claims(view(known()), format_details, cores=False)
    rows = [line.split() for line in details.splitlines()]
    assert rows[rows.index(["NAME:", "gpu-a"]) + 3 :][:7] == [
        ["NAME", "NAMESPACE", "CLAIM", "GPU0(Allocated)", "GPU1(Allocated)"],
        ["one", "default", "part", "2500", "0"],
        ["-", "ml", "wide", "1024", "1024"],
        ["three", "default", "common", "0", "4096"],
        ["two", "default", "common", "0", "4096"],
        ["Allocated", ":", "8644", "(26%)"],
        ["Total", ":", "32320"],
    ]
    assert details.endswith("Claimed GPU Memory In Cluster:  8644/40320 (21%)  \n")


def test_a_whole_gpu_is_what_a_claim_has_whose_allocation_names_no_amounts() -> None:
    whole = claim_of("whole", ("gpu-b", "gpu-0", "1Mi", "0"), pods=("one",))
    [result] = whole["status"]["allocation"]["devices"]["results"]
    del result["consumedCapacity"]
    [_, node] = view(known([whole])).nodes
    assert node.allocated == (8000, 100)


def test_claims_of_other_drivers_have_nothing_of_ours() -> None:
    theirs = claim_of("theirs", ("gpu-a", "gpu-0", "1Gi", "0"), pods=("one",))
    theirs["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    foreign = slice_of("gpu-b", V100)
    foreign["spec"]["driver"] = "gpu.nvidia.com"
    [node, other] = view(known([theirs], slices=[SLICES[0], foreign])).nodes
    assert (node.allocated, node.claims) == ((0, 0), ())
    assert other.total == (0, 0)


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        (
            SLICES[1:],
            f"gpu-a: no driver gpu.cgpu publishes its GPUs: {DRIVERS}",
        ),
        (
            [slice_of("gpu-a"), SLICES[1]],
            "gpu-a: its driver offers no GPU now, and its log says why",
        ),
        (
            [tainted(slice_of("gpu-a", V100, V100), 1), SLICES[1]],
            "gpu-a: no more claims get gpu-1 (gpu.cgpu/lost), by taints",
        ),
    ],
)
def test_a_node_that_offers_not_all_of_its_gpus_says_why(slices: list[Any], problem: str) -> None:
    *tables, notes = format_claims(view(known(slices=slices)), format_summary, cores=False)
    assert notes == f"{problem}\n"
    [table] = tables
    [row] = [line.split() for line in table.splitlines() if line.startswith("gpu-a")]
    assert row[2].startswith("3524/")


def test_a_taint_without_effect_on_new_claims_is_none() -> None:
    slices = [tainted(slice_of("gpu-a", V100), 0, "None")]
    [node] = view(known((), slices=slices), NODES[:1]).nodes
    assert node.problem == ""


def test_a_gpu_that_is_lost_keeps_its_number_and_its_claims() -> None:
    [node] = view(known(slices=[slice_of("gpu-a", V100, first=1)]), NODES[:1]).nodes
    assert {number: each.name for number, each in node.devices.items()} == {0: "gpu-0", 1: "gpu-1"}
    assert [(each.allocated or (0, 0))[0] for each in node.devices.values()] == [3524, 5120]
    assert [each.total[0] for each in node.devices.values()] == [0, V100]
    assert node.problem == "claims have parts of gpu-0, which does not answer any more"


def test_a_device_whose_name_has_no_index_is_shown_behind_those_that_have() -> None:
    odd = slice_of("gpu-a", V100, V100)
    odd["spec"]["devices"][0]["name"] = "gpu-0-mig-1"
    [node] = view(known((), slices=[odd]), NODES[:1]).nodes
    assert {number: each.name for number, each in node.devices.items()} == {
        1: "gpu-1",
        2: "gpu-0-mig-1",
    }


def test_without_the_right_to_list_claims_what_is_offered_is_one_line() -> None:
    facts = known(None, problem="you have no right to it: 403")
    [line] = format_claims(view(facts), format_summary, cores=True)
    assert line == (
        "Not all is known of claims, to which 40320 MiB of GPUs are offered: you have no right to"
        " it: 403\n"
    )
    content = make_document([], None, None, view(facts))["claims"]
    assert content["problem"] == "you have no right to it: 403"
    assert (content["nodes"][0]["allocated"], content["nodes"][0]["total"]) == (None, 32320)


FULL = claim_of("full", ("gpu-a", "gpu-0", "16160Mi", "100"), pods=("x",))
MOST = claim_of("most", ("gpu-a", "gpu-1", "16000Mi", "95"), pods=("y",))
HALF = claim_of("half", ("gpu-b", "gpu-0", "4000Mi", "5"), pods=("z",))
MANY = [claim_of(f"s{n}", ("gpu-b", "gpu-0", "1Mi", "0")) for n in range(20)]
REASONS: list[tuple[Any, list[Any], str]] = [
    (
        claim_of("c", memory="5000Mi"),
        [FULL, MOST, HALF],
        "no GPU has 5000 MiB of memory left; the most is 4000 MiB of memory, on gpu-0 of gpu-b",
    ),
    (
        claim_of("c", memory="17Gi"),
        [],
        "no GPU has 17408 MiB of memory in all: the largest has 16160",
    ),
    (claim_of("c"), [MOST, FULL, HALF], "no GPU has 16160 MiB of memory left"),
    (
        claim_of("c", memory="10Mi", cores="96"),
        [FULL, MOST, HALF],
        "no GPU has 100 percent of its time left; the most is 95 percent of its time, on gpu-0 of",
    ),
    (
        claim_of("c", memory="5000Mi", cores="10"),
        [FULL, claim_of("m", ("gpu-a", "gpu-1", "1Gi", "95")), HALF],
        "no GPU has 5000 MiB of memory and 10 percent of its time left; the most is 15136 MiB",
    ),
    (claim_of("c", memory="1Gi", cores="101"), [], "cores=101: expected at most 100"),
    (claim_of("c", memory="1Gi", slots="2"), [], "slots=2: expected 1"),
    (
        claim_of("c", memory="1Mi"),
        [FULL, claim_of("f", ("gpu-a", "gpu-1", "16160Mi", "0")), *MANY],
        "no GPU has 1 MiB of memory left",
    ),
    (claim_of("c", memmory="1Gi"), [], "capacity memmory: expected memory, cores, slots"),
    (
        claim_of("c", **{"gpu.nvidia.com/memory": "1Gi"}),
        [],
        "capacity gpu.nvidia.com/memory: expected memory, cores, slots",
    ),
    (
        claim_of("c", exactly={"count": 3}, memory="1Gi"),
        [],
        "3 GPUs of one node are asked for, and no node has more than 2",
    ),
    (
        claim_of("c", exactly={"count": 2}, memory="1Gi"),
        [FULL],
        "2 GPUs of one node are asked for, and no node has 1024 MiB of memory left on more than 1",
    ),
    (
        claim_of("c", exactly={"deviceClassName": "gpu.nvidia.com"}, memory="17Gi"),
        [],
        "no GPU has 17408 MiB of memory in all",
    ),
]


@pytest.mark.parametrize(("asked", "others", "reason"), REASONS)
def test_dra_7_a_pod_that_waits_for_a_claim_shows_why(
    asked: Any, others: list[Any], reason: str
) -> None:
    classes = [device_class("gpu.nvidia.com"), device_class("theirs", "gpu.example.com")]
    facts = known([asked, *others], [pod_with("p", "c", waits="0/2 nodes")], classes=classes)
    [(pod, why)] = (view(facts).waiting or {}).items()
    assert pod.name == "p"
    assert why.startswith(f"claim c: {reason}")
    *_, table = format_claims(view(facts), format_summary, cores=False)
    heads, row = table.splitlines()
    assert heads.split() == ["POD", "NAMESPACE", "CLAIM", "WAITS"]
    assert row.split()[:3] == ["p", "default", "c"]
    assert row.endswith(why)


def test_a_gpu_with_20_claims_takes_no_more() -> None:
    facts = known([claim_of("c", memory="1Mi"), *MANY], [pod_with("p", "c")], SLICES[1:])
    [why] = (view(facts).waiting or {}).values()
    assert why == "claim c: no GPU takes one more claim: each has 20 at most"


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([], "no node gives GPUs to claims (label ack.node.gpu.schedule=dra, and a driver"),
        (
            [slice_of("gpu-a"), slice_of("gpu-b")],
            "gpu-a, gpu-b: no GPU is offered now, and the log of the driver says why",
        ),
        (
            [tainted(slice_of("gpu-a", V100), 0)],
            "no GPU takes claims now, by taints: gpu-0 of gpu-a (gpu.cgpu/lost)",
        ),
    ],
)
def test_where_no_gpu_is_offered_who_waits_is_shown_that(slices: list[Any], reason: str) -> None:
    facts = known([claim_of("c", memory="1Gi")], [pod_with("p", "c")], slices)
    [why] = (view(facts).waiting or {}).values()
    assert why.startswith(f"claim c: {reason}")


def test_where_there_is_room_the_scheduler_says_what_else_is_missing() -> None:
    claims = [claim_of("c", exactly={"selectors": [{"cel": {"expression": "false"}}]}, cores="98")]
    waiting = [pod_with("p", "c", waits="0/2 nodes:\n no"), pod_with("q", "c")]
    facts = known(claims, waiting)
    assert [*(view(facts).waiting or {}).values()] == [
        "there is room for claim c, and its scheduler says: 0/2 nodes: no",
        "there is room for claim c, and its scheduler has not answered yet: is it running?",
    ]


def test_of_alternatives_all_have_to_be_refused() -> None:
    """Before any is a reason: that of the first is shown."""
    large, small, theirs = (
        {"name": name, "deviceClassName": of, "capacity": {"requests": {"memory": size}}}
        for name, of, size in (
            ("large", "gpu.cgpu", "17Gi"),
            ("small", "gpu.cgpu", "1Gi"),
            ("theirs", "gpu.example.com", "1Gi"),
        )
    )
    claim = claim_of("c")
    for listed in ([large, small], [large, theirs]):
        claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": listed}]
        [why] = (view(known([claim], [pod_with("p", "c")])).waiting or {}).values()
        assert why.startswith("there is room for claim c")
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [large, large]}]
    [why] = (view(known([claim], [pod_with("p", "c")])).waiting or {}).values()
    assert why.startswith("claim c: no GPU has 17408 MiB of memory in all")


def test_pods_that_wait_for_others_devices_are_not_shown() -> None:
    claims = [claim_of("c", exactly={"deviceClassName": "gpu.nvidia.com"})]
    facts = known(claims, [pod_with("p", "c"), pod_with("q", "gone"), pod_with("r", "")])
    assert view(facts).waiting == {}
    assert view(known(), node="gpu-a").waiting is None


def reason(pod: Any, facts: ClaimFacts, events: Any = ()) -> str:
    machines = [read_node_facts(each) for each in NODES]
    sentence = explain_pod(pod, read_gpu_pod(pod), machines, [], events, claims=facts)
    return sentence.removeprefix("pod default/p ")


NOT_REGISTERED = {
    "type": "Warning",
    "reason": "FailedPrepareDynamicResources",
    "message": "DRA driver gpu.cgpu is not registered",
}


def test_dra_7_why_a_pod_with_claims_does_not_run() -> None:
    waits = pod_with("p", "c", waits="0/2 nodes")
    assert reason(waits, known([claim_of("c", memory="17Gi")])).startswith(
        "waits: claim c: no GPU has 17408 MiB of memory in all"
    )
    assert reason(waits, known()) == (
        "waits: claim c: there is none of this name in namespace default"
    )
    leaving = claim_of("c")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    assert reason(waits, known([leaving])) == "waits: claim c: it is being deleted"
    assert reason(pod_with("p", ""), known()).startswith("waits: the claim of its template is not")
    hidden = known(None, problem="you have no right to it: 403")
    assert reason(waits, hidden) == (
        "waits for claims that are not known (you have no right to it: 403), and its scheduler"
        " says: 0/2 nodes"
    )
    part = known([claim_of("c", memory="1Gi")], problem="403")
    assert reason(waits, part) == (
        "waits: what is left of GPUs is not known, and its scheduler says: 0/2 nodes"
    )
    gated = pod_with("p", "part")
    gated["spec"]["schedulingGates"] = [{"name": "a/b"}]
    assert reason(gated, known()).startswith("waits until its scheduling gates")
    theirs = known([claim_of("c", exactly={"deviceClassName": "theirs"})])
    assert reason(waits, theirs).endswith("and none of its claims is for gpu.cgpu")


def test_dra_7_why_a_pod_with_claims_waits_on_its_node() -> None:
    pod = bound(pod_with("p", "part"), "gpu-a")
    pod["status"]["phase"] = "Pending"
    away = known(slices=SLICES[1:])
    assert reason(pod, away, [NOT_REGISTERED]).startswith(
        "waits on gpu-a: no driver gpu.cgpu publishes GPUs of it: kubectl get pods"
    )
    assert reason(pod, known(), [NOT_REGISTERED]) == (
        "waits on gpu-a: FailedPrepareDynamicResources: DRA driver gpu.cgpu is not registered"
    )
    assert reason(pod, known()) == "waits on gpu-a: its containers are being created"
    pod["status"]["phase"] = "Running"
    assert reason(pod, away) == "runs on gpu-a"
    refused = {"reason": "CreateContainerError", "message": "cgpu: no"}
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": refused}}]
    assert reason(pod, known()) == "waits on gpu-a: container main: CreateContainerError: cgpu: no"


def test_the_documentation_has_the_keys_of_claims() -> None:
    facts = known([PART, claim_of("c", memory="17Gi")], [pod_with("p", "c")])
    content = make_document([], None, None, view(facts))["claims"]
    keys = {f"claims.{name}" for name in content} - {"claims.nodes", "claims.waiting"}
    keys |= {f"claims.waiting[].{name}" for name in content["waiting"][0]}
    node = content["nodes"][0]
    keys |= {f"claims.nodes[].{name}" for name in node} - {
        "claims.nodes[].devices",
        "claims.nodes[].claims",
    }
    keys |= {f"claims.nodes[].devices[].{name}" for name in node["devices"][0]}
    [claim] = node["claims"]
    keys |= {f"claims.nodes[].claims[].{name}" for name in claim} - {
        "claims.nodes[].claims[].devices"
    }
    keys |= {f"claims.nodes[].claims[].devices[].{name}" for name in claim["devices"][0]}
    listed = set()
    for row in re.findall(r"\n\| (`claims\.[^|]*) \|", DOCUMENT.read_text()):
        first, *others = re.findall(r"`([^`]+)`", row)
        listed |= {first, *(first.rpartition(".")[0] + each for each in others)}
    assert listed == keys
    assert make_document([], None, None)["claims"] is None
