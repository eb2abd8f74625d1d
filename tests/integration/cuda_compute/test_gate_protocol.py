"""What a process tells the arbiter, and what it does when the gate closes, opens or is deserted."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from lab.driver.sim_cuda import ask, read, tell
from lab.driver.stopping import await_stop
from lab.shares.gate_world import CLOSED, FREE, OPEN, PRESSED, Gate

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

REL_2_NS = 250_000_000

# Launches one kernel of so many us for each line, and shows its status.
LAUNCHER = """
from lab.calls.gate_calls import *
kernels = begin()
check(kernels.launch(20))
check(cuda.cuCtxSynchronize())
event = made(cuda.cuEventCreate, 1)  # CU_EVENT_BLOCKING_SYNC
show("ready")
for line in sys.stdin:
    if line.strip() == "done?":
        show(done())
    elif line.strip() == "sync":
        show(cuda.cuCtxSynchronize())
    elif line.strip() == "event":
        check(kernels.launch(20))
        show(cuda.cuEventRecord(event, None) or cuda.cuEventSynchronize(event))
    else:
        show(kernels.launch(int(line)))
"""


def test_work_is_active_until_the_last_kernel_has_ended(proxied: Proxied, gate: Gate) -> None:
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        assert ask(process, "200000") == "0"
        assert gate.work.active == gate.word
        rung = gate.bell
        gate.set(CLOSED)
        assert gate.work.active != 0
        assert ask(process, "done?") == "False"
        gate.wait_for_quiet()
        assert ask(process, "done?") == "True"
        assert gate.bell > rung
        process.communicate(timeout=60)


def test_a_synchronised_program_is_quiet_without_a_marker(proxied: Proxied, gate: Gate) -> None:
    """Programs that synchronise pay for no marker."""
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        assert ask(process, "20") == "0"
        assert ask(process, "sync") == "0"
        before = gate.work.markers
        for _ in range(5):
            assert ask(process, "20") == "0"
            assert ask(process, "sync") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert gate.work.markers == before
        process.communicate(timeout=60)


def test_while_others_wait_a_program_that_waits_for_an_event_is_idle_without_a_marker(
    proxied: Proxied, gate: Gate
) -> None:
    """Such a program held its turn until a marker had passed, as nobody knows what an event is for.

    A thread that is slow between its launch and the event still gets a marker; hence the loop.
    """
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        gate.set(PRESSED)
        markers = [gate.work.markers]
        while len(markers) < 100 and markers[-1] not in markers[:-1]:
            assert ask(process, "event") == "0"
            gate.wait(lambda: gate.work.idle == 1)
            markers.append(gate.work.markers)
        assert markers[-1] in markers[:-1]
        process.communicate(timeout=60)


def test_while_others_wait_a_process_without_work_says_so_once(
    proxied: Proxied, gate: Gate
) -> None:
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        for _ in range(3):
            gate.set(PRESSED)
            assert ask(process, "20000") == "0"
            assert gate.work.idle == 0
            gate.wait(lambda: gate.work.idle == 1)
            assert ask(process, "done?") == "True"
            assert gate.work.active == gate.word
        process.communicate(timeout=60)


def test_work_launched_under_a_free_gate_is_waited_for_when_it_closes(
    proxied: Proxied, gate: Gate
) -> None:
    """Nothing was counted: every stream that there is may have some."""
    program = """
    from lab.calls.gate_calls import *
    kernels = begin()
    streams = [made(cuda.cuStreamCreate, flags % 2) for flags in range(40)]
    check(kernels.launch(20, streams[0]))
    check(kernels.launch(20000, streams[int(sys.argv[1])]))
    show("launched")
    sys.stdin.readline()
    show([done(stream) for stream in streams].count(False))
    """
    gate.set(FREE)
    for place in ("38", "39"):
        with proxied.start(program, place) as process:
            assert read(process) == "launched"
            gate.set(CLOSED)
            gate.wait_for_quiet()
            assert ask(process, "") == "0"
            process.communicate(timeout=60)
        gate.set(FREE)


def test_rel_2_a_deserted_gate_opens_for_the_containers_own_share_and_is_obeyed_again(
    proxied: Proxied, gate: Gate
) -> None:
    """REL-2: an arbiter that is gone keeps nobody waiting; one that is back is obeyed."""
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        gate.limits.share_ppm = 1_000_000
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "20")
        gate.wait_for_waiting()
        gate.alive = False
        assert read(process) == "0"
        deserted = time.monotonic_ns() - gate.limits.heartbeat_ns
        assert deserted < 2 * REL_2_NS  # twice, on a machine where anything may be late
        assert ask(process, "20") == "0"
        gate.alive = True
        gate.wait_for_quiet()
        tell(process, "20")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_work_of_a_fallback_is_waited_for_under_the_word_that_was_closed_before(
    proxied: Proxied, gate: Gate
) -> None:
    """The arbiter that is back finds the gate as its predecessor left it."""
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        gate.limits.share_ppm = 1_000_000
        gate.set(CLOSED)
        gate.wait_for_quiet()
        gate.alive = False
        assert ask(process, "200000") == "0"
        gate.alive = True
        gate.wait_for_quiet()
        assert ask(process, "done?") == "True"
        process.communicate(timeout=60)


def test_work_under_a_free_gate_is_waited_for_after_a_fallback(
    proxied: Proxied, gate: Gate
) -> None:
    """The gate is as free as before it, but the fallback has taken back what it allowed."""
    gate.set(FREE)
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        assert ask(process, "20") == "0"
        gate.alive = False
        gate.wait_for_quiet()
        gate.alive = True
        time.sleep(0.1)  # the process sees the heartbeat; if not, the launch waits until it does
        assert ask(process, "200000") == "0"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        assert ask(process, "done?") == "True"
        process.communicate(timeout=60)


def test_while_others_wait_uncounted_work_is_no_idleness(proxied: Proxied, gate: Gate) -> None:
    """From a free gate to one that others wait for."""
    gate.set(FREE)
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        assert ask(process, "200000") == "0"
        gate.set(PRESSED)
        gate.wait(lambda: gate.work.idle == 1)
        assert ask(process, "done?") == "True"
        process.communicate(timeout=60)


def test_without_a_share_nothing_runs_when_the_arbiter_is_gone(
    proxied: Proxied, gate: Gate
) -> None:
    """Fail closed: a share of 0 is 0."""
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        gate.alive = False
        gate.wait_for_quiet()
        tell(process, "20")
        gate.wait_for_waiting()
        gate.limits.share_ppm = 500_000
        assert read(process) == "0"
        process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_waits_at_the_gate_can_be_ended(
    proxied: Proxied, gate: Gate, number: signal.Signals
) -> None:
    program = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n" + LAUNCHER
    with proxied.start(program) as process:
        assert read(process) == "ready"
        gate.set(CLOSED)
        tell(process, "20")
        gate.wait_for_waiting()
        process.send_signal(number)
        assert process.wait(timeout=20) == -number


def test_handlers_run_while_a_thread_waits_at_the_gate(proxied: Proxied, gate: Gate) -> None:
    program = """
    import signal
    import threading
    from lab.calls.gate_calls import *
    signal.signal(signal.SIGUSR1, lambda *_: show("handled"))
    current = context()
    kernels = Kernels()
    def work():
        check(cuda.cuCtxSetCurrent(current))
        show(kernels.launch(20))
    threading.Thread(target=work).start()
    sys.stdin.readline()
    """
    gate.set(CLOSED)
    with proxied.start(program) as process:
        gate.wait_for_waiting()
        process.send_signal(signal.SIGUSR1)
        assert read(process) == "handled"
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_a_process_ends_while_another_thread_waits_at_the_gate(
    proxied: Proxied, gate: Gate
) -> None:
    program = """
    import threading
    from lab.calls.gate_calls import *
    current = context()
    kernels = Kernels()
    check(kernels.launch(20000))
    show("launched")
    sys.stdin.readline()
    threading.Thread(target=lambda: (cuda.cuCtxSetCurrent(current), kernels.launch(20)),
                     daemon=True).start()
    sys.stdin.readline()
    """
    with proxied.start(program) as process:
        assert read(process) == "launched"
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_launch_at_the_closed_gate_while_the_process_exits_lets_others_go_on(
    proxied: Proxied, gate: Gate
) -> None:
    """From a handler that runs after the helper thread has ended: the launch sees to it itself."""
    program = """
    from lab.calls.gate_calls import *
    libc, kernels = ctypes.CDLL(None), []
    @ctypes.CFUNCTYPE(None)
    def last():
        show("last")
        sys.stdin.readline()
        show(kernels[0].launch(20))
    libc.__cxa_atexit(last, None, None)
    kernels.append(begin())
    check(kernels[0].launch(20))
    show("launched")
    sys.stdin.readline()
    libc.exit(0)
    """
    with proxied.start(program) as process:
        assert read(process) == "launched"
        tell(process, "")
        assert read(process) == "last"
        gate.set(CLOSED)
        tell(process, "")
        gate.wait_for_waiting()
        gate.wait_for_quiet()
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)


def test_the_processes_of_a_container_share_its_gate(proxied: Proxied, gate: Gate) -> None:
    """Each says for itself what it has in flight, and who died is not waited for."""
    with proxied.start(LAUNCHER) as first, proxied.start(LAUNCHER) as second:
        assert read(first) == read(second) == "ready"
        gate.wait(lambda: len(gate.works()) == 2)
        assert ask(first, "20") == ask(second, "200000") == "0"
        gate.set(CLOSED)
        gate.wait(lambda: [work.active for work in gate.works()].count(0) == 1)
        assert ask(second, "done?") == "False"
        gate.wait_for_quiet()
        for process in (first, second):
            tell(process, "20")
        gate.wait(lambda: [work.waiting for work in gate.works()] == [1, 1])
        first.kill()
        gate.set(OPEN)
        assert read(second) == "0"
        second.communicate(timeout=60)


def test_a_forked_child_launches_nothing_and_its_parent_goes_on(
    proxied: Proxied, gate: Gate
) -> None:
    """As the driver says; the parent's batch slots, gate and monitor are not the child's."""
    program = """
    from lab.calls.gate_calls import *
    kernels = begin()
    check(kernels.launch(20))
    if os.fork() == 0:
        show(kernels.launch(20), kernels.launch(20, c_void_p(2), "cuLaunchKernelEx_ptsz"))
        os._exit(0)
    os.wait()
    sys.stdin.readline()
    show(kernels.launch(20), cuda.cuCtxSynchronize())
    """
    with proxied.start(program) as process:
        assert read(process) == "3 3"
        gate.set(CLOSED)
        gate.wait_for_quiet()
        tell(process, "")
        gate.wait_for_waiting()
        gate.set(OPEN)
        assert read(process) == "0 0"
        process.communicate(timeout=60)


def test_a_thread_that_missed_a_turn_says_so(proxied: Proxied, gate: Gate) -> None:
    """REL-2: its process was stopped, or it had no processor; the arbiter lets it in again soon."""
    with proxied.start(LAUNCHER) as process:
        assert read(process) == "ready"
        gate.set(CLOSED)
        tell(process, "20")
        gate.wait_for_waiting()
        time.sleep(0.05)  # it sleeps
        rung = gate.bell
        process.send_signal(signal.SIGSTOP)
        await_stop([process.pid])
        gate.set(OPEN)
        gate.set(CLOSED)
        assert gate.work.missed == 0
        process.send_signal(signal.SIGCONT)
        gate.wait(lambda: gate.work.missed == 1)
        assert gate.bell > rung
        gate.set(OPEN)
        assert read(process) == "0"
        process.communicate(timeout=60)
        assert gate.work.missed == 1
