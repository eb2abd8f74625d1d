"""The extender's metrics for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from cgpu_k8s.objects.gpus import TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from cgpu_k8s.scheduler.cache import SchedulerCache

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Counters of events, and figures from the cache.

    Args:
        cache: the scheduler's cache.
        heard: returns when the API server last sent anything, by kind of object.
        unbindable: returns why no pod may be bound now; "" if pods may.

    Attributes:
        registry: the metrics that a scrape shows.
        calls: the duration of calls in seconds, by ``verb``.
        refusals: the number of nodes that pods were refused on, by ``reason``.
        bindings: the number of bindings, by ``outcome``.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        heard: Callable[[], dict[str, float | None]],
        unbindable: Callable[[], str],
    ) -> None:
        self.registry = CollectorRegistry()
        self.calls = Histogram(
            "cgpu_extender_call_seconds",
            "Time to answer the scheduler, by verb.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.refusals = Counter(
            "cgpu_extender_refused_nodes",
            "Nodes that a pod was refused on, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.bindings = Counter(
            "cgpu_extender_bindings",
            "Bindings that the scheduler asked for, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.registry.register(_Cluster(cache, heard, unbindable))

    def take_snapshot(self) -> MetricsSnapshot:
        """Return the metric families as they are now. Another thread may read the result."""
        return MetricsSnapshot(list(self.registry.collect()))


class MetricsSnapshot(CollectorRegistry):
    """Metric families as they were at one moment."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


class _Cluster:
    """The figures from the cache at the moment of a scrape."""

    def __init__(
        self,
        cache: SchedulerCache,
        heard: Callable[[], dict[str, float | None]],
        unbindable: Callable[[], str],
    ) -> None:
        self._cache, self._heard, self._unbindable = cache, heard, unbindable

    def collect(self) -> Iterable[Metric]:
        """Yield the families with their samples."""
        yield GaugeMetricFamily(
            "cgpu_extender_leading",
            "1 while it binds pods: its scheduler leads, and nodes and pods are listed.",
            value=not self._unbindable(),
        )
        yield from self._measure_units()
        yield from (self._count_gpus(), self._count_pods(), self._count_groups())
        yield from self._count_policies()
        reserved = GaugeMetricFamily(
            "cgpu_extender_reservations",
            "Parts of GPUs that are kept for pods whose binding is not seen, by state.",
            labels=["state"],
        )
        assumed = [each for each in self._cache.assumed.values() if each.allocation.gpus]
        sent = sum(each.sent > 0 for each in assumed)
        reserved.add_metric(["chosen"], len(assumed) - sent)
        reserved.add_metric(["sent"], sent)
        yield reserved
        silence = GaugeMetricFamily(
            "cgpu_extender_watch_silence_seconds",
            "Time since the API server last sent anything, by kind of object.",
            labels=["kind"],
        )
        now = time.monotonic()
        for kind, when in self._heard().items():
            if when is not None:
                silence.add_metric([kind], now - when)
        yield silence

    def _count_gpus(self) -> Metric:
        """Return the numbers of offered and lost GPUs on each node that is labelled for sharing."""
        found = GaugeMetricFamily(
            "cgpu_cluster_gpus",
            "GPUs of a node that is labelled for sharing them, by state.",
            labels=["node", "state"],
        )
        for name, offer in self._cache.offers.items():
            if offer.is_asked:
                healthy = sum(gpu.healthy for gpu in offer.gpus.values())
                found.add_metric([name, "offered"], 0 if offer.withheld else healthy)
                found.add_metric([name, "lost"], len(offer.gpus) - healthy)
        return found

    def _count_pods(self) -> Metric:
        cache = self._cache
        found = GaugeMetricFamily(
            "cgpu_cluster_pods", "Pods that ask for a part of a GPU, by state.", labels=["state"]
        )
        found.add_metric(["waiting"], sum(not pod.node for pod in cache.pods.values()))
        found.add_metric(["decided"], len(cache.bound))
        found.add_metric(["undecided"], len(cache.problems))
        return found

    def _count_groups(self) -> Metric:
        found = GaugeMetricFamily(
            "cgpu_cluster_groups", "Groups of pods with GPUs, by state.", labels=["state"]
        )
        for state, count in self._cache.groups.count_states().items():
            found.add_metric([state], count)
        return found

    def _count_policies(self) -> Iterable[Metric]:
        """Return the pods and the ``max`` of each unit, and the waiting pods of each policy."""
        of_unit, policies = ["namespace", "policy", "unit"], self._cache.policies
        pods = GaugeMetricFamily(
            "cgpu_cluster_unit_pods",
            "Pods that count in a unit of a ResourcePolicy, or are outside.",
            labels=of_unit,
        )
        most = GaugeMetricFamily(
            "cgpu_cluster_unit_max_pods", "The most pods that a unit takes.", labels=of_unit
        )
        waiting = GaugeMetricFamily(
            "cgpu_cluster_unit_waiting_pods",
            "Pods that wait because no unit in force has room for them.",
            labels=["namespace", "policy"],
        )
        for policy in policies.list_policies():
            name = [policy.namespace, policy.name]
            *sums, outside = policies.get_counts(policy).sum_units()
            for number, (unit, count) in enumerate(zip(policy.units, sums, strict=True), 1):
                pods.add_metric([*name, str(number)], count)
                if unit.most is not None:
                    most.add_metric([*name, str(number)], unit.most)
            pods.add_metric([*name, "outside"], outside)
            waiting.add_metric(name, policies.count_waiting(policy))
        return pods, most, waiting

    def _measure_units(self) -> Iterable[Metric]:
        labels = ["node", "gpu", "uuid"]
        whole = GaugeMetricFamily(
            "cgpu_cluster_gpu_units", "Units of aliyun.com/gpu-mem of a GPU.", labels=labels
        )
        taken = GaugeMetricFamily(
            "cgpu_cluster_gpu_allocated_units", "Units that pods have or will have.", labels=labels
        )
        fits = GaugeMetricFamily(
            "cgpu_cluster_largest_fit_units",
            "The most units that a pod on one GPU can still get, by mode of the node.",
            labels=["mode"],
        )
        largest: dict[str, int] = {}
        for name, offer in self._cache.offers.items():
            node = self._cache.nodes[name]
            for gpu in offer.gpus.values():
                of = [name, str(gpu.index), gpu.uuid]
                whole.add_metric(of, gpu.units)
                taken.add_metric(of, node.used_part(gpu.uuid).units)
            for each in node.gpus.values() if node.mode != TOPOLOGY else ():
                free = node.free_part(each)
                open_to = each.healthy and free.slots > 0 and (free.cores > 0 or not each.cores)
                largest[node.mode] = max(largest.get(node.mode, 0), free.units * open_to)
        for mode, units in sorted(largest.items()):
            fits.add_metric([mode], units)
        return whole, taken, fits
