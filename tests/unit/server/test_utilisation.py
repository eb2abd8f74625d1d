"""How busy a GPU is by the driver's figure, and whose time that is an estimate of (CLI-3)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from cgpu_native._native import lib

import cgpu_native
from cgpu_cli.show import table
from cgpu_cli.show.query import format_usage
from cgpu_cli.show.trend import Trend
from cgpu_env import GpuShare
from cgpu_native.limits import METERED_ROUGHLY
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.rules import Rules
from cgpu_node.shares.record import Owner, Record
from cgpu_node.view.usage import usage_of, use_of
from cgpu_node.view.view import parse_usage
from cgpu_server.audit.driver_probe import Reading
from cgpu_server.audit.process_owners import HostProcess
from cgpu_server.audit.snapshot import EMPTY, Snapshot, gpus_to_ask, utilisation_by_container
from cgpu_server.audit.utilisation import Utilisation

if TYPE_CHECKING:
    from pathlib import Path

    from cgpu_node.view.view import Compute, Usage

pytestmark = pytest.mark.unit

MIB = 1 << 20
NS = 1_000_000_000
UUIDS = [f"GPU-{i}0000000-1111-2222-3333-444444444444" for i in range(2)]
GPUS = tuple(NodeGpu(i, uuid, "Tesla T4", 15109 * MIB, 0, ()) for i, uuid in enumerate(UUIDS))
NODE = Node("535.0", "/nowhere", {}, {}, GPUS, ())


class World:
    """Containers on two GPUs, what the audit last saw, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 100.0
        self.snapshot = Snapshot(
            dict.fromkeys(UUIDS, True), {}, {}, {UUIDS[0]: 40, UUIDS[1]: 100}, {}
        )
        self.records: list[Record] = []
        self.utilisation = Utilisation(lambda: self.snapshot, lambda: self.now)

    def add(self, name: str, *gpus: int, metered: int = 0) -> None:
        """A container on these GPUs."""
        directory = self.folder / name
        directory.mkdir()
        shares = tuple(GpuShare(i, UUIDS[i], 1000 * MIB) for i in gpus)
        record = Record(name, "container", Owner(1, 1, None), shares, 1, high_priority=False,
                        policy=6, command=("x",), directory=str(directory))  # fmt: skip
        self.records.append(record)
        self.measure(name, metered=metered)

    def measure(self, name: str, *, metered: int) -> None:
        """What the arbiter writes down."""
        (record,) = (each for each in self.records if each.id == name)
        heartbeat = 1 << 62  # of an arbiter that lives
        pages = [
            cgpu_native.LimitsGpu(gpu.uuid, gpu.index, gpu.cap_bytes, 0)._replace(
                metered=metered, heartbeat_ns=heartbeat, measured_ppm=250_000, limit_ppm=500_000
            )
            for gpu in record.gpus
        ]
        path = self.folder / name / "limits"
        path.write_bytes(cgpu_native.pack_limits(name, pages, policy=6))

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.utilisation.count(self.records)

    def usage(self) -> Usage:
        uses = self.utilisation.add_estimates(map(use_of, self.records))
        return usage_of(NODE, uses, lambda _: Rules(), None, self.snapshot.utilisation)

    def compute(self, name: str, number: int = 0) -> Compute:
        (use,) = (each for each in self.usage().uses if each.id == name)
        found = use.gpus[number].compute
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.utilisation.count(())
    return world


def test_of_a_container_alone_the_gpus_utilisation_is_an_estimate(world: World) -> None:
    world.add("a", 0)
    world.pass_seconds(5)
    its = world.compute("a")
    assert (its.measured_percent, its.estimated_percent) == (None, 40.0)
    assert its.estimated_ns == 2 * NS
    assert [gpu.utilisation_percent for gpu in world.usage().gpus] == [40, 100]
    assert world.utilisation.busy_ns == {UUIDS[0]: 2 * NS, UUIDS[1]: 5 * NS}
    world.pass_seconds(1)
    assert world.compute("a").estimated_ns == 2.4 * NS


def test_one_on_two_gpus_has_an_estimate_of_each_that_it_has_alone(world: World) -> None:
    world.add("a", 1, 0)
    world.add("b", 0)
    world.pass_seconds(3)
    assert (world.compute("a", 0).estimated_percent, world.compute("a", 1).estimated_percent) == (
        100.0,
        None,
    )
    assert (world.compute("a", 0).estimated_ns, world.compute("a", 1).estimated_ns) == (3 * NS, 0)
    assert world.compute("b").estimated_percent is None


def test_of_several_the_processes_utilisation_is_an_estimate(world: World) -> None:
    for name in "abc":
        world.add(name, 0)
    tenants = {name: (str(world.folder / name), 0) for name in "abc"}
    world.snapshot = world.snapshot._replace(shares={tenants["a"]: 30, tenants["b"]: 0})
    world.pass_seconds(5)
    found = {name: world.compute(name) for name in "abc"}
    assert {n: its.estimated_percent for n, its in found.items()} == {"a": 30, "b": 0, "c": None}
    assert {n: its.estimated_ns for n, its in found.items()} == {"a": 1.5 * NS, "b": 0, "c": 0}
    assert all(its.measured_percent is None for its in found.values())


def test_the_driver_is_asked_about_processes_only_where_that_says_more(world: World) -> None:
    world.add("a", 0, 1)
    assert gpus_to_ask(world.snapshot, world.records) == set(), "it is alone on both"
    foreign = world.snapshot._replace(foreign_bytes={UUIDS[1]: MIB})
    assert gpus_to_ask(foreign, world.records) == {UUIDS[1]}
    world.add("b", 0, metered=lib.CGPU_METERED)
    assert gpus_to_ask(world.snapshot, world.records) == {UUIDS[0]}
    world.measure("a", metered=lib.CGPU_METERED)
    assert gpus_to_ask(foreign, world.records) == set(), "all are measured"


def test_a_container_has_what_its_processes_have_and_a_gpu_at_most(world: World) -> None:
    world.add("a", 0)
    world.add("b", 0, 1)
    a, b = world.records
    process = HostProcess(1, 1, 1, 1, 0, ends=False)
    whose = {1: (process, a), 2: (process, a), 3: (process, b), 4: (process, None)}
    readings = {
        UUIDS[0]: Reading(0, {}, 90, {1: 70, 2: 60, 4: 5, 5: 5}),
        UUIDS[1]: Reading(0, {}, 90, None),
    }
    found = utilisation_by_container(readings, whose, world.records)
    assert found == {(a.directory, 0): 100, (b.directory, 0): 0}


def test_what_is_measured_needs_no_estimate_and_nothing_counts_twice(world: World) -> None:
    world.add("a", 1)
    world.pass_seconds(2)
    world.measure("a", metered=lib.CGPU_METERED)
    world.pass_seconds(3)
    its = world.compute("a")
    assert (its.measured_percent, its.estimated_percent) == (25.0, None)
    assert its.estimated_ns == 2 * NS, "what was estimated before stays: a counter"
    assert world.utilisation.busy_ns[UUIDS[1]] == 5 * NS


def test_a_foreign_process_may_be_what_keeps_the_gpu_busy(world: World) -> None:
    world.add("a", 0)
    world.snapshot = world.snapshot._replace(foreign_bytes={UUIDS[0]: MIB})
    world.pass_seconds(5)
    its = world.compute("a")
    assert (its.estimated_percent, its.estimated_ns) == (None, 0)
    assert world.usage().gpus[0].utilisation_percent == 40


def test_where_the_driver_does_not_say_who_is_there_nobody_is_alone(world: World) -> None:
    world.add("a", 0)
    world.snapshot = world.snapshot._replace(readable=dict.fromkeys(UUIDS, False))
    world.pass_seconds(5)
    its = world.compute("a")
    assert (its.estimated_percent, its.estimated_ns) == (None, 0)


def test_the_audit_may_look_again_while_the_last_look_is_read(world: World) -> None:
    """Each of these would be half of one look and half of the other."""
    world.add("a", 0)
    nothing = EMPTY
    for looks in ([nothing, world.snapshot], [world.snapshot, nothing]):
        seen = itertools.cycle(looks)
        world.utilisation = Utilisation(lambda seen=seen: next(seen), lambda: world.now)
        for _ in range(2):
            world.pass_seconds(5)
            world.utilisation.add_estimates(map(use_of, world.records))


def test_an_audit_that_sees_nothing_estimates_nothing(world: World) -> None:
    world.add("a", 0)
    world.pass_seconds(5)
    world.snapshot = EMPTY
    world.pass_seconds(5)
    its = world.compute("a")
    assert (its.estimated_percent, its.estimated_ns) == (None, 2 * NS)
    assert world.usage().gpus[0].utilisation_percent is None
    assert world.utilisation.busy_ns[UUIDS[0]] == 2 * NS


def test_a_container_that_is_gone_leaves_its_time_to_nobody(world: World) -> None:
    world.add("a", 0)
    world.pass_seconds(5)
    gone, world.records = world.records, []
    world.pass_seconds(1)
    world.records = gone
    world.pass_seconds(1)
    assert world.compute("a").estimated_ns == 0.4 * NS


def test_estimates_are_shown_with_a_mark(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.add("a", 0)
    world.add("b", 1, metered=lib.CGPU_METERED)
    world.pass_seconds(5)
    usage = parse_usage(world.usage().as_json())
    assert usage == world.usage()._replace(
        uses=tuple(use._replace(directory="") for use in world.usage().uses)
    )
    table.print_tables(usage)
    output = capsys.readouterr().out
    assert "~40% / 50.0%" in output
    assert "25.0% / 50.0%" in output
    assert "prio_ratio 80, 40% busy" in output
    assert "prio_ratio 80, 25.0% of its time measured, 100% busy" in output
    details = [" ".join(line.split()) for line in format_usage(usage)]
    assert "Utilisation : 40.0 %" in details
    assert "Estimated Utilisation : 40.0 %" in details
    assert "Estimated Beside That : 2.000 s" in details
    rows = {row.id: row for row in Trend().make_rows(usage)}
    assert (rows["a"].compute, rows["a"].is_estimate) == (40.0, True)
    assert (rows["b"].compute, rows["b"].is_estimate) == (25.0, False)


def test_what_is_measured_roughly_is_an_estimate(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """SCH-4: the GPU's own figure is that of both, and each has what the page says."""
    for name in "ab":
        world.add(name, 0, metered=lib.CGPU_METERED | METERED_ROUGHLY)
    world.pass_seconds(5)
    its = world.compute("a")
    assert (its.measured_percent, its.estimated_percent, its.estimated_ns) == (None, 25.0, 0)
    usage = parse_usage(world.usage().as_json())
    table.print_tables(usage)
    output = capsys.readouterr().out
    assert output.count("~25% / 50.0%") == 2
    assert "prio_ratio 80, 40% busy" in output
    assert {(row.compute, row.is_estimate) for row in Trend().make_rows(usage)} == {(25.0, True)}
    details = [" ".join(line.split()) for line in format_usage(usage)]
    assert (
        details.count("Utilisation : N/A") == details.count("Estimated Utilisation : 25.0 %") == 2
    )
