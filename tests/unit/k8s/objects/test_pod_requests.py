"""What a pod requests of a resource is what Kubernetes counts. COS-2."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cgpu_k8s.objects.pod_resources import sum_requests
from cgpu_k8s.objects.pods import read_pod

pytestmark = pytest.mark.unit


def container(cpu: object, *, limit: object = None, stays: bool = False) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": cpu}} if cpu is not None else {}
    if limit is not None:
        resources["limits"] = {"cpu": limit}
    return {"resources": resources, **({"restartPolicy": "Always"} if stays else {})}


@pytest.mark.parametrize(
    ("apps", "init", "total"),
    [
        ([container("500m"), container("1")], [], "1.5"),
        ([container("1")], [container("3")], "3"),
        ([container("2")], [container("1", stays=True), container("1.5")], "3"),
        ([container("1")], [container("1", stays=True), container("3")], "4"),
        ([container("1")], [container("3"), container("1", stays=True)], "3"),
        ([container(None, limit="2")], [], "2"),
        ([container("1", limit="2")], [], "1"),
        ([container("1e3")], [], "1000"),
        ([container(".5")], [], "0.5"),
        ([container(2)], [], "2"),
    ],
)
def test_a_pod_requests_the_most_that_its_containers_do_at_one_time(
    apps: list[Any], init: list[Any], total: str
) -> None:
    found = read_pod({"metadata": {}, "spec": {"containers": apps, "initContainers": init}})
    assert sum_requests(found, ("cpu", "memory")) == {"cpu": Decimal(total)}


def test_what_a_pod_does_not_request_is_left_out() -> None:
    found = read_pod({"metadata": {}, "spec": {"containers": [container(None), container("0")]}})
    assert sum_requests(found, ("cpu", "memory")) == {}
