"""Figures of whole GPUs and of groups of pods, in one process: COS-6, COS-7."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

from bench.shares import Line
from cgpu_k8s.names import WHOLE_GPU
from cgpu_k8s.objects.gpus import TOPOLOGY, OfferedGpu, write_facts
from cgpu_k8s.objects.links import LEVELS, GpuLink
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.placing import allocate_for_binding
from cgpu_k8s.scheduler.scheduling import Scheduling
from cgpu_k8s.scheduler.topology import choose_set, score_links, sum_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_k8s.objects.pods import Pod

    Json = dict[str, Any]

GPUS, MIB = 8, 81559
RANDOM_NODES = 10_000
NODES, GROUPS, SIZE = 60, 100, 4


def best_sets() -> Json:
    """How often the set that is chosen is the best one, and the most processor time, in ms."""
    chance, best, slowest = random.Random(5), 0, 0.0
    for _ in range(RANDOM_NODES):
        kinds = [*LEVELS.values()]
        links = [
            GpuLink(chance.choice(kinds), chance.choice((0, 0, 1, 2, 4, 18)))
            for _ in range(GPUS * (GPUS - 1) // 2)
        ]
        scores = score_links(GPUS, links)
        free = tuple(sorted(chance.sample(range(GPUS), chance.randint(1, GPUS))))
        count = chance.randint(1, len(free))
        begin = time.thread_time()
        found = choose_set(scores, free, count)
        slowest = max(slowest, time.thread_time() - begin)
        most = max(sum_within(scores, each) for each in combinations(free, count))
        best += found is not None and sum_within(scores, found.gpus) == most
    return {"best": best, "slowest_ms": slowest * 1000}


def _node(number: int) -> Json:
    name = f"node-{number:02}"
    facts = [OfferedGpu(f"GPU-{name}-{n}", n, MIB) for n in range(GPUS)]
    islands = [n // 4 for n in range(GPUS)]
    links = [GpuLink("s", 4) if a == b else GpuLink("y") for a, b in combinations(islands, 2)]
    labels = {"ack.node.gpu.schedule": TOPOLOGY}
    notes = {"cgpu/gpus": write_facts(TOPOLOGY, facts, links=links)}
    return {"metadata": {"name": name, "labels": labels, "annotations": notes}}


def _pod(group: int, number: int, gpus: int) -> Json:
    name = f"job-{group:03}-{number}"
    labels = {"gpu-topology": f"job-{group:03}", "gpu-topology-replica": str(SIZE)}
    limits = {WHOLE_GPU: str(gpus)}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "labels": labels,
            "creationTimestamp": f"2026-01-01T00:{group:02}:00Z",
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def groups() -> Json:
    """What becomes of GROUPS groups, of more GPUs than there are, whose pods ask in any order.

    Each pod asks until nothing changes any more; then groups end, until all have had their turn.
    """
    chance, cache = random.Random(6), SchedulerCache()
    cache.replace_nodes(read_node(_node(number)) for number in range(NODES))
    scheduling, names = Scheduling(cache), sorted(cache.offers)
    sizes = [chance.choice((1, 1, 2, 2, 4)) for _ in range(GROUPS)]
    waiting = [_pod(group, n, gpus) for group, gpus in enumerate(sizes) for n in range(SIZE)]
    chance.shuffle(waiting)
    for each in waiting:
        cache.update_pod(read_pod(each))
    took: list[float] = []
    partial = given_twice = rounds = 0
    while waiting:
        rounds += 1
        bound = _ask_all(scheduling, cache, waiting, names, took)
        whole = Counter(pod.labels["gpu-topology"] for pod in bound)
        partial += sum(count != SIZE for count in whole.values())
        used = Counter(uuid for pod in bound for uuid in cache.assumed[pod.uid].allocation.gpus)
        given_twice += sum(count > 1 for count in used.values())
        if not bound:
            break  # dead locked
        for pod in bound:
            cache.remove_pod(pod.uid)
        gone = {pod.uid for pod in bound}
        waiting = [each for each in waiting if each["metadata"]["uid"] not in gone]
    free = sum(len(node.find_room().whole) for node in cache.nodes.values())
    took.sort()
    return {
        "partial": partial,
        "given_twice": given_twice,
        "never": len(waiting),
        "lost": NODES * GPUS - free if not waiting else 0,
        "rounds": rounds,
        "filter_ms": {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]},
    }


def _ask_all(
    scheduling: Scheduling,
    cache: SchedulerCache,
    waiting: Sequence[Json],
    names: list[str],
    took: list[float],
) -> list[Pod]:
    """Ask about all pods twice, as schedulers do that are woken, and bind those that may be."""
    bound: dict[str, Pod] = {}
    for each in (*waiting, *waiting):
        pod = read_pod(each)
        if pod.uid in bound:
            continue
        begin = time.thread_time()
        answer = scheduling.filter(extender_api.ExtenderArgs(pod, names, None))
        took.append((time.thread_time() - begin) * 1000)
        if answer["NodeNames"]:
            allocate_for_binding(cache, pod, answer["NodeNames"][0], 0.0)
            bound[pod.uid] = pod
    return [*bound.values()]


def measure() -> Json:
    """All figures."""
    return {"best_sets": best_sets(), "groups": groups()}


def lines(figures: Json) -> list[Line]:
    """Figures with their bars."""
    sets, many = figures["best_sets"], figures["groups"]
    what = f"{RANDOM_NODES:,} random nodes of {GPUS} GPUs"
    these = f"{GROUPS} groups of {SIZE} pods, shuffled, on {NODES} nodes of {GPUS} GPUs"
    return [
        Line(f"{what}; the best set of GPUs is found", sets["best"], RANDOM_NODES, "", least=True),
        Line("the longest search for a set", sets["slowest_ms"], 2, "ms"),
        Line(f"{these}; groups that are bound in part", many["partial"], 0, ""),
        Line("pods that never get a node though others end", many["never"], 0, ""),
        Line("GPUs that are given twice, or lost", many["given_twice"] + many["lost"], 0, ""),
        Line("filter of a pod in a group, p99", many["filter_ms"]["p99"], 10, "ms"),
    ]
