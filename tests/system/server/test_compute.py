"""Docker containers share a simulated GPU's time, by the GPU's own account, over 10 s."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_sim import gpu_times
from lab.containers.engines import Volume
from lab.driver.stopping import halted
from lab.machine.node import share
from lab.machine.servers import serving
from lab.shares.compute import (
    PROGRAMS,
    TAG,
    Shares,
    measure,
    measure_on_time,
    measure_stopped,
    measure_while,
    prefer,
    spin_program,
    wait_for,
    waited_ns,
)
from lab.shares.compute_player import gate_looks
from lab.shares.gatewatch import Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.containers.engines import Docker
    from lab.machine.node import Node

pytestmark = [pytest.mark.system, pytest.mark.alone(4), pytest.mark.timeout(600)]

SPIN, LOOPS = "/usr/bin/spin", "/opt/loops"
WARM_UP_SECONDS, SECONDS, POINTS = 2.0, 10.0, 3.0
LOOKS = 4
WEIGHT, HIGH_PRIO = "ALIYUN_COM_GPU_SCHD_WEIGHT", "ALIYUN_COM_GPU_HIGH_PRIO"


@pytest.fixture
def compute(started: Callable[..., str], debian: str, guests: list[Volume]) -> Callable[..., str]:
    """Start a container of a tag that runs a command, with these variables besides its memory."""
    volumes = [*guests, Volume(spin_program(), SPIN), Volume(PROGRAMS, LOOPS)]

    def start(tag: str, *command: str, **env: str) -> str:
        options, variables = ["--runtime=cgpu"], {**share(3), TAG: tag, **env}
        return started(debian, *command, options=options, env=variables, volumes=volumes)

    return start


def shares_of(node: Node, *tags: str) -> Shares:
    wait_for(node.driver, tags, 60)
    servers = serving(node.state)
    prefer(servers)
    measure(node.driver, (), WARM_UP_SECONDS)
    return measure_on_time(node.driver, tags, SECONDS, servers)


def shown_beside_true(node: Node, ids: dict[str, str]) -> tuple[Shares, Shares]:
    """What cgpu-smi shows on average, and what is true of the same seconds.

    Both are read at the same moments: one that began with each look would leave out, or count
    twice, the time in which a program starts and keeps the others from the CPUs.
    """
    words = [sys.executable, "-m", "cgpu_cli.smi", "--json", "--loop", "1"]  # what a look covers
    words += ["--state-dir", str(node.state), "--driver-dir", str(node.driver)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    looks: list[dict[str, float]] = []
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as smi:
        assert smi.stdout is not None

        def look() -> None:
            containers = json.loads(smi.stdout.readline())["containers"]
            looks.append({c["id"]: c["gpus"][0]["measured_percent"] for c in containers})

        look()  # of the time in which it started
        true = measure_while(node.driver, ids, lambda: [look() for _ in range(LOOKS)])
        smi.terminate()
    points = {tag: statistics.fmean(f[name] for f in looks[1:]) for tag, name in ids.items()}
    shown = Shares(points, 100 - sum(points.values()))
    print("shown:", shown, "true:", true)  # noqa: T201
    return shown, true


def test_containers_share_by_weight(node: Node, compute: Callable[..., str]) -> None:
    """ENV-6, SCH-6: one to two."""
    compute("one", SPIN, "us=50", "seconds=300")
    compute("two", SPIN, "us=500", "seconds=300", **{WEIGHT: "2"})
    parts = shares_of(node, "one", "two").parts()
    assert abs(parts["two"] - 200 / 3) <= POINTS


def test_the_share_that_is_shown_is_the_true_one(node: Node, compute: Callable[..., str]) -> None:
    """CLI-3."""
    one = compute("one", SPIN, "us=50", "seconds=300")
    two = compute("two", SPIN, "us=50", "seconds=300", **{WEIGHT: "2"})
    wait_for(node.driver, ["one", "two"], 60)
    prefer(serving(node.state))
    measure(node.driver, (), WARM_UP_SECONDS)
    programs = [process.pid for process in gpu_times(node.driver)]
    waited, began = -waited_ns(programs), time.monotonic_ns()
    shown, true = shown_beside_true(node, {"one": one, "two": two})
    late = 100 * (waited + waited_ns(programs)) / (time.monotonic_ns() - began)
    assert abs(shown.parts()["two"] - true.parts()["two"]) <= POINTS
    # a launch that comes late is time that its container held; and a thread writes the markers,
    # which a GPU writes when the work ends, whoever has the CPUs
    assert -POINTS <= shown.idle <= true.idle + POINTS + late, late


def test_a_paused_container_has_saved_nothing_up(
    node: Node, docker: Docker, compute: Callable[..., str]
) -> None:
    """It starts level. The other has the GPU meanwhile, and its half soon afterwards."""
    steady = compute("steady", SPIN, "us=100", "seconds=300")
    paused = compute("paused", SPIN, "us=100", "seconds=300")
    wait_for(node.driver, ["steady", "paused"], 60)
    server = serving(node.state)[0]
    prefer([server])
    measure(node.driver, (), WARM_UP_SECONDS)
    stands_still = halted(
        node.driver,
        lambda: docker.docker("pause", paused),
        lambda: docker.docker("unpause", paused),
    )
    watched, looks = Watched(node.state / "containers" / steady), list[bool]()
    had, afterwards = measure_stopped(
        node.driver,
        ["steady", "paused"],
        stands_still,
        server,
        lambda: looks.extend(gate_looks(watched, 2)),
    )
    assert had > 90
    assert sum(looks) > 0.85 * len(looks)
    assert abs(afterwards.parts()["steady"] - 50) < 10, afterwards


def test_programs_that_nobody_here_wrote_share_equally(
    node: Node, compute: Callable[..., str]
) -> None:
    """SCH-6, SCH-8: Numba on the legacy stream, cuda.bindings on a stream of its own."""
    compute("numba", "python3", f"{LOOPS}/numba_loop.py", CGPU_SIM_KERNEL_US="500")
    compute("bindings", "python3", f"{LOOPS}/bindings_loop.py")
    parts = shares_of(node, "numba", "bindings").parts()
    assert abs(parts["numba"] - 50) <= POINTS


def test_a_high_priority_container_gets_four_fifths(
    node: Node, compute: Callable[..., str]
) -> None:
    """ENV-7, SCH-7: up to prio_ratio percent, 80 by default."""
    compute("first", SPIN, "us=50", "seconds=300", **{HIGH_PRIO: "1"})
    compute("other", SPIN, "us=5000", "seconds=300", **{WEIGHT: "5"})
    parts = shares_of(node, "first", "other").parts()
    assert abs(parts["first"] - 80) <= POINTS
