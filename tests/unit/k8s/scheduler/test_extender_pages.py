"""What the extender shows: GPUs and pods to published tools, and metrics."""

from __future__ import annotations

import json
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cgpu_k8s.scheduler import server
from lab.worlds.extender import PREFIX, World, pod

pytestmark = pytest.mark.unit


def test_published_tools_read_nodes_gpus_and_pods() -> None:
    world = World(pod("p"))

    async def work() -> None:
        await world.filter(pod("waits", 2), ("b",))
        await world.bind(pod("p"), "b")
        shown = {
            "name": "b",
            "totalGPU": 30,
            "usedGPU": 10,
            "devs": [
                {
                    "id": 0,
                    "totalGPU": 15,
                    "usedGPU": 10,
                    "pods": [
                        {"name": "p", "namespace": "ns", "usedGPU": 8},
                        {"name": "waits", "namespace": "ns", "usedGPU": 2},
                    ],
                },
                {"id": 1, "totalGPU": 15, "usedGPU": 0, "pods": []},
            ],
        }
        status, text = await world.get(f"{PREFIX}/inspect/b")
        assert (status, json.loads(text)) == (200, {"nodes": [shown]})
        status, text = await world.get(f"{PREFIX}/inspect")
        assert [each["name"] for each in json.loads(text)["nodes"]] == ["a", "b"]
        status, text = await world.get(f"{PREFIX}/inspect/x")
        assert (status, list(json.loads(text))) == (404, ["error"])
        assert "version" in (await world.get("/version"))[1]

    world.run(work)


def test_metrics_show_gpus_what_fits_and_what_is_reserved() -> None:
    world = World(pod("p"))

    async def work() -> None:
        await world.filter(pod("q", 15), ("a",))
        await world.bind(pod("p"), "a")
        page = (await world.get("/metrics"))[1]
        for line in (
            'cgpu_cluster_gpu_units{gpu="0",node="a",uuid="GPU-a-0"} 15.0',
            'cgpu_cluster_gpu_allocated_units{gpu="0",node="a",uuid="GPU-a-0"} 15.0',
            'cgpu_cluster_largest_fit_units{mode="cgpu"} 15.0',
            'cgpu_extender_reservations{state="chosen"} 1.0',
            'cgpu_extender_reservations{state="sent"} 1.0',
            'cgpu_extender_call_seconds_count{verb="filter"} 1.0',
        ):
            assert line in page
        assert 'cgpu_extender_watch_silence_seconds{kind="pods"}' in page
        assert 'kind="nodes"' not in page

    world.run(work)


def test_the_page_of_metrics_is_written_beside_the_schedulers_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is long in a large cluster; what it shows was read at once, where the books change."""
    world, threads = World(pod("p")), set[bool]()

    def page(registry: CollectorRegistry) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        world.cache.replace_nodes([])  # a change that it must not see
        return generate_latest(registry)

    monkeypatch.setattr(server, "generate_latest", page)

    async def work() -> None:
        assert 'uuid="GPU-a-0"' in (await world.get("/metrics"))[1]

    world.run(work)
    assert threads == {False}
