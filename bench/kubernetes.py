"""Figures of the scheduler's extender and of ``kubectl inspect cgpu``, without a scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import ClientError, ClientSession, web

from bench.shares import Line
from cgpu_k8s.names import COUNT, MEMORY
from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import OfferedGpu, write_facts
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.placing import allocate_for_binding
from cgpu_k8s.scheduler.scheduling import Scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
NODES, GPUS, MIB = 1000, 8, 16160
CALLS = 3000
PODS = 10_000
PAGE = 500
INSPECTIONS = 5
SAMPLED = 420  # of 1,000 nodes: what kube-scheduler looks at unless it is configured
SIZES = (1, 2, 3, 4, 6, 8, 12)
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def node(number: int) -> Json:
    """A node as the API server has it, without what nobody reads here."""
    name = f"node-{number:04}"
    facts = [OfferedGpu(f"GPU-{number:08x}-0000-4000-8000-{n:012x}", n, MIB) for n in range(GPUS)]
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"ack.node.gpu.schedule": "cgpu"},
            "annotations": {"cgpu/gpus": write_facts("cgpu", facts)},
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "capacity": {MEMORY: str(GPUS * facts[0].units), COUNT: str(GPUS)},
        },
    }


def pod(number: int, mem: int) -> Json:
    """A pod with about as much in it as a real one: some 4 kB."""
    name = f"train-{number:05}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"8f3c1f0e-6d2b-4c55-9a70-{number:012x}",
            "resourceVersion": "1",
            "labels": {"app": "train", "team": "vision"},
            "ownerReferences": [{"uid": f"job-{number // 10}", "controller": True}],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"x": "y" * 1500}}}],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "env": [{"name": f"OPTION_{n}", "value": "x" * 40} for n in range(15)],
                    "resources": {"limits": {"aliyun.com/gpu-mem": str(mem), "cpu": "1"}},
                }
            ],
            "tolerations": [{"key": f"key-{n}", "operator": "Exists"} for n in range(4)],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": f"Condition{n}", "status": "True"} for n in range(5)],
        },
    }


def bound(given: Json, allocation: Allocation, cache: SchedulerCache) -> Json:
    """The pod after its binding."""
    gpus = cache.offers[allocation.node].gpus
    notes = write_annotations(allocation, read_pod(given), gpus, 1)
    meta, spec = given["metadata"], given["spec"]
    return {
        **given,
        "metadata": {**meta, "annotations": notes},
        "spec": {**spec, "nodeName": allocation.node},
    }


def _cluster() -> SchedulerCache:
    cache = SchedulerCache()
    cache.replace_nodes(read_node(node(n)) for n in range(NODES))
    return cache


def filters() -> list[float]:
    """Milliseconds of each of CALLS calls of filter, from the bytes asked to those answered.

    Pods of several sizes come, are bound to our first choice, and end, on NODES nodes.
    """
    chance, cache = random.Random(1), _cluster()
    scheduling, names, live, took = Scheduling(cache), sorted(cache.offers), [], []
    gc.collect()
    gc.freeze()
    for number in range(CALLS):
        given = pod(number, chance.choice(SIZES))
        body = json.dumps({"Pod": given, "Nodes": None, "NodeNames": names}).encode()
        begin = time.perf_counter()
        json.dumps(scheduling.filter(extender_api.read_extender_args(body))).encode()
        took.append((time.perf_counter() - begin) * 1000)
        uid = given["metadata"]["uid"]
        where = cache.assumed[uid].allocation.node
        allocation = allocate_for_binding(cache, read_pod(given), where, 0)
        if isinstance(allocation, Allocation):
            cache.update_pod(read_pod(bound(given, allocation, cache)))
            live.append(uid)
        if chance.random() < 0.3:
            cache.remove_pod(live.pop(chance.randrange(len(live))))
    gc.unfreeze()
    return sorted(took)


def gpus_used(sampled: int) -> int:
    """Return how many GPUs 1,000 pods of 3 GiB use, if the scheduler looks at so many nodes.

    For each pod it goes on behind the last node that it looked at. The nodes that it looks at are
    all alike for its own rules, and it takes our first choice.
    """
    cache, count, first = _cluster(), 0, 0
    scheduling, names = Scheduling(cache), sorted(cache.offers)
    for number in range(1000):
        seen = [names[(first + n) % NODES] for n in range(sampled)]
        first = (first + sampled) % NODES
        given = pod(number, 3)
        asked = extender_api.ExtenderArgs(read_pod(given), seen, None)
        fitting = scheduling.filter(asked)["NodeNames"]
        scores = scheduling.prioritize(asked._replace(names=fitting))
        best = max(scores, key=lambda each: each["Score"])["Host"]
        allocation = allocate_for_binding(cache, read_pod(given), best, 0)
        assert isinstance(allocation, Allocation)
    for each in cache.nodes.values():
        count += sum(each.used_part(uuid).units > 0 for uuid in each.gpus)
    return count


def _filled() -> tuple[list[Json], list[Json]]:
    """Return the objects of NODES nodes, and of PODS pods on them."""
    cache, chance, pods = _cluster(), random.Random(2), []
    names = sorted(cache.offers)
    for number in range(PODS):
        given = pod(number, chance.choice((1, 2, 3, 4)))
        allocation = allocate_for_binding(cache, read_pod(given), names[number % NODES], 0)
        assert isinstance(allocation, Allocation)
        pods.append(bound(given, allocation, cache))
    return [node(n) for n in range(NODES)], pods


@contextlib.contextmanager
def _api_server() -> Iterator[str]:
    """Yield the address of a server that lists nodes and pods in pages; its watches are silent."""
    nodes, pods = _filled()
    pages = {
        kind: [
            json.dumps(
                {
                    "metadata": {
                        "resourceVersion": "1",
                        "continue": str(at + PAGE) if at + PAGE < len(items) else "",
                    },
                    "items": items[at : at + PAGE],
                }
            ).encode()
            for at in range(0, len(items), PAGE)
        ]
        for kind, items in {"nodes": nodes, "pods": pods}.items()
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(600)
            return response
        at = int(request.query.get("continue", "0")) // PAGE
        body = pages[request.match_info["kind"]][at]
        return web.Response(body=body, content_type="application/json")

    started = threading.Event()
    known: list[Any] = []  # the address, the loop, and what stops it

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/api/v1/{kind}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stopped = asyncio.Event()
        address = "http://{}:{}".format(*runner.addresses[0][:2])
        known.extend((address, asyncio.get_running_loop(), stopped))
        started.set()
        await stopped.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    started.wait(30)
    address, loop, stopped = known
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(20)


@contextlib.contextmanager
def _kubeconfig() -> Iterator[Path]:
    """How to reach such a server."""
    with _api_server() as address, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "a", "cluster": {"server": address}}],
                    "users": [{"name": "a", "user": {"token": "x"}}],
                    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                    "current-context": "a",
                }
            )
        )
        yield config


async def _ready(port: int) -> None:
    async with ClientSession() as session:
        while True:
            with contextlib.suppress(ClientError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.02)


def restart() -> tuple[float, float]:
    """The seconds until a new extender answers with PODS pods, and its most memory, in MB."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _kubeconfig() as config:
        words = ["--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}"]
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "cgpu_k8s.extender", *words],
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
        )
        try:
            asyncio.run(asyncio.wait_for(_ready(port), 60))
            seconds = time.monotonic() - begin
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            process.wait(20)
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return seconds, int(peak.split()[1]) / 1000


def inspection() -> dict[str, float]:
    """Seconds that ``kubectl inspect cgpu`` takes, and of a processor, medians of INSPECTIONS."""
    took: list[float] = []
    used: list[float] = []
    with _kubeconfig() as config:
        words = ["-m", "cgpu_k8s.inspect.main", "--kubeconfig", str(config)]
        for _ in range(INSPECTIONS):
            begin, before = time.monotonic(), os.times()
            shown = subprocess.run(
                [sys.executable, *words], stdout=subprocess.PIPE, check=True, env=_ENVIRONMENT
            )
            took.append(time.monotonic() - begin)
            after = os.times()
            used.append(sum(after[2:4]) - sum(before[2:4]))  # of children
            assert shown.stdout.count(b"\nnode-") == NODES
    return {"seconds": statistics.median(took), "cpu_seconds": statistics.median(used)}


def measure() -> dict[str, Any]:
    """All figures."""
    took = filters()
    seconds, megabytes = restart()
    return {
        "filter_ms": {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]},
        "gpus_used": {"all": gpus_used(NODES), "sampled": gpus_used(SAMPLED)},
        "restart": {"seconds": seconds, "megabytes": megabytes},
        "inspection": inspection(),
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """Figures with their bars."""
    took, used, again = figures["filter_ms"], figures["gpus_used"], figures["restart"]
    what = f"filter, {NODES:,} nodes of {GPUS} GPUs"
    packed = "GPUs for 1,000 pods of 3 GiB, where 200 suffice"
    return [
        Line(f"{what}, p50", took["p50"], 2, "ms"),
        Line(f"{what}, p99", took["p99"], 10, "ms"),
        Line(f"{packed}; the scheduler looks at all nodes", used["all"], 210, ""),
        Line(f"{packed}; at {SAMPLED} of {NODES:,}", used["sampled"], 210, ""),
        Line(f"a new extender answers, with {PODS:,} pods", again["seconds"], 10, "s"),
        Line("the most memory that it had", again["megabytes"], 150, "MB"),
        Line(f"kubectl inspect cgpu, {PODS:,} pods", figures["inspection"]["seconds"], 2, "s"),
    ]
