"""What the demonstration shows, step by step, on whatever stage: programs or containers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from cgpu_env import CgpuError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

WHOLE = 15
PARTS = (6, 9)
WEIGHTS = {6: 1, 9: 2}
_KERNEL_US = 500
_SETTLE_SECONDS, _SECONDS = 2, 5
_POINTS = 3.0  # of the GPU's time, by which a share may be off in so short a time
_MIB = 1 << 20


class Tenant:
    """A running ``tenant.py`` with a share of the GPU; does what it is told."""

    def __init__(
        self, part: int, process: subprocess.Popen[str], kill: Callable[[], object]
    ) -> None:
        self.title = f"{part} of {WHOLE}"
        self._process, self._kill = process, kill

    def tell(self, order: str) -> str:
        """Have ``order`` done, print what the program says, and return it.

        Raises:
            CgpuError: it died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise CgpuError("the program was started without pipes")
        stdin.write(f"{order}\n")
        stdin.flush()
        lines = []
        while line := stdout.readline().rstrip("\n"):
            lines.append(line)
            print(f"  [{self.title}]  {line}", flush=True)
        if not lines:
            raise CgpuError(f"the one with {self.title} GiB died", exit_code=1)
        return "\n".join(lines)

    def kill(self) -> None:
        """End it by SIGKILL, as the kernel would."""
        self._kill()
        self._process.wait()


class Stage(Protocol):
    """A way to run tenants beside each other."""

    kind: str

    def command(self, part: int) -> str:
        """What a user types to start one with ``part`` GiB."""

    def start(self, part: int) -> Tenant:
        """Start one."""

    def refused(self, part: int) -> str:
        """Try to start one more; the sentence with which it is refused, or nothing."""

    def show(self) -> int:
        """Print what ``cgpu-smi`` prints, and return how many it lists."""

    def gpu_times(self) -> dict[int, int]:
        """GPU time in ns that each has had, by its part; nothing where only the GPU knows."""


def play(stage: Stage, total: int) -> bool:
    """Show everything on a GPU of ``total`` bytes; whether all of it was as it must be."""
    tenants: list[Tenant] = []
    try:
        good = _play(stage, [total * part // WHOLE // _MIB for part in PARTS], tenants)
    finally:
        for tenant in tenants:
            tenant.kill()
    print("\nAll of it as it must be." if good else "\nNOT all of it is as it must be.")
    return good


def _play(stage: Stage, caps: list[int], tenants: list[Tenant]) -> bool:
    _say(f"Two {stage.kind}s start, each with its share of GPU 0:")
    for part in PARTS:
        print(f"  $ {stage.command(part)}", flush=True)
        tenants.append(stage.start(part))
    six, nine = tenants

    _say("What each sees:")
    good = [f"{cap}MiB" in t.tell("show") for t, cap in zip(tenants, caps, strict=True)]

    _say("Each allocates half of its share:")
    halves = [f"alloc {cap // 2}" for cap in caps]
    good += ["success" in t.tell(half) for t, half in zip(tenants, halves, strict=True)]

    _say("The smaller asks for more than it has left, though the GPU has plenty:")
    good.append("OUT_OF_MEMORY" in six.tell(f"alloc {caps[0] // 2 + 1}"))

    _say("The other goes on undisturbed:")
    good.append("success" in nine.tell(f"alloc {caps[1] // 4}"))

    _say("What each sees now:")
    good += [f"{cap}MiB" in t.tell("use") for t, cap in zip(tenants, caps, strict=True)]

    _say("From outside:\n  $ cgpu-smi")
    good.append(stage.show() == len(PARTS))

    _say("Both compute without a pause, the second with twice the weight of the first:")
    good.append(_compute(stage, tenants))

    _say(f"All of the GPU is promised, so a third {stage.kind} is refused:")
    print(f"  $ {stage.command(1)}", flush=True)
    sentence = stage.refused(1)
    print(f"  {sentence}")
    good.append("MiB are free" in sentence)

    _say(f"The first {stage.kind} is killed by SIGKILL; what it had is free again:\n  $ cgpu-smi")
    six.kill()
    good.append(stage.show() == 1)
    return all(good)


def _compute(stage: Stage, tenants: list[Tenant]) -> bool:
    for tenant in tenants:
        tenant.tell(f"compute {_KERNEL_US}")
    time.sleep(_SETTLE_SECONDS)
    before = stage.gpu_times()
    time.sleep(_SECONDS)
    after = stage.gpu_times()
    print("\n  $ cgpu-smi", flush=True)
    good = stage.show() == len(tenants) and _show_truth(before, after)
    for tenant in tenants:
        tenant.tell("rest")
    return good


def _show_truth(before: dict[int, int], after: dict[int, int]) -> bool:
    had = {part: after[part] - before.get(part, 0) for part in after}
    shares = {part: 100 * ns / max(1, sum(had.values())) for part, ns in had.items()}
    for part, share in shares.items():
        print(
            f"  By the simulated GPU's own account {part} of {WHOLE} had {share:.1f} %", flush=True
        )
    whole = sum(WEIGHTS.values())
    return all(abs(s - 100 * WEIGHTS[part] / whole) <= _POINTS for part, s in shares.items())


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)
