"""Memory taken past cgpu is found, charged, told and acted on (MEM-9, REL-5, REL-6)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import state
from cgpu_doctor.finding import Ground
from cgpu_install.machine import Machine
from cgpu_node import exclusive
from cgpu_node.exclusive import Exclusive
from cgpu_sim import Fault, inject
from lab.machine.audited import BYPASS, Bypass, configure, until
from lab.worlds.audit import FAST, Audited, scrape
from lab.worlds.cgpu_run import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

KILL = f'{FAST}\naction = "kill"'
CAP, CONTEXT = 6043, 105  # MiB
OUT_OF_MEMORY = 2


@pytest.fixture
def world() -> Iterator[Audited]:
    made = Audited()
    yield made
    made.close()


def test_what_is_taken_around_cgpu_counts_as_used_until_it_is_given_back(world: Audited) -> None:
    world.serve(FAST, "--metrics", "127.0.0.1:0")
    program = world.program()
    assert program.ask("take 1000") == 0
    before = program.ask("free")
    pid = program.ask("past 4000")
    until(lambda: world.outside() == 4000 + CONTEXT, "all of it is charged, the context too")
    assert 0 <= before - 4000 - CONTEXT - program.ask("free") <= 2, "shown in whole blocks"
    assert program.ask("take 1000") == OUT_OF_MEMORY
    assert program.ask("take 500") == 0, "what is left of the cap is there"
    gpu = world.status()
    assert gpu["outside_bytes"] == (4000 + CONTEXT) * MIB
    assert 0 <= gpu["free_bytes"] // MIB - program.ask("free") <= 2
    (container,) = world.smi()["containers"]
    assert container["gpus"][0]["used_bytes"] // MIB == 1500 + 4000 + 2 * CONTEXT
    figures = scrape(world)
    assert figures["cgpu_container_memory_outside_bytes"] == (4000 + CONTEXT) * MIB
    assert figures["cgpu_container_memory_bypasses_total"] == 1
    assert figures["cgpu_gpu_audit_readable"] == 1
    (line,) = world.logged("memory_bypass").splitlines()
    assert f"pid={pid} " in line
    assert f"bytes={(4000 + CONTEXT) * MIB}" in line
    assert str(Path(f"/proc/{pid}/exe").readlink()) in line
    program.ask("end")
    until(lambda: world.outside() == 0, "it is no longer charged")
    assert program.ask("take 1000") == 0
    assert "bypass_ended" not in world.logged()


@pytest.mark.parametrize("how", ["past", "lone"])
def test_kill_ends_who_holds_it_and_nobody_else(world: Audited, how: str) -> None:
    world.serve(KILL)
    program, other = world.program(), world.program()
    assert program.ask("take 500") == other.ask("take 500") == 0
    pid = program.ask(f"{how} 1000")
    until(lambda: f"pid={pid}" in world.logged("bypass_ended"), "it is ended")
    until(lambda: all(page.outside_bytes == 0 for page in world.pages()), "nothing is charged")
    assert program.ask("take 500") == other.ask("take 500") == 0
    assert len(world.logged("bypass_ended").splitlines()) == 1


@pytest.mark.parametrize("library", ["libnvcuvid.so.1", "libnvidia-glcore.so.535.261.03"])
@pytest.mark.parametrize("how", ["past", "beside"])
def test_who_uses_video_or_graphics_is_charged_and_never_accused(
    world: Audited, library: str, how: str
) -> None:
    """With a place in the ledger or, for programs of graphics only, without one."""
    loaded = world.folder / library
    shutil.copy(world.driver / "libnvidia-ml.so.1", loaded)
    world.serve(KILL)
    program = world.program()
    assert program.ask("take 500") == program.ask(f"load {loaded}") == 0
    assert (program.ask(f"{how} 1000") == 0) is (how == "beside"), "the other answers with a pid"
    until(lambda: world.outside() > 900, "it is charged")
    until(lambda: world.logged("memory_unmetered"), "it is logged")
    time.sleep(1)
    assert program.ask("take 500") == 0, "who asks is alive"
    assert program.ask("take 4500") == OUT_OF_MEMORY
    assert len(world.logged("memory_unmetered").splitlines()) == 1
    assert "bypass" not in world.logged()


def test_small_pieces_up_to_the_cap_are_never_accused(world: Audited) -> None:
    """The driver packs them into blocks, of which a quarter stays empty."""
    world.serve(KILL)
    program = world.program()
    pieces = program.ask("fill 700000")
    assert pieces == (CAP - CONTEXT) // 2 * 2
    time.sleep(1)
    assert program.ask("free") == 0
    assert world.outside() == 0
    assert [event for event in ("memory_", "bypass", "audit_") if event in world.logged()] == []


def start_foreign(world: Audited) -> tuple[subprocess.Popen[str], Bypass]:
    """A process on the driver itself."""
    real = world.driver / "libcuda.so.1"
    words = [sys.executable, "-I", str(BYPASS), str(real), str(real), "/dev/null"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(words, text=True, env=world.environment(), **pipes)  # type: ignore[call-overload]
    return process, Bypass(process)


def test_a_pod_that_has_the_gpu_whole_is_measured_and_is_no_stranger(world: Audited) -> None:
    """K8S-8: by the GPU's index, too. A container with a share is counted by its ledger alone."""
    exclusive.write(str(world.state), [Exclusive("ml", "train", "main", ("0",))])
    world.serve(FAST, "--metrics", "127.0.0.1:0")
    until(lambda: world.logged("metrics_served"), "metrics are served")
    _, pod = start_foreign(world)
    assert pod.ask("take 1000") == 0
    name = "cgpu_container_memory_used_bytes"
    until(lambda: scrape(world).get(name, 0) == (1000 + CONTEXT) * MIB, "it is measured")
    assert "cgpu_container_compute_estimated_ratio" in scrape(world)
    assert "cgpu_gpu_memory_foreign_bytes" not in scrape(world)
    assert "memory_foreign" not in world.logged()
    program = world.program()
    until(lambda: scrape(world).get("cgpu_gpu_memory_foreign_bytes", 0) > 0, "it is foreign now")
    assert scrape(world)[name] < 1000 * MIB
    exclusive.write(str(world.state), [])
    program.close()
    pod.close()
    until(lambda: "cgpu_gpu_memory_foreign_bytes" not in scrape(world), "the driver is left alone")


def test_a_process_of_nobody_is_told_once_and_let_be(world: Audited) -> None:
    world.serve(KILL)
    program = world.program()
    foreign, stranger = start_foreign(world)
    assert stranger.ask("take 1000") == program.ask("take 100") == 0
    until(lambda: f"pid={foreign.pid}" in world.logged("memory_foreign"), "it is logged")
    pid = program.ask("past 500")
    until(lambda: f"pid={pid}" in world.logged("bypass_ended"), "the audit goes on")
    assert stranger.ask("take 1000") == 0
    assert world.logged("memory_foreign").count(f"pid={foreign.pid} ") == 1
    stranger.close()


def test_a_ruined_ledger_is_caught(world: Audited) -> None:
    world.serve()
    program = world.program()
    assert program.ask("take 3000") == 0
    assert program.ask("ruin") == 0
    until(lambda: world.outside() == 3000 + CONTEXT, "what the driver says is charged")
    assert program.ask("take 3000") == OUT_OF_MEMORY
    until(lambda: world.logged("memory_bypass"), "it is logged")


def test_a_sum_that_was_made_smaller_is_caught(world: Audited) -> None:
    world.serve()
    program = world.program()
    assert program.ask("take 3000") == 0
    assert program.ask("forge") == 0
    until(lambda: world.outside() > 2900, "what the driver says is charged, but for an allowance")
    assert program.ask("take 3200") == OUT_OF_MEMORY
    until(lambda: "tampered" in world.logged("memory_bypass"), "it is logged")


def test_what_a_ledger_admits_beyond_the_cap_is_taken_around_cgpu(world: Audited) -> None:
    world.serve()
    program = world.program()
    assert program.ask("take 1000") == program.ask("confess 8000") == 0
    beyond = 1000 + CONTEXT + 8000 - CAP
    until(lambda: world.outside() > beyond - 100, "it is charged, but for an allowance")
    until(lambda: "image" in world.logged("memory_bypass"), "it is logged")
    assert program.ask("take 1") == OUT_OF_MEMORY
    configure(world.folder, KILL)
    until(lambda: world.logged("bypass_ended"), "who holds it is ended")


def test_honest_programs_that_allocate_and_free_are_never_accused(world: Audited) -> None:
    """Two of them, each up to what is left of its cap, for ten seconds of looks each 0.1 s."""
    world.serve(KILL)
    programs = [world.program(), world.program()]
    assert [program.ask("take 1000") for program in programs] == [0, 0]
    for program in programs:
        program.send(f"churn 10 {CAP - CONTEXT - 1000 - 16}")
    highest, deadline = 0, time.monotonic() + 9
    while time.monotonic() < deadline:
        highest = max([highest, *(page.outside_bytes for page in world.pages())])
        time.sleep(0.02)
    results = [program.answer() for program in programs]
    assert all(done > 100 and refused == 0 for done, refused in results), results
    assert highest == 0
    assert [event for event in ("memory_", "bypass", "audit_") if event in world.logged()] == []


def test_more_processes_than_expected_hide_nobody(world: Audited) -> None:
    world.serve()
    too_many = Fault("nvmlDeviceGetComputeRunningProcesses_v3", result=7)
    inject(world.driver, too_many)
    program = world.program()
    program.ask("past 1000")
    until(lambda: world.outside() == 1000 + CONTEXT, "it is charged")
    assert not world.logged("audit_fails")


def test_a_driver_that_fails_disturbs_nothing_and_charges_stay(world: Audited) -> None:
    world.serve()
    program = world.program()
    assert program.ask("take 100") == 0
    program.ask("past 1000")
    until(lambda: world.outside() == 1000 + CONTEXT, "it is charged")
    inject(world.driver, Fault("nvmlDeviceGetCount_v2", result=999, repeat=True))
    words = "nvmlDeviceGetCount_v2: Unknown Error (error 999)"
    until(lambda: words in world.logged("audit_fails"), "it is logged")
    assert program.ask("take 500") == 0
    program.ask("end")
    time.sleep(0.5)
    assert world.outside() == 1000 + CONTEXT
    assert len(world.logged("audit_fails").splitlines()) == 1
    ground = Ground(Machine(), str(world.state), str(world.driver))
    seen = [found for found in state.check_server(ground) if found.level == "warning"]
    assert ["the audit sees nothing" in found.what for found in seen] == [True]


def test_a_driver_that_hangs_holds_nobody_up(world: Audited) -> None:
    server = world.serve()
    hang = Fault("nvmlDeviceGetMemoryInfo_v2", delay_us=60_000_000, repeat=True)
    inject(world.driver, hang)
    program = world.program()
    begun = time.monotonic()
    assert program.ask("take 500") == 0
    until(lambda: children(server.pid), "the driver is asked")
    assert world.status()["memsize"] == 6337173913
    server.terminate()
    server.wait(20)
    assert time.monotonic() - begun < 30, "nothing waited for the driver"
    assert not world.logged("audit_fails"), "it ended in order"


def test_off_lets_go_of_the_driver_and_charges_nobody(world: Audited) -> None:
    server = world.serve()
    program = world.program()
    assert program.ask("take 100") == 0
    program.ask("past 1000")
    until(lambda: world.outside() == 1000 + CONTEXT, "it is charged")
    assert children(server.pid)
    configure(world.folder, 'action = "off"')
    until(lambda: world.outside() == 0, "it is charged no longer")
    until(lambda: not children(server.pid), "the driver is let go")
    configure(world.folder, FAST)
    until(lambda: world.outside() == 1000 + CONTEXT, "and charged again")
    program.close()
    until(lambda: not children(server.pid), "without containers nobody asks the driver")


def children(pid: int) -> list[str]:
    """Those of the process's first thread and of its others."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            found += (task / "children").read_text().split()
    return found


def test_the_next_server_keeps_what_was_charged(world: Audited) -> None:
    world.serve()
    program = world.program()
    assert program.ask("take 100") == 0
    program.ask("past 1000")
    until(lambda: world.outside() == 1000 + CONTEXT, "it is charged")
    world.serve(FAST, "--replace")
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert world.outside() == 1000 + CONTEXT
    assert 0 <= CAP - 100 - CONTEXT - 1000 - CONTEXT - program.ask("free") <= 2


def test_a_session_without_namespaces_is_audited_too(world: Audited) -> None:
    world.serve()
    program = world.program("--no-namespaces")
    program.ask("past 1000")
    until(lambda: world.outside() == 1000 + CONTEXT, "it is charged")
