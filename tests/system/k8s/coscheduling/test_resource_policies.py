"""ResourcePolicies with the real kube-scheduler, and a real ReplicaSet that scales in.

COS-1 to COS-5.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s import names
from cgpu_k8s.apiserver.client import MERGE, open_client
from cgpu_k8s.apiserver.errors import ApiError, NotFoundError
from cgpu_k8s.apiserver.resources import NODES, PODS, RESOURCE_POLICIES
from lab.cluster import crowd
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane, control_plane, controllers
from lab.kubernetes.objects import node, pod, pod_path, pods_path
from lab.kubernetes.programs import Release, newer
from lab.kubernetes.scheduler import install, scheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

Json = dict[str, Any]
PATIENCE = 120.0
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
POOLS = {"reserved-0": "reserved", "reserved-1": "reserved", "spot-0": "spot", "other-0": "other"}
VIRTUAL = {"key": "virtual-kubelet.io/provider", "value": "x", "effect": "NoSchedule"}
APPS = "/apis/apps/v1/namespaces/default"
SETS, DEPLOYMENTS = f"{APPS}/replicasets", f"{APPS}/deployments"
# The published documents' kind of policy: two pools, of which each has a limit, and virtual nodes.
UNITS = [
    {"nodeSelector": {"pool": "reserved"}, "max": 3},
    {"nodeSelector": {"pool": "spot"}, "max": 4, "podLabels": {"capacity": "spot"}},
    {"resource": "eci"},
]


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        install(plane)
        for name, pool in POOLS.items():
            create(plane, NODES.path(), node(name, {"pool": pool}, **ROOM))
        virtual = node("virtual-0", {"type": "virtual-kubelet"}, **ROOM)
        create(plane, NODES.path(), {**virtual, "spec": {"taints": [VIRTUAL]}})
        with scheduling(plane, led=True):
            yield plane


@pytest.fixture(name="plane")
def _plane(cluster: ControlPlane) -> Iterator[ControlPlane]:
    yield cluster
    with contextlib.suppress(NotFoundError):  # a test has done so
        crowd.asked(cluster, lambda client: client.delete(policy_path("web")))
    crowd.asked(cluster, crowd.remove_pods)


def create(plane: ControlPlane, path: str, item: Json) -> None:
    crowd.asked(plane, lambda client: client.post(path, item))


def policy_path(name: str = "") -> str:
    return RESOURCE_POLICIES.path(name, namespace="default")


def apply_policy(plane: ControlPlane, **spec: Any) -> None:
    """Create the policy, once the API server serves the kind."""
    item = {
        "apiVersion": "scheduling.alibabacloud.com/v1alpha1",
        "kind": "ResourcePolicy",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "strategy": "required", "units": UNITS, **spec},
    }

    def is_created() -> bool:
        try:
            create(plane, policy_path(), item)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    wait_until(is_created, "the policy is created", PATIENCE)
    wait_until(lambda: plane.read(policy_path("web")).get("status"), "it is seen", PATIENCE)


def web(name: str) -> Json:
    """A pod of the policy; without GPUs, and ended at once."""
    made = pod(name, schedulerName="ack-co-scheduler", terminationGracePeriodSeconds=0)
    made["metadata"]["labels"] = {"app": "web"}
    return made


def slow(name: str, rev: str) -> Json:
    """A pod of which a node has room for one, and which goes on after it was deleted."""
    made = web(name)
    made["metadata"]["labels"]["rev"] = rev
    made["spec"] |= {"terminationGracePeriodSeconds": 300}
    made["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "40"}}
    return made


@contextlib.contextmanager
def rolling(plane: ControlPlane) -> Iterator[Callable[[], None]]:
    """Two pods, and what replaces them: a Deployment, or where no controller is, the test."""
    if not plane.release.has_controllers:
        for number in range(2):
            create(plane, pods_path(), slow(f"old-{number}", "1"))

        def roll() -> None:
            for number in range(2):
                crowd.asked(plane, lambda client, n=number: client.delete(pod_path(f"old-{n}")))
                create(plane, pods_path(), slow(f"new-{number}", "2"))

        yield roll
        return
    template = {key: slow("any", "1")[key] for key in ("metadata", "spec")}
    template["metadata"].pop("name")
    item = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}},
            "template": template,
        },
    }
    change = {"spec": {"template": {"metadata": {"labels": {"rev": "2"}}}}}
    with controllers(
        plane, "deployment-controller", "replicaset-controller", "serviceaccount-controller"
    ):
        create(plane, DEPLOYMENTS, item)
        try:
            yield lambda: crowd.asked(
                plane, lambda client: client.patch(f"{DEPLOYMENTS}/web", change, MERGE)
            )
        finally:
            crowd.asked(plane, lambda client: client.delete(f"{DEPLOYMENTS}/web"))
            for each in plane.read(SETS)["items"]:
                name = each["metadata"]["name"]
                crowd.asked(plane, lambda client, gone=name: client.delete(f"{SETS}/{gone}"))


def waiting(plane: ControlPlane, words: str) -> list[str]:
    """The pods whose scheduler gives this reason."""
    return [
        each["metadata"]["name"]
        for each in plane.read(pods_path())["items"]
        if any(
            words in of.get("message", "")
            for of in each["status"].get("conditions", [])
            if of["status"] == "False"
        )
    ]


def where(plane: ControlPlane) -> dict[str, str]:
    """The kind of node of each bound pod."""
    found = {}
    for each in plane.read(pods_path())["items"]:
        if to := each["spec"].get("nodeName"):
            found[each["metadata"]["name"]] = to.rpartition("-")[0]
    return found


def test_cos_1_pods_fill_units_in_order_up_to_their_max(plane: ControlPlane) -> None:
    """COS-1, COS-2, COS-5: without a GPU; each pod has the labels and the cost of its unit."""
    apply_policy(plane)
    for number in range(10):
        create(plane, pods_path(), web(f"web-{number}"))
    wait_until(lambda: len(where(plane)) == 10, "all pods are bound", PATIENCE)
    assert Counter(where(plane).values()) == {"reserved": 3, "spot": 4, "virtual": 3}

    def has_costs() -> bool:
        costs = {"reserved": "300", "spot": "200", "virtual": "100"}
        return all(
            each["metadata"].get("annotations", {}).get(names.DELETION_COST)
            == costs[each["spec"]["nodeName"].rpartition("-")[0]]
            for each in plane.read(pods_path())["items"]
        )

    wait_until(has_costs, "each pod has its cost", PATIENCE)
    for each in plane.read(pods_path())["items"]:
        is_spot = each["spec"]["nodeName"].startswith("spot")
        assert (each["metadata"]["labels"].get("capacity") == "spot") == is_spot
    wait_until(
        lambda: (
            [unit["pods"] for unit in plane.read(policy_path("web"))["status"]["units"]]
            == [3, 4, 3]
        ),
        "the status has the counts",
        PATIENCE,
    )


def test_cos_3_a_pod_waits_for_room_in_its_unit_as_long_as_the_policy_has_it_wait(
    plane: ControlPlane,
) -> None:
    """COS-3: nothing else happens meanwhile that would wake its scheduler."""
    full = {"nodeSelector": {"pool": "none"}}
    following = {"policy": "TimeoutOrExceedMax", "timeout": "6s"}
    apply_policy(
        plane, units=[full, {"nodeSelector": {"pool": "spot"}}], whenTryNextUnits=following
    )
    create(plane, pods_path(), web("patient"))
    condition = "the pod waits up to 6 s for one"

    def waits() -> bool:
        shown = plane.read(pod_path("patient"))["status"].get("conditions", [])
        return any(condition in each.get("message", "") for each in shown)

    wait_until(waits, "it waits", PATIENCE)
    assert where(plane) == {}
    wait_until(lambda: where(plane) == {"patient": "spot"}, "its time is over", 30.0)


def test_cos_3_a_rolling_update_stays_in_its_unit(plane: ControlPlane) -> None:
    """COS-3: unit 1 has room for two pods, and the old ones end slowly; no kubelet runs here."""
    units = [{"nodeSelector": {"pool": pool}} for pool in ("reserved", "spot")]
    apply_policy(plane, units=units, whenTryNextUnits={"policy": "LackResourceAndNoTerminating"})
    with rolling(plane) as roll:
        wait_until(lambda: len(where(plane)) == 2, "the old pods are bound", PATIENCE)
        old = {*where(plane)}
        roll()
        held = "2 of its pods are ending"
        wait_until(lambda: len(waiting(plane, held)) == 2, "the new pods wait", PATIENCE)
        assert where(plane).keys() == old
        for count, name in enumerate(old, 1):
            crowd.asked(plane, lambda client, gone=name: crowd.remove_pod(client, gone))
            wait_until(
                lambda of=count: len(where(plane).keys() - old) == of, f"{count} is bound", PATIENCE
            )
        assert [*where(plane).values()] == ["reserved"] * 2


def test_cos_5_pods_go_on_when_their_policy_is_deleted(plane: ControlPlane) -> None:
    """COS-4, COS-5: they keep what their deletion costs; new ones have no unit and no cost."""
    apply_policy(plane, units=[{"nodeSelector": {"pool": "reserved"}, "max": 1}])
    for name in ("first", "second"):
        create(plane, pods_path(), web(name))
        wait_until(lambda: where(plane), "the first is bound", PATIENCE)
    wait_until(lambda: waiting(plane, "has 1 of its 1 pods"), "the second waits", PATIENCE)
    crowd.asked(plane, lambda client: client.delete(policy_path("web")))
    wait_until(lambda: len(where(plane)) == 2, "the second is bound", PATIENCE)
    create(plane, pods_path(), web("third"))
    wait_until(lambda: len(where(plane)) == 3, "the third is bound", PATIENCE)
    notes = {
        each["metadata"]["name"]: each["metadata"].get("annotations", {})
        for each in plane.read(pods_path())["items"]
    }
    costs = {name: of.get(names.DELETION_COST) for name, of in notes.items()}
    assert costs == {"first": "100", "second": None, "third": None}


def test_cos_4_a_policy_that_is_edited_counts_anew(plane: ControlPlane) -> None:
    """COS-4; who waits is tried again at once."""
    only = [{"nodeSelector": {"pool": "reserved"}, "max": 1}]
    apply_policy(plane, units=only)
    for number in range(3):
        create(plane, pods_path(), web(f"web-{number}"))
    wait_until(lambda: len(where(plane)) == 1, "one is bound", PATIENCE)
    for most in (2, 3):
        spec = {"spec": {"units": [{**only[0], "max": most}]}}
        crowd.asked(plane, lambda client, sent=spec: client.patch(policy_path("web"), sent, MERGE))
        wait_until(lambda: len(where(plane)) >= most, f"{most} are bound", PATIENCE)  # noqa: B023
        assert len(where(plane)) == most


@newer
def test_cos_5_a_replica_set_scales_in_from_the_last_unit_on(plane: ControlPlane) -> None:
    """COS-5: the controller of the release."""
    apply_policy(plane)
    template = {"metadata": {"labels": {"app": "web"}}, "spec": web("any")["spec"]}
    selector = {"matchLabels": {"app": "web"}}
    item = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web"},
        "spec": {"replicas": 10, "selector": selector, "template": template},
    }

    def scale(count: int) -> None:
        change = {"spec": {"replicas": count}}
        crowd.asked(plane, lambda client: client.patch(f"{SETS}/web", change, MERGE))

    with controllers(plane, "replicaset-controller", "serviceaccount-controller"):
        create(plane, SETS, item)
        wait_until(lambda: len(where(plane)) == 10, "all pods are bound", PATIENCE)
        assert Counter(where(plane).values()) == {"reserved": 3, "spot": 4, "virtual": 3}
        for count, expected in (
            (7, {"reserved": 3, "spot": 4}),
            (4, {"reserved": 3, "spot": 1}),
            (2, {"reserved": 2}),
            (5, {"reserved": 3, "spot": 2}),
        ):
            scale(count)
            wait_until(lambda of=count: len(where(plane)) == of, f"{count} pods are left", PATIENCE)
            assert Counter(where(plane).values()) == expected
        crowd.asked(plane, lambda client: client.delete(f"{SETS}/web"))


def test_cos_1_policies_hold_while_many_pods_come_at_once(plane: ControlPlane) -> None:
    """COS-1, COS-2: 60 pods of two values of a key, each up to the max of its own."""
    units = [{"nodeSelector": {"pool": "reserved"}, "max": 10}, {"nodeSelector": {"pool": "spot"}}]
    apply_policy(plane, units=units, matchLabelKeys=["rev"])

    async def create_all() -> None:
        async with open_client(plane.cluster()) as client:
            made = [web(f"web-{number}") for number in range(60)]
            for number, each in enumerate(made):
                each["metadata"]["labels"]["rev"] = str(number % 2)
            await asyncio.gather(*(client.post(pods_path(), each) for each in made))

    asyncio.run(create_all())
    wait_until(lambda: len(where(plane)) == 60, "all pods are bound", PATIENCE)
    found = Counter(
        (each["metadata"]["labels"]["rev"], each["spec"]["nodeName"].rpartition("-")[0])
        for each in plane.read(PODS.path(namespace="default"))["items"]
    )
    assert found == {(rev, kind): n for rev in "01" for kind, n in (("reserved", 10), ("spot", 20))}
