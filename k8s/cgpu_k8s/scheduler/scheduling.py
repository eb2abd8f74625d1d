"""The answers to kube-scheduler's questions about a pod, from the cache alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cgpu_k8s.objects.pod_request import PodRequestError
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.allocation import FULL
from cgpu_k8s.scheduler.placing import SENT, UNKNOWN, find_nodes, fits_without
from cgpu_k8s.scheduler.policies.plain_pods import find_unit_nodes
from cgpu_k8s.scheduler.policies.unit_choices import UNIT, list_candidates

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.extender_api import ExtenderArgs, ExtenderPreemptionArgs
    from cgpu_k8s.scheduler.placing import FeasibleNodes

RESOLVABLE = {FULL, UNKNOWN, SENT}  # the end of other pods, or time, may help
IMPOSSIBLE = "impossible"  # what the pod asks for, on any node


class Scheduling:
    """Answers about pods.

    Args:
        cache: the cluster's; a share that is promised in an answer is assumed in it.
        count: is called with the code and the number of the nodes that a pod is refused on.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        cache: SchedulerCache,
        count: Callable[[str, int], None] = lambda _code, _nodes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._count, self._clock = cache, count, clock

    def filter(self, asked: ExtenderArgs) -> Json:
        """Return the nodes with room, and assume the share on the best.

        The scheduler asks for scores only if there are several nodes.
        """
        if not asked.pod.asks_for_gpu and not self._cache.policies.find_policy(asked.pod):
            self._cache.remember_plain(asked.pod)
            return extender_api.make_filter_result(asked, asked.names, {}, {})
        if problem := self._cache.policies.find_key_problem(asked.pod):
            self._count(UNIT, len(asked.names))
            return extender_api.make_filter_result(
                asked, [], {}, dict.fromkeys(asked.names, problem)
            )
        try:
            found = self._find_nodes(asked)
        except PodRequestError as error:
            self._count(IMPOSSIBLE, len(asked.names))
            return extender_api.make_filter_result(
                asked, [], {}, dict.fromkeys(asked.names, str(error))
            )
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        codes: dict[str, int] = {}
        for name, (code, sentence) in found.refused.items():
            (failed if code in RESOLVABLE else unresolvable)[name] = sentence
            codes[code] = codes.get(code, 0) + 1
        for code, nodes in codes.items():
            self._count(code, nodes)
        return extender_api.make_filter_result(asked, found.fitting, failed, unresolvable)

    def prioritize(self, asked: ExtenderArgs) -> list[Json]:
        """Return scores: all for our first choice of these nodes, where the share is assumed."""
        assumed = self._cache.assumed.get(asked.pod.uid)
        if not asked.pod.asks_for_gpu:
            return extender_api.make_host_priorities(asked.names, "")
        if assumed and assumed.allocation.node in asked.names:
            return extender_api.make_host_priorities(asked.names, assumed.allocation.node)
        try:
            return extender_api.make_host_priorities(asked.names, self._find_nodes(asked).first)
        except PodRequestError:
            return extender_api.make_host_priorities(asked.names, "")

    def preempt(self, asked: ExtenderPreemptionArgs) -> Json:
        """Return the nodes that would have room once their victims have ended.

        The scheduler adds up the memory of all GPUs of a node; we know how much each GPU has. No
        pod is evicted for one of a group, of which others may still have no room.
        """
        cache, pod = self._cache, asked.pod
        try:
            nodes = [
                name
                for name, victims in asked.victims.items()
                if not pod.asks_for_gpu
                or (not pod.group and fits_without(cache, pod, name, victims))
            ]
            nodes = list_candidates(cache.policies, pod, nodes, self._clock())
        except PodRequestError:
            nodes = []
        return extender_api.make_preemption_result(asked, nodes)

    def _find_nodes(self, asked: ExtenderArgs) -> FeasibleNodes:
        if not asked.pod.asks_for_gpu:
            return find_unit_nodes(self._cache.policies, asked.pod, asked.names, self._clock())
        return find_nodes(self._cache, asked.pod, asked.names, self._clock())
