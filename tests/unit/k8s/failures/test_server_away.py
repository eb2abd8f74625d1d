"""The API server is away for five minutes: of virtual time, which costs none. K8S-12."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s.admission.cert_rotation import CertRotator
from cgpu_k8s.admission.certificates import Keys, renew_keys
from cgpu_k8s.apiserver.errors import UnreachableError
from cgpu_k8s.apiserver.resources import LEASES, NODES, PODS
from cgpu_k8s.apiserver.tasks import cancel_tasks
from cgpu_k8s.node.agent import Agent, Place, Plugins
from cgpu_k8s.node.auditor import ShareAuditor
from cgpu_k8s.node.gpu_observer import GpuObserver
from cgpu_k8s.node.node_resources import DriverGpu
from cgpu_k8s.node.shares import Shares
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.extender_api import ExtenderBindingArgs
from cgpu_k8s.scheduler.informers import ClusterInformer, WatchedLease
from cgpu_k8s.scheduler.leader_lease import LeaderLease
from cgpu_k8s.scheduler.server import Extender
from cgpu_node import podspecs
from lab.cluster.in_memory import REFUSED, SILENT, InMemory
from lab.kubernetes.fake_server import parsed
from lab.kubernetes.objects import node, pod
from lab.kubernetes.store import Key
from lab.runs import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Json = dict[str, Any]

pytestmark = pytest.mark.unit

AWAY = 300.0  # seconds
SCHEDULE = "ack.node.gpu.schedule"
GPUS = [DriverGpu(f"GPU-{n}", n, "Tesla V100", 16160) for n in range(2)]
LIMITS = {"aliyun.com/gpu-mem": "8"}
both = pytest.mark.parametrize("how", [REFUSED, SILENT])


def key(path: str) -> Key:
    kind, namespace, name, _ = parsed(path)
    return Key(kind, namespace, name)


def patch(api: InMemory, path: str, body: Json) -> None:
    """What somebody writes who reaches the API server."""
    api.change(lambda store: store.patch(key(path), body, strategic=False))


def create(api: InMemory, path: str, body: Json) -> Json:
    at = key(path)
    return api.change(lambda store: store.create(at.kind, at.namespace, body))


class Parts:
    """What an agent stands between: driver, engine and plugin."""

    def __init__(self) -> None:
        self.gpus_now: tuple[DriverGpu, ...] | None = tuple(GPUS)
        self.holds = asyncio.Event()
        self.holds.set()

    async def list_gpus(self) -> tuple[DriverGpu, ...] | None:
        return self.gpus_now

    def close(self) -> None:
        pass

    async def find_problem(self, _node: Json) -> str:
        return ""

    async def publish(self, devices: Json) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def agent(api: InMemory, folder: Path, parts: Parts) -> AsyncIterator[list[str]]:
    """A node's agent that runs; the lines of its log."""
    log: list[str] = []
    place = Place("gpu-a", folder / "kubernetes.json", str(folder))
    stands: Any = parts
    made = Agent(
        place,
        api,  # type: ignore[arg-type]
        GpuObserver(stands, stands),
        ShareAuditor(Shares(str(folder)), place.setting),
        Plugins(stands, None, lambda _: ""),
        lambda event, fields: log.append(f"{event} {fields.get('error', '')}"),
    )
    task = asyncio.ensure_future(made.run())
    try:
        yield log
        assert not task.done(), task.exception()
    finally:
        await cancel_tasks(task)


def facts(api: InMemory) -> Json:
    [item] = api.items("nodes")
    found: Json = json.loads(item["metadata"]["annotations"]["cgpu/gpus"])
    return found


def healthy(api: InMemory) -> list[bool]:
    return [gpu["healthy"] for gpu in facts(api)["gpus"]]


@both
@pytest.mark.parametrize("seed", range(5))
def test_k8s_12_an_agent_goes_on_where_the_cluster_is_by_then(
    how: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile a GPU is lost, and somebody who reaches the API server changes the label."""

    async def act() -> None:
        api, parts, state = InMemory(), Parts(), str(tmp_path)
        create(api, NODES.path(), node("gpu-a", {SCHEDULE: "core_mem"}, cpu="4"))
        async with agent(api, tmp_path, parts) as log:
            await asyncio.sleep(30 + seed)
            assert facts(api)["mode"] == "core_mem"
            assert podspecs.is_current(state)
            wrote, asked = len(api.done), len(api.calls)
            api.leave(how)
            await asyncio.sleep(AWAY / 2)
            assert not podspecs.is_current(state)  # pods start without it
            parts.gpus_now = tuple(GPUS[:1])
            patch(api, NODES.path("gpu-a"), {"metadata": {"labels": {SCHEDULE: "cgpu"}}})
            await asyncio.sleep(AWAY / 2)
            assert len(api.done) == wrote
            assert len(api.calls) - asked < AWAY / 2  # watches and writes, by their back-off
            assert len(log) < 20
            api.leave("")
            await asyncio.sleep(90)
            assert facts(api)["mode"] == "cgpu"
            assert healthy(api) == [True, False]
            assert podspecs.is_current(state)
            notes = [(each.body or {}).get("metadata", {}) for each in api.done[wrote:]]
            assert not any("core_mem" in json.dumps(each) for each in notes)
            wrote, asked = len(api.done), len(api.calls)
            await asyncio.sleep(AWAY)
            assert (len(api.done), len(api.calls) - asked < 10) == (wrote, True)

    virtual_time.run(act(), monkeypatch)


def test_a_driver_that_begins_holds_nothing_else_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        api, parts = InMemory(), Parts()
        create(api, NODES.path(), node("gpu-a", {SCHEDULE: "core_mem"}, cpu="4"))
        async with agent(api, tmp_path, parts):
            await asyncio.sleep(30)
            parts.gpus_now = None
            patch(api, NODES.path("gpu-a"), {"metadata": {"labels": {SCHEDULE: "cgpu"}}})
            await asyncio.sleep(10)
            assert facts(api)["mode"] == "cgpu"
            assert healthy(api) == [True, True]

    virtual_time.run(act(), monkeypatch)


def sharing_node() -> Json:
    made = node("gpu-a", {SCHEDULE: "cgpu"})
    described = [OfferedGpu(gpu.uuid, gpu.index, gpu.mib) for gpu in GPUS]
    made["metadata"]["annotations"] = {"cgpu/gpus": write_facts("cgpu", described)}
    return made


async def renew(api: InMemory) -> None:
    """A scheduler renews its lease as long as it reaches the API server."""
    while True:
        await asyncio.sleep(2)
        if not api.away:
            now = datetime.fromtimestamp(asyncio.get_running_loop().time(), timezone.utc)
            about = {"spec": {"holderIdentity": "host_1", "renewTime": now.isoformat()}}
            patch(api, LEASES.path("s", namespace="default"), about)


@asynccontextmanager
async def extender(api: InMemory) -> AsyncIterator[Extender]:
    """An extender that runs beside a leading scheduler."""
    cache, leader_lease = SchedulerCache(), LeaderLease("host")
    create(api, LEASES.path(namespace="default"), {"metadata": {"name": "s"}, "spec": {}})
    client: Any = api
    following = ClusterInformer(
        client, cache, WatchedLease("default", "s", leader_lease), lambda *_: None
    )
    made = Extender(
        cache,
        client,
        leader_lease,
        following.find_missing,
        following.get_heard_times,
        lambda *_: None,
    )
    tasks = [
        asyncio.ensure_future(following.run(made.binder.resolve_unconfirmed)),
        asyncio.ensure_future(renew(api)),
    ]
    try:
        await asyncio.sleep(20)
        yield made
        assert not any(each.done() for each in tasks)
    finally:
        await cancel_tasks(*tasks)


def waiting(api: InMemory, name: str) -> ExtenderBindingArgs:
    made = create(api, PODS.path(namespace="default"), pod(name, LIMITS))
    return ExtenderBindingArgs("default", name, made["metadata"]["uid"], "gpu-a")


async def bind(made: Extender, asked: ExtenderBindingArgs) -> str:
    """What a call to bind is answered, without the HTTP around it."""
    return (await made._try_bind(asked))[1]  # noqa: SLF001 (connections take real time)


@both
def test_k8s_12_an_extender_binds_nothing_meanwhile_and_everything_once_afterwards(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        api = InMemory()
        create(api, NODES.path(), sharing_node())
        async with extender(api) as made:
            pods = [waiting(api, f"p{n}") for n in range(3)]
            await asyncio.sleep(1)
            api.leave(how)
            asked, outcomes = len(api.calls), []
            for second in range(0, int(AWAY), 5):
                outcomes.append(await bind(made, pods[second // 5 % 3]))
                await asyncio.sleep(5)
            sent = [each for each in api.calls[asked:] if each.method == "POST"]
            assert len(sent) <= 2  # until the lease was not renewed for 10 s
            assert all(outcomes)
            assert "has not renewed its lease" in outcomes[-1]
            assert len(api.calls) - asked < 3 / 4 * AWAY  # four watches, by their back-off
            assert api.done == []
            api.leave("")
            await asyncio.sleep(90)
            for each in pods:
                await bind(made, each)
            await asyncio.sleep(5)
        bound = [each for each in api.items("pods") if each["spec"].get("nodeName")]
        decided = [each["metadata"]["annotations"]["cgpu/allocation"] for each in bound]
        used = [next(iter(json.loads(each)["containers"]["main"])) for each in decided]
        assert sorted(used) == ["GPU-0", "GPU-1"]
        assert len(api.done) == 2

    virtual_time.run(act(), monkeypatch)


def test_a_guard_goes_on_showing_its_certificate_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Away:
        async def get(self, path: str) -> Json:
            calls.append(path)
            raise UnreachableError("the API server cannot be reached")

        put: Callable[..., Awaitable[Json]]
        patch: Callable[..., Awaitable[Json]]

    async def act() -> None:
        log: list[str] = []
        rotator = CertRotator(Away(), "kube-system", "guard", lambda event, _: log.append(event))
        rotator.shown = shown = renew_keys(Keys(), "guard", datetime.now(timezone.utc))
        task = asyncio.ensure_future(rotator.run())
        await asyncio.sleep(AWAY)
        await cancel_tasks(task)
        assert rotator.shown == shown
        assert log == ["failed"]
        assert len(calls) <= 3 * AWAY / 10  # two configurations and a Secret, every 10 s

    virtual_time.run(act(), monkeypatch)
