"""Clocks that are set by an hour, and machines that were suspended. K8S-12."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from cgpu_k8s.admission.certificates import Keys, renew_keys
from cgpu_k8s.objects.allocations import Allocation, write_annotations
from cgpu_k8s.objects.gpus import OfferedGpu
from cgpu_k8s.objects.nodes import BINPACK
from cgpu_k8s.objects.pods import read_pod
from cgpu_k8s.scheduler import leader_lease
from cgpu_k8s.scheduler.allocation import NodeInfo, allocate_gpus
from cgpu_k8s.scheduler.leader_lease import PATIENCE, LeaderLease
from cgpu_node.settings.kubernetes import CGPU

pytestmark = pytest.mark.unit

HOUR = 3600.0
NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
RENEWED = 2.0  # seconds between two renewals of a scheduler, by its own defaults


class Machine:
    """The clocks of a machine, in seconds; a scheduler on it renews its lease."""

    def __init__(self) -> None:
        self.wall, self.running, self.suspended = NOW.timestamp(), 1000.0, 0.0
        self.leader_lease = LeaderLease("host-1")

    def clock_gettime(self, which: int) -> float:
        assert which == time.CLOCK_BOOTTIME
        return self.running + self.suspended

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.running += seconds

    def suspend(self, seconds: float) -> None:
        self.wall += seconds
        self.suspended += seconds

    def renewal(self) -> dict[str, Any]:
        when = datetime.fromtimestamp(self.wall, timezone.utc).isoformat()
        return {"spec": {"holderIdentity": "host-1_x", "renewTime": when}}

    def renew(self) -> None:
        self.work(RENEWED)
        self.leader_lease.update_lease(self.renewal(), leader_lease.read_clock())

    @property
    def problem(self) -> str:
        return self.leader_lease.find_problem(leader_lease.read_clock())


@pytest.fixture(name="machine")
def _machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(time, "clock_gettime", made.clock_gettime)
    for _ in range(40):
        made.renew()
    return made


def test_nothing_is_bound_after_a_suspension_until_the_lease_is_renewed_again(
    machine: Machine,
) -> None:
    """Another scheduler may have taken the lease meanwhile."""
    assert machine.problem == ""
    machine.suspend(HOUR)
    assert "has not renewed its lease for 3600 s" in machine.problem
    machine.renew()
    assert machine.problem == ""


def test_a_renewal_from_before_a_suspension_is_as_old_as_it_is(machine: Machine) -> None:
    """One that waits in the connection when the machine goes on."""
    machine.work(RENEWED)
    waiting = machine.renewal()
    machine.suspend(HOUR)
    machine.leader_lease.update_lease(waiting, leader_lease.read_clock())
    assert "has not renewed its lease for 3600 s" in machine.problem


def test_a_clock_that_is_set_ahead_stops_no_binding(machine: Machine) -> None:
    machine.wall += HOUR
    assert machine.problem == ""
    machine.renew()
    assert machine.problem == ""
    late = machine.renewal()
    machine.work(PATIENCE + 1)
    machine.leader_lease.update_lease(late, leader_lease.read_clock())
    assert machine.problem  # and what comes late is late by the new time


def test_a_clock_that_is_set_back_stops_bindings_for_thirty_renewals(machine: Machine) -> None:
    """It cannot be told from renewals that come an hour late."""
    machine.wall -= HOUR
    assert machine.problem == ""
    for _ in range(29):
        machine.renew()
        assert machine.problem
    machine.renew()
    assert machine.problem == ""


@pytest.mark.parametrize("jump", [-1, 1])
def test_the_guard_renews_nothing_when_its_clock_jumps(jump: int) -> None:
    keys = renew_keys(Keys(), "cgpu-guard.kube-system.svc", NOW)
    assert renew_keys(keys, "cgpu-guard.kube-system.svc", NOW + jump * timedelta(hours=1)) == keys


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_decision_is_the_same_at_any_time(jump: float) -> None:
    """Only what published tools read as the time of the decision differs; nobody decides by it."""
    limits = {"aliyun.com/gpu-mem": "2"}
    pod = read_pod(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
    )
    gpus = {"GPU-a": OfferedGpu("GPU-a", 0, 16160)}
    assert pod.request
    allocation = allocate_gpus(NodeInfo("a", CGPU, BINPACK, [gpus["GPU-a"]]), pod.request)
    assert isinstance(allocation, Allocation)
    now, then = (
        write_annotations(allocation, pod, gpus, int(when * 1e9))
        for when in (NOW.timestamp(), NOW.timestamp() + jump)
    )
    assert {name for name in now if now[name] != then[name]} == {
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "scheduler.framework.gpushare.assume-time",
    }
