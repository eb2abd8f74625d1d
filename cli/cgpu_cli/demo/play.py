"""The demonstration, step by step, on a stage: programs or containers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

from cgpu_env import CgpuError
from cgpu_env.values import MIB

WHOLE = 15
PARTS = (6, 9)
WEIGHTS = {6: 1, 9: 2}
_KERNEL_US = 500
_WINDOW_SECONDS = 3
_POINTS = 3.0  # points of percent by which a share of the time may be off in one window
_PATIENCE_SECONDS = 60  # a busy machine gives a simulated GPU its time late
_POLL_SECONDS = 0.1
_FAULTS = (CgpuError, OSError, AssertionError, RuntimeError, subprocess.SubprocessError)


class Tenant:
    """A running ``tenant.py`` with a share of the GPU, which obeys orders."""

    def __init__(
        self, part: int, process: subprocess.Popen[str], kill: Callable[[], object]
    ) -> None:
        self.title = f"{part} of {WHOLE}"
        self._process, self._kill = process, kill

    def send_order(self, order: str) -> str:
        """Send ``order``, print the program's output, and return it.

        Raises:
            CgpuError: the program died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise CgpuError("the program was started without pipes")
        try:  # os.write, so that no buffer is left to be written when this program ends
            os.write(stdin.fileno(), f"{order}\n".encode())
        except BrokenPipeError:
            raise self._death_error() from None
        lines = []
        while line := stdout.readline().rstrip("\n"):
            lines.append(line)
            print(f"  [{self.title}]  {line}", flush=True)
        if not lines:
            raise self._death_error()
        return "\n".join(lines)

    def _death_error(self) -> CgpuError:
        return CgpuError(f"the one with {self.title} GiB died", exit_code=1)

    def kill(self) -> None:
        """End the program by SIGKILL, as the kernel would."""
        self._kill()
        self._process.wait(_PATIENCE_SECONDS)


class Stage(Protocol):
    """A way to run several tenants at once."""

    kind: str

    def format_command(self, part: int) -> str:
        """Return the command that a user types to start a tenant with ``part`` GiB."""

    def start(self, part: int) -> Tenant:
        """Start a tenant."""

    def try_start(self, part: int) -> str:
        """Try to start one more tenant; return the sentence that refuses it, or nothing."""

    def show_usage(self) -> None:
        """Print the output of ``cgpu-smi``."""

    def count_tenants(self) -> int:
        """Return how many tenants ``cgpu-smi`` lists."""

    def gpu_times(self) -> dict[int, int]:
        """Return the GPU time in ns of each tenant, by its part; nothing if it is not known."""


class _Steps:
    """Prints the step that is shown, and records the steps that went wrong."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._title = "The demonstration"
        self.wrong: list[str] = []

    def begin_step(self, text: str) -> None:
        """Begin a step: print it, with the seconds since the first one."""
        self._title = text.partition("\n")[0].rstrip(":")
        print(f"\n[{time.monotonic() - self._began:.0f} s] {text}", flush=True)

    def check(self, finding: str, *, is_right: bool) -> None:
        """Unless ``is_right``, record ``finding`` under the step's title."""
        if not is_right:
            self.wrong.append(f"{self._title}: {finding}")


def play_demo(stage: Stage, total: int) -> bool:
    """Show everything on a GPU of ``total`` bytes; return whether no step went wrong."""
    steps = _Steps()
    tenants: list[Tenant] = []
    try:
        _play_steps(stage, [total * part // WHOLE // MIB for part in PARTS], tenants, steps)
    except _FAULTS as error:
        steps.check(str(error), is_right=False)
    finally:
        for tenant in tenants:
            with contextlib.suppress(*_FAULTS):
                tenant.kill()
    if steps.wrong:
        print("\n  ".join(["\nNOT all of it is as it must be:", *steps.wrong]))
    else:
        print("\nAll of it as it must be.")
    return not steps.wrong


def _play_steps(stage: Stage, caps: list[int], tenants: list[Tenant], steps: _Steps) -> None:
    def check_answer(tenant: Tenant, order: str, expected: str) -> None:
        found = tenant.send_order(order)
        last = found.splitlines()[-1]
        steps.check(f"{tenant.title}: {last!r}, expected {expected}", is_right=expected in found)

    steps.begin_step(f"Two {stage.kind}s start, each with its share of GPU 0:")
    for part in PARTS:
        print(f"  $ {stage.format_command(part)}", flush=True)
        tenants.append(stage.start(part))
    six, nine = tenants

    steps.begin_step("What each sees:")
    for tenant, cap in zip(tenants, caps, strict=True):
        check_answer(tenant, "show", f"{cap}MiB")

    steps.begin_step("Each allocates half of its share:")
    for tenant, cap in zip(tenants, caps, strict=True):
        check_answer(tenant, f"alloc {cap // 2}", "success")

    steps.begin_step("The smaller asks for more than is left of its share:")
    check_answer(six, f"alloc {caps[0] // 2 + 1}", "OUT_OF_MEMORY")

    steps.begin_step("The other goes on undisturbed:")
    check_answer(nine, f"alloc {caps[1] // 4}", "success")

    steps.begin_step("What each sees now:")
    for tenant, cap in zip(tenants, caps, strict=True):
        check_answer(tenant, "use", f"{cap}MiB")

    steps.begin_step("From outside:\n  $ cgpu-smi")
    _check_listing(stage, len(PARTS), steps)

    steps.begin_step("Both compute without a pause, the second with twice the weight of the first:")
    _check_shares(stage, tenants, steps)

    steps.begin_step(f"All of the GPU is promised, so a third {stage.kind} is refused:")
    print(f"  $ {stage.format_command(1)}", flush=True)
    sentence = stage.try_start(1)
    print(f"  {sentence}")
    steps.check(repr(sentence), is_right="MiB are free" in sentence)

    steps.begin_step(
        f"The first {stage.kind} is killed by SIGKILL; what it had is free again:\n  $ cgpu-smi"
    )
    six.kill()
    _check_listing(stage, 1, steps)


def _check_listing(stage: Stage, expected: int, steps: _Steps) -> None:
    """Print the output of ``cgpu-smi``, as soon as it lists as many tenants as expected."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (count := stage.count_tenants()) != expected and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    stage.show_usage()
    steps.check(f"cgpu-smi lists {count}, expected {expected}", is_right=count == expected)


def _check_shares(stage: Stage, tenants: list[Tenant], steps: _Steps) -> None:
    for tenant in tenants:
        tenant.send_order(f"compute {_KERNEL_US}")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    shares = _measure_shares(stage)
    while not _are_due(shares) and time.monotonic() < deadline:
        shares = _measure_shares(stage)
    print("\n  $ cgpu-smi", flush=True)
    _check_listing(stage, len(tenants), steps)
    for part, share in shares.items():
        print(f"  By the simulated GPU's own account {part} of {WHOLE} had {share:.1f} %")
    found = " and ".join(f"{share:.1f} %" for share in shares.values())
    due = " and ".join(f"{_due_percent(part):.1f} %" for part in shares)
    what = f"{found} of {_WINDOW_SECONDS} s, expected {due} within {_POINTS:g} points"
    steps.check(what, is_right=_are_due(shares))
    for tenant in tenants:
        tenant.send_order("rest")


def _measure_shares(stage: Stage) -> dict[int, float]:
    """Return the percent of the GPU's time that each tenant had in one window; {} if unknown."""
    before = stage.gpu_times()
    time.sleep(_WINDOW_SECONDS)
    had = {part: ns - before.get(part, 0) for part, ns in stage.gpu_times().items()}
    return {part: 100 * ns / max(1, sum(had.values())) for part, ns in had.items()}


def _are_due(shares: dict[int, float]) -> bool:
    return all(abs(share - _due_percent(part)) <= _POINTS for part, share in shares.items())


def _due_percent(part: int) -> float:
    return 100 * WEIGHTS[part] / sum(WEIGHTS.values())
