"""Arbitration through its Python binding: errors, life, and what it writes into the limits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from cgpu_native._native import lib

import cgpu_native
from cgpu_native.arbitration import Arbitration

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

WEIGHTED_FAIR = 6
STATE = 3
FREE = 3
UUID = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def container(tmp_path: Path) -> tuple[Path, Path]:
    gpu = cgpu_native.LimitsGpu(UUID, 0, 1 << 30, 1 << 34)
    limits = tmp_path / "limits"
    limits.write_bytes(cgpu_native.pack_limits("some", [gpu]))
    cgpu_native.create_ledger(tmp_path, "ledger")
    return limits, tmp_path / "ledger"


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _gpu(limits: Path) -> cgpu_native.LimitsGpu:
    return cgpu_native.read_limits(limits).gpus[0]


def _is_arbitrated(limits: Path) -> None:
    """Wait for the arbiter's next heartbeat."""
    first = _gpu(limits).heartbeat_ns
    _until(lambda: _gpu(limits).heartbeat_ns > first)


def _threads() -> int:
    return psutil.Process().num_threads()


def test_the_thread_lives_as_long_as_the_arbitration() -> None:
    before = _threads()
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        assert _threads() == before + 1
        assert arbitration.read_figures().tenants == 0
    assert _threads() == before
    arbitration.close()
    with pytest.raises(ValueError, match="closed"):
        arbitration.read_figures()


def test_a_lone_container_is_free_and_gets_signs_of_life_rel_2(
    container: tuple[Path, Path],
) -> None:
    limits, ledger = container
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        key = arbitration.add(limits, ledger, number=0, weight=3)
        arbitration.begin()
        _until(lambda: _gpu(limits).gate & STATE == FREE and _gpu(limits).share_ppm > 0)
        first = _gpu(limits).heartbeat_ns
        _until(lambda: _gpu(limits).heartbeat_ns > first)
        assert arbitration.read_figures().tenants == 1
        arbitration.set_tenant(key, weight=1, high_priority=True)
        arbitration.set_rules(1, 8, 50)
        arbitration.remove(key)
        assert arbitration.read_figures().tenants == 0
        with pytest.raises(cgpu_native.NativeError, match="remove container"):
            arbitration.remove(key)
        with pytest.raises(cgpu_native.NativeError, match="weight"):
            arbitration.set_tenant(key, weight=1, high_priority=False)


def test_nothing_is_decided_before_all_that_run_are_added_rel_2(
    container: tuple[Path, Path],
) -> None:
    limits, ledger = container
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        arbitration.add(limits, ledger, number=0, weight=1)
        arbitration.add(limits, ledger, number=0, weight=1)
        assert arbitration.read_figures().steps == 0
        arbitration.begin()
        _until(lambda: arbitration.read_figures().steps > 0)


@pytest.mark.parametrize("rules", [(7, 4, 80), (6, 0, 80), (6, 26, 80), (6, 4, 19), (6, 4, 100)])
def test_rules_out_of_range_are_refused_sch_9(rules: tuple[int, int, int]) -> None:
    with pytest.raises(cgpu_native.NativeError, match="out of range"):
        Arbitration.start(*rules)
    with (
        Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration,
        pytest.raises(cgpu_native.NativeError, match="out of range"),
    ):
        arbitration.set_rules(*rules)


def test_files_that_are_not_ours_are_refused(container: tuple[Path, Path], tmp_path: Path) -> None:
    limits, ledger = container
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        with pytest.raises(FileNotFoundError):
            arbitration.add(tmp_path / "none", ledger, number=0, weight=1)
        with pytest.raises(cgpu_native.FormatError):
            arbitration.add(ledger, ledger, number=0, weight=1)
        with pytest.raises(cgpu_native.NativeError, match="out of range"):
            arbitration.add(limits, ledger, number=1, weight=1)
        (tmp_path / "link").symlink_to(ledger)
        with pytest.raises(OSError, match="link"):
            arbitration.add(limits, tmp_path / "link", number=0, weight=1)


def test_there_is_room_for_so_many_containers_and_no_descriptor_is_lost(
    container: tuple[Path, Path],
) -> None:
    limits, ledger = container
    before = psutil.Process().num_fds()
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        for _ in range(lib.CGPU_MAX_TENANTS):
            arbitration.add(limits, ledger, number=0, weight=1)
        with pytest.raises(cgpu_native.NativeError, match="no free process slot"):
            arbitration.add(limits, ledger, number=0, weight=1)
        assert psutil.Process().num_fds() == before + lib.CGPU_MAX_TENANTS
    assert psutil.Process().num_fds() == before


def test_the_interpreter_goes_on_while_the_thread_is_busy(container: tuple[Path, Path]) -> None:
    limits, ledger = container
    seen: list[int] = []
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as arbitration:
        watcher = threading.Thread(
            target=lambda: seen.extend(arbitration.read_figures().steps for _ in range(200))
        )
        watcher.start()
        arbitration.begin()
        for _ in range(50):
            arbitration.remove(arbitration.add(limits, ledger, number=0, weight=1))
        watcher.join(10)
    assert len(seen) == 200
    assert seen == sorted(seen)


def test_gpus_that_are_joined_have_one_thread_and_go_on_with_their_containers(
    container: tuple[Path, Path],
) -> None:
    """SCH-12."""
    before = _threads()
    limits, ledger = container
    with Arbitration.start(WEIGHTED_FAIR, 4, 80) as one, Arbitration.start(1, 4, 80) as two:
        one.add(limits, ledger, number=0, weight=1)
        one.begin()
        two.begin()
        for groups, threads in (([[one, two]], 1), ([[one, two]], 1), ([[one], [two]], 2)):
            for group in groups:
                Arbitration.join(group)
            assert _threads() == before + threads
            _is_arbitrated(limits)
        Arbitration.join([two, one])
        steps = one.read_figures().steps
        two.close()
        _until(lambda: one.read_figures().steps > steps)
    assert _threads() == before
