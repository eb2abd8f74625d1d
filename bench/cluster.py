"""Figures of the extender beside a real kube-apiserver and kube-scheduler, the newest at hand."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench.shares import Line
from lab.cluster import crowd, failures
from lab.cluster.world import World, in_use
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import control_plane
from lab.kubernetes.programs import releases
from lab.kubernetes.scheduler import SCHEDULER, Replica, install, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.kubernetes.control_plane import ControlPlane

    Json = dict[str, Any]

GPUS = 8  # of a node
RATES = {100: (2000, 120), 1000: (1000, 40)}  # nodes: pods, and how many a second at least
PLAIN_NODES, PLAIN, PLAIN_PART = 100, 2000, 0.9  # nodes, pods, and the least part of the rate
SIZES = (1, 2, 3, 4, 5, 6, 8)  # GiB; on average more than 1,500 pods can have of 400 GPUs
BURST, ON = 1500, 50
KILLS = 100
CREATED = 201
PATIENCE = 120.0
NEXT = 20  # seconds until the next pod is bound


@contextmanager
def _nodes(count: int) -> Iterator[ControlPlane]:
    newest = releases()[-1]
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder), newest) as plane:
        install(plane)
        crowd.asked(plane, lambda client: crowd.add_nodes(client, count, GPUS))
        yield plane


def rate(nodes: int, pods: int) -> float:
    """Return how many pods are bound per second that wait when scheduler and extender start."""
    sizes = {f"pod-{n:05}": 3 for n in range(pods)}
    with _nodes(nodes) as plane:
        crowd.asked(plane, lambda client: crowd.add_pods(client, sizes))
        with scheduling(plane):
            wait_until(lambda: _bound(plane) == pods, f"{pods} pods are bound", PATIENCE)
        times = sorted(each.when for each in plane.bindings() if each.status == CREATED)
    return (pods - 1) / (times[-1] - times[0])


def _bound(plane: ControlPlane) -> int:
    time.sleep(0.5)  # reading takes time of the processors that are measured
    return sum(each.status == CREATED for each in plane.bindings())


def plain_rate(how: str) -> float:
    """Return how many pods without GPUs are bound per second.

    HOW: "none": by the chart's scheduler without the extender; "aside": beside the extender, as the
    chart installs it; "led": through the extender.
    """
    sizes = {f"pod-{n:05}": 1 for n in range(PLAIN)}
    with _nodes(PLAIN_NODES) as plane:
        crowd.asked(plane, lambda client: crowd.add_pods(client, sizes, "cpu"))
        with _unextended(plane) if how == "none" else scheduling(plane, led=how == "led"):
            wait_until(lambda: _bound(plane) == PLAIN, f"{PLAIN} pods are bound", PATIENCE)
        times = sorted(each.when for each in plane.bindings() if each.status == CREATED)
    return (PLAIN - 1) / (times[-1] - times[0])


@contextmanager
def _unextended(plane: ControlPlane) -> Iterator[None]:
    """The chart's scheduler, with its configuration but for the extender."""
    replica = Replica(plane, "plain")
    path = plane.folder / "plain" / "scheduler.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, "extenders": []}))
    try:
        replica.start(SCHEDULER)
        yield
    finally:
        replica.close()


def burst() -> Json:
    """Return how BURST waiting pods end that ask for more than ON nodes have."""
    chance = random.Random(3)
    sizes = {f"pod-{n:05}": chance.choice(SIZES) for n in range(BURST)}
    with _nodes(ON) as plane:
        crowd.asked(plane, lambda client: crowd.add_pods(client, sizes))
        with scheduling(plane) as replica:
            count = -1
            while count != (count := _bound_at_rest(plane)):
                pass
            metrics = (replica.answer("metrics") or b"").decode()
        found = crowd.asked(plane, crowd.outcome)
        refused = sum(each.status != CREATED for each in plane.bindings())
    lines = (each for each in metrics.splitlines() if each.startswith(_BINDINGS))
    bad = [float(each.rpartition(" ")[2]) for each in lines if '"done"' not in each]
    room = found.room(ON * GPUS)
    return {
        "asked": sum(sizes.values()),
        "bound": found.bound,
        "units": found.units.total(),
        "refused": refused + int(sum(bad)),
        "excess": found.excess,
        "wrong": len(found.wrong),
        "in_vain": sum(sizes[name] <= room for name in found.waiting),
    }


_BINDINGS = "cgpu_extender_bindings_total{"


def _bound_at_rest(plane: ControlPlane) -> int:
    time.sleep(5)
    return _bound(plane)


def kills(count: int) -> Json:
    """Kill an extender again and again between a binding and its reply; return the figures."""
    with _nodes(ON) as plane, in_use(plane, "alone") as world:
        fates = [*failures.FATES] * count
        took = [failures.kill_while_binding(world.leader, world.proxy, fate)
                for fate in fates[:count]]  # fmt: skip
        return _ended(world, took)


def changes(names: list[str]) -> Json:
    """Two replicas, of which the one that leads stops leading, each time in one of these ways."""
    ways = {each.__name__: each for each in failures.CHANGES}
    with _nodes(ON) as plane, in_use(plane, "one", "two") as world:
        took = [ways[name](world.leader, world.other, world.proxy) for name in names]
        return _ended(world, took)


def _ended(world: World, took: list[float]) -> Json:
    found = world.end()
    return {
        "seconds": took,
        "pods": world.traffic.count,
        "double": found.excess + len(found.wrong),
        "lost": len(found.waiting),
    }


def failing() -> dict[str, Json]:
    """Kills and changes of leaders: most of their time is waiting, so they run side by side."""
    ways = [*chain.from_iterable(repeat(way.__name__, n) for way, n in failures.CHANGES.items())]
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        killed = pool.submit(kills, KILLS)
        changed = [pool.submit(changes, ways[n::2]) for n in range(2)]
        found = [each.result() for each in changed]
    both = {name: found[0][name] + found[1][name] for name in found[0]}
    return {"kills": killed.result(), "changes": both}


def measure() -> Json:
    """All figures."""
    rates = {str(nodes): rate(nodes, pods) for nodes, (pods, _) in RATES.items()}
    version = releases()[-1].version
    plain = {how: plain_rate(how) for how in ("none", "aside", "led")}
    return {
        "kubernetes": version,
        "bound_per_second": rates,
        "plain_per_second": plain,
        "burst": burst(),
        **failing(),
    }


def lines(figures: Json) -> list[Line]:
    """Figures with their bars."""
    many, found = figures["burst"], []
    for nodes, (pods, least) in RATES.items():
        what = (
            f"{pods:,} pods that wait, on {nodes:,} nodes of {GPUS} GPUs, are bound"
            f" by Kubernetes {figures['kubernetes']}"
        )
        speed = figures["bound_per_second"][str(nodes)]
        found.append(Line(what, speed, least, "pods/s", least=True))
    plain = figures["plain_per_second"]
    what = (
        f"{PLAIN:,} pods without GPUs, {PLAIN_NODES} nodes: rate beside the extender to without it"
    )
    found.append(Line(what, plain["aside"] / plain["none"], PLAIN_PART, "", least=True))
    what = f"{BURST:,} pods at once onto {ON * GPUS} GPUs"
    found += [
        Line(f"{what}; bindings refused", many["refused"], 0, ""),
        Line("units that are given away beyond what a GPU has", many["excess"], 0, ""),
        Line("pods that wait in the end though a GPU has room", many["in_vain"], 0, ""),
    ]
    for name, what in (
        ("kills", "kills of the extender between a binding and its reply"),
        ("changes", "changes of leaders"),
    ):
        some = figures[name]
        count = len(some["seconds"])
        found += [
            Line(f"{count} {what}, {some['pods']:,} pods; given away twice", some["double"], 0, ""),
            Line("pods lost", some["lost"], 0, ""),
            Line("longest time until the next pod was bound", max(some["seconds"]), NEXT, "s"),
        ]
    return found
