"""Figures of ResourcePolicies, in one process: COS-1, COS-2."""

from __future__ import annotations

import gc
import json
import time
from typing import TYPE_CHECKING, Any

from bench import kubernetes
from bench.shares import Line
from cgpu_k8s.objects.allocations import Allocation
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.cache import SchedulerCache
from cgpu_k8s.scheduler.placing import allocate_for_binding
from cgpu_k8s.scheduler.policies.policy_informer import read_known_policy
from cgpu_k8s.scheduler.scheduling import Scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

POLICIES, PODS = 50, 5000
ASKED = 500  # the last of them, whose calls are timed
MOST = (1200, 2000)  # pods of the first two units; the third has no limit


def _policies() -> Iterator[Json]:
    """Yield one that leads the pods, and others that select none of them."""
    for number in range(POLICIES):
        most = [{"max": each} for each in MOST] + [{}]
        units = [{"nodeSelector": {"pool": str(n)}, **each} for n, each in enumerate(most)]
        selector = {"app": "train" if number == 0 else f"other-{number}"}
        name = f"policy-{number:02}"
        meta = {"namespace": "ml", "name": name, "uid": f"uid-{name}"}
        yield {"metadata": meta, "spec": {"selector": selector, "units": units}}


def _cluster() -> SchedulerCache:
    cache = SchedulerCache()
    cache.policies.replace_policies(map(read_known_policy, _policies()))
    for number in range(kubernetes.NODES):
        item = kubernetes.node(number)
        item["metadata"]["labels"]["pool"] = str(number % (len(MOST) + 2))
        cache.update_node(read_node(item))
        cache.policies.update_node(item["metadata"]["name"], item["metadata"]["labels"])
    cache.replace_pods([])
    return cache


def measure() -> Json:
    """Where PODS pods that come one by one go, and the processor time of filter for the last."""
    cache = _cluster()
    scheduling, names = Scheduling(cache), sorted(cache.offers)
    took, pools = [], [0] * (len(MOST) + 2)
    gc.collect()
    gc.freeze()
    for number in range(PODS):
        given = kubernetes.pod(number, 1)
        body = json.dumps({"Pod": given, "Nodes": None, "NodeNames": names}).encode()
        begin = time.thread_time()
        json.dumps(scheduling.filter(extender_api.read_extender_args(body))).encode()
        took.append((time.thread_time() - begin) * 1000)
        where = cache.assumed[given["metadata"]["uid"]].allocation.node
        allocation = allocate_for_binding(cache, read_pod(given), where, 0)
        assert isinstance(allocation, Allocation)
        cache.update_pod(read_pod(kubernetes.bound(given, allocation, cache)))
        pools[int(where.rpartition("-")[2]) % len(pools)] += 1
    gc.unfreeze()
    last = sorted(took[-ASKED:])
    return {
        "policies": {
            "pools": pools,
            "filter_ms": {"p50": last[ASKED // 2], "p99": last[ASKED * 99 // 100]},
        }
    }


def lines(figures: Json) -> list[Line]:
    """Figures with their bars."""
    found = figures["policies"]
    first = [*MOST, PODS - sum(MOST)]
    wrong = sum(abs(have - want) for have, want in zip(found["pools"], [*first, 0], strict=True))
    these = f"{PODS:,} pods of one policy of {POLICIES}, {kubernetes.NODES:,} nodes"
    return [
        Line(f"{these}; pods in a wrong unit", wrong, 0, ""),
        Line("filter of the last of them, p99", found["filter_ms"]["p99"], 10, "ms"),
    ]
