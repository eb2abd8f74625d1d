"""An extender binds nothing while another replica's scheduler leads.

K8S-12.
"""

from __future__ import annotations

import asyncio

import pytest

from cgpu_k8s.objects.fields import ObjectError
from cgpu_k8s.scheduler import server
from cgpu_k8s.scheduler.leader_lease import PATIENCE, LeaderLease, read_clock
from lab.worlds.extender import Json, World, pod

pytestmark = pytest.mark.unit


def lease(holder: str, renewal: str) -> Json:
    """A lease that was renewed at this second."""
    when = f"2026-11-23T21:54:{int(renewal):02}.000000Z"
    return {"spec": {"holderIdentity": holder, "renewTime": when}}


def test_nothing_is_bound_unless_our_scheduler_renews_its_lease() -> None:
    leader_lease = LeaderLease("host-1")
    assert "nobody does" in leader_lease.find_problem(0)
    assert leader_lease.update_lease(lease("host-1_x", "1"), 0)
    assert "no renewal of the lease of host-1_x has been seen yet" in leader_lease.find_problem(0)
    assert not leader_lease.update_lease(lease("host-1_x", "1"), 1)  # the same again is no renewal
    assert leader_lease.find_problem(1)
    assert not leader_lease.update_lease(lease("host-1_x", "2"), 2)
    assert leader_lease.find_problem(2 + PATIENCE) == ""
    assert "has not renewed its lease for 11 s" in leader_lease.find_problem(3 + PATIENCE)
    leader_lease.update_lease(lease("host-1_x", "20"), 20)
    assert leader_lease.find_problem(20) == ""
    assert not leader_lease.update_lease(lease("host-10_x", "21"), 21)
    assert "host-1 does not lead, host-10_x does" in leader_lease.find_problem(21)
    assert leader_lease.update_lease(lease("host-1_y", "22"), 22)
    leader_lease.clear_lease()
    assert "nobody does" in leader_lease.find_problem(22)
    assert leader_lease.update_lease(lease("host-1_y", "23"), 23)


def test_a_renewal_that_is_seen_late_is_as_old_as_it_is() -> None:
    """As one that an extender reads first when it goes on after it was stopped."""
    leader_lease = LeaderLease("host-1")
    for second in range(4):
        leader_lease.update_lease(lease("host-1_x", str(second)), 100 + second)
    leader_lease.update_lease(lease("host-1_x", "4"), 100 + 4 + PATIENCE + 1)
    assert "has not renewed its lease for 11 s" in leader_lease.find_problem(100 + 4 + PATIENCE + 1)
    leader_lease.update_lease(lease("host-1_x", "16"), 100 + 16)
    assert leader_lease.find_problem(100 + 16) == ""
    with pytest.raises(ObjectError, match="renewTime=soon: expected a time"):
        leader_lease.update_lease(
            {"spec": {"holderIdentity": "host-1_x", "renewTime": "soon"}}, 117
        )
    assert leader_lease.find_problem(117 + PATIENCE)


def test_a_fenced_extender_answers_filter_and_refuses_to_bind() -> None:
    given = pod("p")
    world = World(given)
    world.leader_lease = LeaderLease("host-1")

    async def work() -> None:
        assert (await world.filter(given))["NodeNames"] == ["a", "b"]
        assert "host-1 does not lead" in await world.bind(given)
        assert world.server.calls == []

    world.run(work)


def test_an_extender_that_was_stopped_within_a_call_sends_nothing_when_it_goes_on() -> None:
    world = World(pod("p"))
    leader_lease = world.leader_lease = LeaderLease("host-1")
    leader_lease.update_lease(lease("host-1_x", "1"), read_clock())
    leader_lease.update_lease(lease("host-1_x", "2"), read_clock())
    world.server.stop = leader_lease.clear_lease

    async def work() -> None:
        assert "host-1 does not lead" in await world.bind(pod("p"))
        assert world.server.bindings == []
        assert world.taken() == {}

    world.run(work)


def test_calls_wait_for_what_a_new_leader_lacks_instead_of_failing() -> None:
    """A pod whose call fails may be tried again only a minute later."""
    given = pod("p")
    world = World(given)
    world.leader_lease = LeaderLease("host-1")
    world.leader_lease.update_lease(lease("host-1_x", "1"), 0)
    world.missing = "the API server has not listed pods yet"

    async def work() -> None:
        filtered = asyncio.ensure_future(world.filter(given))
        await asyncio.sleep(3 * server.LOOK)
        assert not filtered.done()
        world.missing = ""
        assert (await filtered)["NodeNames"] == ["a", "b"]
        bound = asyncio.ensure_future(world.bind(given))
        await asyncio.sleep(3 * server.LOOK)
        assert not bound.done()
        assert world.leader_lease is not None
        world.leader_lease.update_lease(lease("host-1_x", "2"), read_clock())
        assert await bound == ""

    world.run(work)
