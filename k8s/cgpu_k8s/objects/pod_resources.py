"""Sums the resource requests of a pod's containers."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from cgpu_k8s.objects.fields import get_member
from cgpu_k8s.objects.pod_request import APP, SIDECAR
from cgpu_k8s.objects.policies import read_amount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cgpu_k8s.objects.pods import Pod


def sum_requests(pod: Pod, names: Collection[str]) -> dict[str, Decimal]:
    """Return a pod's request for each of these resources that it requests.

    As in Kubernetes, a request is the larger of two amounts: the sum of all containers and
    sidecars, and the largest sum of an init container and the sidecars that start before it. A
    limit without a request counts as a request.
    """
    found = ((name, _sum_resource(pod, name)) for name in names)
    return {name: amount for name, amount in found if amount}


def _sum_resource(pod: Pod, name: str) -> Decimal:
    stays = peak = Decimal(0)
    for kind, resources in pod.resources:
        amount = _read_request(resources, name)
        if kind == APP:
            continue
        peak = max(peak, stays + amount)
        stays += amount if kind == SIDECAR else 0
    apps = sum(_read_request(each, name) for kind, each in pod.resources if kind == APP)
    return max(peak, stays + apps)


def _read_request(resources: Mapping[str, object], name: str) -> Decimal:
    requests = get_member(resources, "requests", dict)
    value = requests.get(name, get_member(resources, "limits", dict).get(name))
    return read_amount(value) or Decimal(0)
