"""Bursts of pods, extenders killed while they bind, leaders that freeze, beside a real Kubernetes.

K8S-12. ``bench/cluster.py`` does the same with more of everything.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lab.cluster import crowd, failures
from lab.cluster.world import in_use
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.programs import Release
from lab.kubernetes.scheduler import install, scheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system

NODES, GPUS = 10, 8
PODS = 200
PATIENCE = 120.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as running:
        install(running)
        crowd.asked(running, lambda client: crowd.add_nodes(client, NODES, GPUS))
        yield running


@pytest.fixture(autouse=True)
def _no_pods(plane: ControlPlane) -> Iterator[None]:
    yield
    crowd.asked(plane, crowd.remove_pods)


def test_a_burst_beyond_all_gpus_fills_each_and_no_binding_is_refused(
    plane: ControlPlane,
) -> None:
    chance = random.Random(20261125)
    sizes = {f"p{n:03}": chance.choice((3, 8, 9, 11)) for n in range(PODS)}
    assert sum(sizes.values()) > NODES * GPUS * crowd.UNITS

    def full() -> bool:
        found = crowd.asked(plane, crowd.outcome)
        room = found.room(NODES * GPUS)
        return all(sizes[name] > room for name in found.waiting)

    before = len(plane.bindings())
    crowd.asked(plane, lambda client: crowd.add_pods(client, sizes))
    with scheduling(plane) as replica:
        wait_until(full, "no pod waits for which a GPU has room", PATIENCE)
        metrics = (replica.answer("metrics") or b"").decode()
    found = crowd.asked(plane, crowd.outcome)
    assert (found.excess, found.wrong) == (0, [])
    assert [each.status for each in plane.bindings()[before:]] == [201] * found.bound
    assert f'cgpu_extender_bindings_total{{outcome="done"}} {found.bound:.1f}' in metrics
    assert metrics.count("cgpu_extender_bindings_total{") == 1


def test_extenders_killed_while_they_bind_double_and_lose_nothing(plane: ControlPlane) -> None:
    with in_use(plane, "alone") as world:
        for fate in failures.FATES:
            failures.kill_while_binding(world.leader, world.proxy, fate)
        found = world.end()
    assert (found.excess, found.wrong, found.waiting) == (0, [], [])


def test_a_frozen_leader_that_goes_on_beside_its_successor_changes_nothing(
    plane: ControlPlane,
) -> None:
    with in_use(plane, "one", "two") as world:
        frozen = world.leader
        failures.freeze(frozen, world.other, world.proxy, together=1)
        assert world.leader is not frozen
        found = world.end()
        late = [each for each in world.proxy.bindings if each.status != 201]
    assert {each.status for each in late} == {409}, late  # the successor has bound these pods
    assert (found.excess, found.wrong, found.waiting) == (0, [], [])
