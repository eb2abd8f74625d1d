"""Units and groups hold through changes of leaders and outages: of virtual time, which costs none.

COS-1, COS-2, COS-7, K8S-12. A scheduler is played; extenders and informers are whole.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import NoAnswerError
from cgpu_k8s.apiserver.resources import LEASES, NODES, PODS, RESOURCE_POLICIES
from cgpu_k8s.apiserver.tasks import cancel_tasks
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderBindingArgs
from cgpu_k8s.scheduler.informers import ClusterInformer, WatchedLease
from cgpu_k8s.scheduler.leader_lease import LeaderLease
from cgpu_k8s.scheduler.server import Extender
from lab.cluster.in_memory import REFUSED, SILENT, InMemory
from lab.kubernetes.fake_server import parsed
from lab.kubernetes.objects import node, pod
from lab.kubernetes.store import Key
from lab.runs import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

pytestmark = pytest.mark.unit

Json = dict[str, Any]
MAX = {"a": 50, "b": 100}
MACHINES = tuple(f"{pool}{n}" for pool in "abc" for n in range(2))
CHANGES = 10
# Seconds: a leader renews its lease for so long, and another one takes it so long after that.
TERM, GONE = 5.0, 13.0
AWAY = 300.0


def create(api: InMemory, path: str, body: Json) -> Json:
    kind, namespace, _, _ = parsed(path)
    return api.change(lambda store: store.create(kind, namespace, body))


class Busy(InMemory):
    """An API server that takes its time over bindings, and loses some replies."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.most = Counter[str]()

    async def post(self, path: str, body: Json, before: Callable[[], None] | None = None) -> Json:
        if before:
            before()  # the lease may be lost while the request is on its way
        await asyncio.sleep(self.chance.choice((0.0, 0.1, 2.0)))
        answer = await super().post(path, body)
        self.most |= self.count()
        if self.chance.random() < 0.1:
            raise NoAnswerError("the reply is lost")
        return answer

    def bound(self) -> list[Json]:
        return [each for each in self.items("pods") if each["spec"].get("nodeName")]

    def count(self) -> Counter[str]:
        """How many pods are in each pool."""
        return Counter(each["spec"]["nodeName"][0] for each in self.bound())


def fill(api: InMemory) -> None:
    """Nodes with GPUs in three pools, and a policy for two of them up to their max."""
    for name in MACHINES:
        made = node(name, {"ack.node.gpu.schedule": "cgpu", "pool": name[0]})
        facts = [OfferedGpu(f"GPU-{name}-{n}", n, 16160) for n in range(8)]
        made["metadata"]["annotations"] = {"cgpu/gpus": write_facts("cgpu", facts)}
        create(api, NODES.path(), made)
    units: list[Json] = [
        {"nodeSelector": {"pool": pool}, "max": most} for pool, most in MAX.items()
    ]
    units.append({"nodeSelector": {"pool": "c"}})
    rule = {"metadata": {"name": "web"}, "spec": {"units": units}}
    create(api, RESOURCE_POLICIES.path(namespace="default"), rule)
    lease = {"metadata": {"name": "s"}, "spec": {}}
    create(api, LEASES.path(namespace="default"), lease)


def make_pods(groups: int, singles: int, chance: random.Random) -> list[Json]:
    """Pods of groups of four, and single ones, of which the last ones are the youngest."""
    made = [pod(f"single-{n}") for n in range(singles)]
    last = [made.pop() for _ in range(singles // 8)]
    for number in range(4 * groups):
        each = pod(f"group-{number}", {"aliyun.com/gpu-mem": "2"})
        of = {"gpu-topology": f"g{number // 4}", "gpu-topology-replica": "4"}
        each["metadata"]["labels"] = of
        made.append(each)
    chance.shuffle(made)
    return made + last


async def renew(api: InMemory, host: str, seconds: float) -> None:
    """A scheduler renews its lease as long as it reaches the API server."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    kind, namespace, name, _ = parsed(LEASES.path("s", namespace="default"))
    while loop.time() < end:
        if not api.away:
            when = datetime.fromtimestamp(loop.time(), timezone.utc).isoformat()
            spec = {"spec": {"holderIdentity": f"{host}_1", "renewTime": when}}
            api.change(lambda store, sent=spec: store.patch(Key(kind, namespace, name), sent))
        await asyncio.sleep(1)


async def schedule(made: Extender, api: Busy, is_active: Callable[[], bool]) -> None:
    """Ask about pods that are on no node, and bind them beside each other."""
    bindings: set[asyncio.Future[object]] = set()
    while True:
        await asyncio.sleep(0.5)
        waiting = [each for each in api.items("pods") if not each["spec"].get("nodeName")]
        if not is_active():
            continue
        for item in api.chance.sample(waiting, min(4, len(waiting))):
            asked = json.dumps({"Pod": item, "NodeNames": MACHINES}).encode()
            with suppress(CgpuError):
                answer: Any = await made._answer_filter(asked)  # noqa: SLF001 (without HTTP)
                for to in api.chance.sample(answer["NodeNames"], min(1, len(answer["NodeNames"]))):
                    meta = item["metadata"]
                    of = ExtenderBindingArgs("default", meta["name"], meta["uid"], to)
                    bindings.add(asyncio.ensure_future(made._try_bind(of)))  # noqa: SLF001


@asynccontextmanager
async def extender(api: Busy, host: str, is_active: Callable[[], bool]) -> AsyncIterator[Extender]:
    """An extender that runs beside a scheduler, which asks while it believes that it leads."""
    cache, lease, client = SchedulerCache(), LeaderLease(host), api
    following = ClusterInformer(
        client,  # type: ignore[arg-type]
        cache,
        WatchedLease("default", "s", lease),
        lambda *_: None,
    )
    missing, heard = following.find_missing, following.get_heard_times
    made = Extender(cache, client, lease, missing, heard, lambda *_: None)
    works: list[Coroutine[Any, Any, None]] = [
        following.run(made.binder.resolve_unconfirmed),
        schedule(made, api, is_active),
    ]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield made
        assert not any(each.done() for each in tasks), tasks
    finally:
        await cancel_tasks(*tasks)


async def submit(api: InMemory, pods: list[Json], seconds: float) -> None:
    """Create pods, evenly over some time."""
    for each in pods:
        create(api, PODS.path(namespace="default"), each)
        await asyncio.sleep(seconds / len(pods))


async def await_bindings(api: Busy) -> None:
    """Return when all pods are bound."""
    for _ in range(300):
        if len(api.bound()) == len(api.items("pods")):
            return
        await asyncio.sleep(1)


def check(api: Busy, count: int) -> None:
    """All pods are bound: each unit to its max, and never beyond; groups in one unit."""
    found = api.count()
    assert found == {**MAX, "c": count - sum(MAX.values())}
    assert api.most == found
    pools: dict[str, set[str]] = {}
    for each in api.bound():
        group = each["metadata"].get("labels", {}).get("gpu-topology", each["metadata"]["name"])
        pools.setdefault(group, set()).add(each["spec"]["nodeName"][0])
    assert all(len(of) == 1 for of in pools.values()), pools


def test_200_pods_are_in_their_units_after_ten_changes_of_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """COS-1, COS-7: a leader that is replaced goes on asking, and its bindings arrive late."""

    async def act() -> None:
        chance = random.Random(5)
        api = Busy(chance)
        fill(api)
        active = {"one"}
        terms = Counter[str]()
        async with (
            extender(api, "one", lambda: "one" in active) as one,
            extender(api, "two", lambda: "two" in active) as two,
        ):
            pods = make_pods(10, 160, chance)
            creating = asyncio.ensure_future(submit(api, pods, CHANGES * (TERM + GONE)))
            for number in range(CHANGES + 1):
                host = ("one", "two")[number % 2]
                active.add(host)
                before = len(api.bound())
                renewing = asyncio.ensure_future(
                    renew(api, host, TERM if number < CHANGES else 1000)
                )
                await asyncio.sleep(2)
                active.intersection_update({host})
                await asyncio.sleep(TERM + GONE - 2)
                terms[host] += len(api.bound()) > before
            await creating
            await await_bindings(api)
            renewing.cancel()
            assert {*terms} == {"one", "two"}
            assert terms.total() == CHANGES + 1
            assert one.find_problem() == ""
            assert "does not lead" in two.find_problem()
        check(api, 200)

    virtual_time.run(act(), monkeypatch)


@pytest.mark.parametrize("how", [REFUSED, SILENT])
def test_units_and_groups_hold_while_the_api_server_is_away_for_five_minutes(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COS-2, COS-7: with bindings on their way, and groups of which some pods are bound."""

    async def act() -> None:
        chance = random.Random(7)
        api = Busy(chance)
        fill(api)
        async with extender(api, "one", lambda: True) as made:
            renewing = asyncio.ensure_future(renew(api, "one", 1e6))
            pods = make_pods(10, 130, chance)
            await asyncio.sleep(5)
            creating = asyncio.ensure_future(submit(api, pods, 40))
            await asyncio.sleep(20)
            api.leave(how)
            there = len(api.bound())
            assert 20 < there < 150
            await asyncio.sleep(AWAY)
            assert len(api.bound()) == there
            assert "has not renewed its lease" in made.find_problem()
            api.leave("")
            await creating
            await await_bindings(api)
            renewing.cancel()
        check(api, 170)

    virtual_time.run(act(), monkeypatch)
