"""Answers kube-scheduler's calls about a pod from the cache alone."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from cgpu_k8s.objects.pod_request import PodRequestError
from cgpu_k8s.scheduler import extender_api
from cgpu_k8s.scheduler.allocation import FULL
from cgpu_k8s.scheduler.placing import SENT, UNKNOWN, find_nodes, fits_without
from cgpu_k8s.scheduler.policies.unit_choices import list_candidates

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.scheduler.cache import SchedulerCache
    from cgpu_k8s.scheduler.extender_api import ExtenderArgs, ExtenderPreemptionArgs

RESOLVABLE = {FULL, UNKNOWN, SENT}  # evicting other pods, or waiting, may help
IMPOSSIBLE = "impossible"  # no node could ever satisfy the request


class Scheduling:
    """Answers about pods.

    Args:
        cache: the scheduler's cache, in which an answer assumes the share that it promises.
        clock: returns monotonic seconds.
    """

    def __init__(self, cache: SchedulerCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache, self._clock = cache, clock

    def filter(self, asked: ExtenderArgs, codes: Counter[str] | None = None) -> Json:
        """Return the nodes with room, and assume the share on the best.

        This is not left to ``prioritize``, which the scheduler calls only if several nodes fit.

        Args:
            asked: the pod and the nodes.
            codes: a counter to which the refused nodes are added, by the code of the reason.
        """
        codes = Counter() if codes is None else codes
        try:
            found = find_nodes(self._cache, asked.pod, asked.names, self._clock())
        except PodRequestError as error:
            codes[IMPOSSIBLE] += len(asked.names)
            return extender_api.make_filter_result(
                asked, [], {}, dict.fromkeys(asked.names, str(error))
            )
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, (code, sentence) in found.refused.items():
            (failed if code in RESOLVABLE else unresolvable)[name] = sentence
            codes[code] += 1
        return extender_api.make_filter_result(asked, found.fitting, failed, unresolvable)

    def prioritize(self, asked: ExtenderArgs) -> list[Json]:
        """Return the full score for the node where the share is assumed, and 0 for all others."""
        assumed = self._cache.assumed.get(asked.pod.uid)
        if not asked.pod.asks_for_gpu:
            return extender_api.make_host_priorities(asked.names, "")
        if assumed and assumed.allocation.node in asked.names:
            return extender_api.make_host_priorities(asked.names, assumed.allocation.node)
        try:
            first = find_nodes(self._cache, asked.pod, asked.names, self._clock()).first
            return extender_api.make_host_priorities(asked.names, first)
        except PodRequestError:
            return extender_api.make_host_priorities(asked.names, "")

    def preempt(self, asked: ExtenderPreemptionArgs) -> Json:
        """Return the nodes that would have room once their victims have ended.

        The scheduler knows only the sum of a node's GPUs; the cache knows each GPU. No pod is
        evicted for a pod of a group, because the other pods of the group may still have no room.
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
