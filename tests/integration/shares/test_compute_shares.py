"""Real processes share a simulated GPU in real time: shares by the GPU's own account.

Within 3 points over 10 s, on a machine where anything may be late (SCH-2, SCH-3, SCH-6,
SCH-11; in virtual time the bars are tenths of a point, see the model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_sim import make_driver_dir
from lab.containers.guests import guest_python
from lab.shares.compute import PROGRAMS
from lab.worlds.compute import Players

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.alone(1), pytest.mark.timeout(300)]

POINTS = 3.0
CEILING_POINTS = 1.2  # cycles of 350 ms, one more or less in 10 s, and each wake-up late
BUSY = 60.0  # 28 where no more is in flight on such a GPU than on others


@pytest.fixture
def players() -> Iterator[Players]:
    made = Players()
    yield made
    made.stop()


def is_near(shares: dict[str, float], expected: dict[str, float]) -> bool:
    """Whether each is within so many points of what it should be."""
    return all(abs(shares[tag] - share) <= POINTS for tag, share in expected.items())


def test_one_to_two(players: Players) -> None:
    """SCH-6."""
    players.spin("one", "--weight 1", "us=50")
    players.spin("two", "--weight 2", "us=50")
    shares = players.measure()
    assert is_near(shares.parts(), {"one": 100 / 3, "two": 200 / 3})


def test_one_to_two_where_the_driver_cannot_write_values(players: Players) -> None:
    """SCH-6: events take the place of markers."""
    players.spin("one", "--weight 1", "us=50", CGPU_SIM_NO_WRITE_VALUE="1")
    players.spin("two", "--weight 2", "us=500", CGPU_SIM_NO_WRITE_VALUE="1")
    shares = players.measure()
    assert is_near(shares.parts(), {"one": 100 / 3, "two": 200 / 3})


@pytest.mark.parametrize(("most", "least"), [(50, 50000), (50000, 50)])
def test_nine_to_one_with_kernels_of_50_us_against_50_ms(
    players: Players, most: int, least: int
) -> None:
    """SCH-6, SCH-11."""
    programs = {"most": (9, most), "least": (1, least)}
    # While it is alone, who comes first fills the driver's queue: with kernels of 50 ms, for 51 s.
    for tag, (weight, us) in sorted(programs.items(), key=lambda item: item[1][1]):
        players.spin(tag, f"--weight {weight}", f"us={us}")
    shares = players.measure()
    assert is_near(shares.parts(), {"most": 90, "least": 10})


@pytest.mark.parametrize(("light", "heavy"), [(100, 20_000), (20_000, 100)])
def test_one_to_nine_where_kernels_run_whole_in_order_of_arrival(
    players: Players, light: int, heavy: int
) -> None:
    """SCH-6: one kernel of the other's in a turn takes what 200 of one's own take."""
    make_driver_dir(players.world.driver, in_order=True)
    programs = {"light": (1, light), "heavy": (9, heavy)}
    for tag, (weight, us) in sorted(programs.items(), key=lambda item: item[1][1]):
        players.spin(tag, f"--weight {weight}", f"us={us}")
    shares = players.measure()
    assert is_near(shares.parts(), {"light": 10, "heavy": 90})


@pytest.mark.parametrize("other", [50, 5000])
def test_one_to_one_where_kernels_take_what_may_be_in_flight(players: Players, other: int) -> None:
    """SCH-8: pace looks about as often as such a kernel ends."""
    players.spin("middle", "--weight 1", "us=500")
    players.spin("other", "--weight 1", f"us={other}")
    shares = players.measure()
    assert is_near(shares.parts(), {"middle": 50, "other": 50})


@pytest.mark.parametrize(("gap_us", "due"), [(500, 44.4), (2000, 33.3)])
def test_a_program_that_runs_bursts_gets_what_it_would_of_a_divided_gpu(
    players: Players, gap_us: int, due: float
) -> None:
    """SCH-6: bursts of 2 ms beside one that is always busy. It had 11 % while turns were fixed."""
    players.spin("bursts", "--weight 1", f"us=100 sync=20 idle_us={gap_us} stream=nonblocking")
    players.spin("busy", "--weight 1", "us=1000")
    shares = players.measure()
    assert shares.points["bursts"] > 0.7 * due, shares
    assert shares.points["busy"] > 0.8 * (100 - due), shares


def test_a_program_with_thousands_of_kernels_has_its_half(players: Players) -> None:
    """SCH-6: each was launched alone, to be measured."""
    players.spin("many", "--weight 1", "us=100 kinds=2880 stream=nonblocking")
    players.spin("one", "--weight 1", "us=1000")
    shares = players.measure(warm_up=4)
    assert is_near(shares.parts(), {"many": 50, "one": 50})


def test_bursts_get_their_part_beside_kernels_that_are_ten_times_as_long(
    players: Players,
) -> None:
    """They wait for no kernel's end: 33 percent are due, and they had 9."""
    players.spin("busy", "--weight 1", "us=20000")
    players.spin("bursts", "--weight 1", "us=100 sync=20 idle_us=2000")
    shares = players.measure()
    assert shares.points["bursts"] > 15, shares


def test_a_turn_lasts_through_short_rests_where_kernels_run_in_order(players: Players) -> None:
    """SCH-6: each burst waited for a whole kernel. Of the 44 percent that are due they had 9."""
    make_driver_dir(players.world.driver, in_order=True)
    # the first is alone until the second has begun; kernels of 20 ms that it queues then are all
    # before the others on such a GPU, for 20 s
    players.spin("bursts", "--weight 1", "us=100 sync=20 idle_us=500")
    players.spin("busy", "--weight 1", "us=20000")
    shares = players.measure()
    assert shares.points["bursts"] > 15, shares


def test_programs_that_leave_the_gpu_idle_do_not_wait_for_each_other(players: Players) -> None:
    """Each launches short kernels one by one, and rests: in turns they did half as much each."""
    how = "us=5 sync=20 idle_us=100 stream=nonblocking"
    players.spin("one", "--weight 1", how)
    players.spin("two", "--weight 2", how)
    together = players.measure_together()
    assert together > 0.5, together


def test_many_processes_take_nothing_from_a_neighbour_with_one(players: Players) -> None:
    """SCH-6: each had work in flight when the gate closed, and the one had 34 %."""
    players.spin("one", "--weight 1", "us=1000")
    players.spin("many", "--weight 1", "us=300 processes=16 stream=nonblocking")
    shares = players.measure(warm_up=4)
    assert shares.points["one"] > 41, shares


def test_three_with_30_percent_each(players: Players) -> None:
    """SCH-3: of the GPU's time, whatever the others do; 10 percent stay idle."""
    for tag, how in (("short", "us=50"), ("middle", "us=500"), ("long", "us=5000")):
        players.spin(tag, "--weight 6 --policy 3", how)
    shares = players.measure()
    assert is_near(shares.points, {"short": 30, "middle": 30, "long": 30})


def test_two_keep_a_gpu_busy_that_answers_late(players: Players) -> None:
    """300 us from a launch to its begin, and from an end to its being seen."""
    make_driver_dir(players.world.driver, dispatch_us=300, completion_us=300)
    players.spin("least", "--weight 1", "us=100")
    players.spin("most", "--weight 3", "us=100")
    shares = players.measure()
    assert sum(shares.points.values()) > BUSY


def test_a_ceiling_of_5_percent_of_a_gpu_that_answers_late(players: Players) -> None:
    """SCH-3."""
    make_driver_dir(players.world.driver, dispatch_us=300, completion_us=300)
    players.spin("lone", "--weight 1 --policy 3", "us=500")
    shares = players.measure()
    assert abs(shares.points["lone"] - 5) <= CEILING_POINTS


def test_programs_that_nobody_here_wrote_share_two_to_one(players: Players) -> None:
    """SCH-6, SCH-8: Numba on the legacy stream, cuda.bindings on a stream of its own."""
    python = guest_python()
    bindings = (python, "-W", "ignore", PROGRAMS / "bindings_loop.py")
    players.start("bindings", "--weight 1", *bindings)
    numba = (python, "-W", "ignore", PROGRAMS / "numba_loop.py")
    players.start("numba", "--weight 2", *numba, CGPU_SIM_KERNEL_US="500")
    shares = players.measure()
    assert is_near(shares.parts(), {"numba": 200 / 3, "bindings": 100 / 3})


def test_processes_threads_and_graphs_of_one_share_count_together(players: Players) -> None:
    """SCH-8: three processes of four threads on streams of their own against one with graphs."""
    players.spin("many", "--weight 1", "us=50 processes=3 threads=4 stream=nonblocking")
    players.spin("graphs", "--weight 1", "us=50 graph=20 stream=per_thread")
    shares = players.measure()
    assert is_near(shares.parts(), {"many": 50, "graphs": 50})
