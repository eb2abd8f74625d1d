"""All figures of claims, with their bars."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.claims import driver, hook, pods, scheduled
from bench.shares import Line
from lab.kubernetes.programs import releases

if TYPE_CHECKING:
    Json = dict[str, Any]

P50, P99, ADDED = 10, 50, 15  # ms
RATE, GPUS, MEGABYTES = 0.9, 210, 60
_CLAIMS_SINCE = 36  # the minor version in which claims need no feature gate


def are_known() -> bool:
    """Whether the newest Kubernetes at hand knows claims of parts of a device."""
    return releases()[-1].is_since(_CLAIMS_SINCE)


def measure() -> Json:
    """All figures."""
    if not are_known():
        raise SystemExit(
            f"CGPU_KUBERNETES: expected a folder with Kubernetes 1.{_CLAIMS_SINCE} or later, which"
            f" knows claims; found {releases()[-1].version}"
        )
    started = hook.measure()
    with pods.cluster() as kubectl:
        figures: Json = {"burst": pods.burst(kubectl), "kills": pods.kills(kubectl)}
    with driver.serving() as (lab, pid):
        figures["shuffle"] = driver.shuffle(lab)
        before, began = driver.count_writes(lab), time.monotonic()
        figures["scheduled"] = scheduled.measure()  # the driver rests meanwhile
        figures["rest"] = {
            "writes": driver.count_writes(lab) - before,
            "seconds": time.monotonic() - began,
        }
        figures["megabytes"] = driver.read_peak(pid)
    return {
        "kubernetes": releases()[-1].version,
        "start_ms": {name: timing._asdict() for name, timing in started.items()},
        "added_ms": started[hook.WITH].beyond(started[hook.WITHOUT]),
        **figures,
    }


def lines(figures: Json) -> list[Line]:
    """Figures with their bars."""
    return [*_node_lines(figures), *_cluster_lines(figures["scheduled"], figures["kubernetes"])]


def _node_lines(figures: Json) -> list[Line]:
    shuffled, rest = figures["shuffle"], figures["rest"]
    burst, kills, took = figures["burst"], figures["kills"], shuffled["prepare_ms"]
    left, count = "files and shares left over", f"{driver.CLAIMS:,} claims"
    killed = f"{pods.KILLS} kills of the kubelet and {pods.KILLS} of the driver"
    beside = f"{pods.PODS} pods at once on a node of {pods.GPUS} GPUs"
    return [
        Line(f"prepare, {count} that come and go, p50", took["p50"], P50, "ms"),
        Line("the same, p99", took["p99"], P99, "ms"),
        Line("wrong caps of these claims", shuffled["wrong"], 0, ""),
        Line(left, shuffled["left"], 0, ""),
        Line(f"writes of the driver in {rest['seconds']:.0f} s after them", rest["writes"], 0, ""),
        Line("the most memory that it had", figures["megabytes"], MEGABYTES, "MB"),
        Line("start of a container, added by a claim", figures["added_ms"], ADDED, "ms"),
        Line(f"{beside}; wrong caps", burst["wrong"], 0, ""),
        Line(left, burst["left"], 0, ""),
        Line(f"{killed}, {kills['pods']} pods; failed pods", kills["failed"], 0, ""),
        Line(left, kills["left"], 0, ""),
    ]


def _cluster_lines(figures: Json, version: str) -> list[Line]:
    count, nodes = f"{scheduled.CLAIM_COUNT:,} claims", f"{scheduled.NODE_COUNT} nodes"
    these = f"{count} on {nodes} of {scheduled.GPUS} GPUs, by Kubernetes {version}"
    used = f"GPUs for {count} of 3 GiB, where {scheduled.ENOUGH} suffice"
    rate = f"{these}: rate of bindings to that with an example driver's slices"
    return [
        Line(rate, figures["ratio"], RATE, "", least=True),
        Line("GPUs with more than they have given away", figures["excess"], 0, ""),
        Line(f"{used}; the scheduler fills nodes", figures["filled"], GPUS, ""),
        Line(f"{used}; it spreads pods, as it does by itself", figures["spread"], GPUS, ""),
    ]
