"""Programs that keep the GPU busy beside each other, and what each gets of its time."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpu.cage import Ask
from gpu.check import heard
from gpu.interface.program import compiled
from gpu.world import World, log_of, stop

LEAD_NS = 1_200_000_000  # from the command to the start: all are at work by then


class How(NamedTuple):
    """How kernels are launched: into how many streams, how many kinds, in bursts of how many.

    Attributes:
        streams: up to 512, in turn.
        kinds: different kernels, up to 4,096, in turn.
        burst: kernels after which the program synchronises; 0: it never waits for all its work.
        gap_us: for how long it then does nothing.
    """

    streams: int = 1
    kinds: int = 1
    burst: int = 0
    gap_us: int = 0


STEADY = How()


class Spinner:
    """One ``spin`` program; see there for the commands.

    Raises:
        RuntimeError: it ended early.
    """

    def __init__(self, world: World, ask: Ask | None) -> None:
        self.process: subprocess.Popen[str] = world.start(
            [compiled("spin")], capped=ask is not None, ask=ask or Ask()
        )

    def tell(self, *words: object) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says to the last command."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = heard(line)
            if message is not None:
                return message
        raise RuntimeError(f"a spinning program ended: {log_of(self.process).strip()[-300:]}")

    def ask(self, *words: object) -> dict[str, Any]:
        """Give it a command and wait for what it says."""
        self.tell(*words)
        return self.answer()


class Group:
    """Spinners beside each other, and one without a cap that measures kernels for all of them."""

    def __init__(self, world: World, asks: Sequence[Ask]) -> None:
        self.members = [Spinner(world, ask) for ask in asks]
        self._plain = Spinner(world, None)

    def prepare(self, length_us: int) -> None:
        """Let all know the kernel of this length, measured while nobody else uses the GPU."""
        made = self._plain.ask("make", length_us)
        for member in self.members:
            member.ask("use", length_us, made["rounds"], made["period_ns"])

    def run(
        self,
        lengths_us: Sequence[int],
        seconds: float,
        parts: int = 1,
        start: int | None = None,
        hows: Sequence[How] | None = None,
    ) -> list[list[float]]:
        """Parts of the GPU's time that each had, in ``parts`` windows one after the other.

        From ``start`` on (CLOCK_MONOTONIC, in ns), for which the kernels are prepared; or soon.
        """
        hows = hows or [STEADY] * len(self.members)
        if start is None:
            for length in set(lengths_us):
                self.prepare(length)
            start = time.monotonic_ns() + LEAD_NS
        end = start + int(seconds * 1e9)
        for member, length, how in zip(self.members, lengths_us, hows, strict=True):
            member.tell("run", length, start, end, parts, *how)
        window = (end - start) / parts
        return [[ns / window for ns in m.answer()["parts_ns"]] for m in self.members]

    def close(self) -> None:
        """End all of them."""
        for spinner in (*self.members, self._plain):
            stop(spinner.process)
            if spinner.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    spinner.process.stdin.close()
            if spinner.process.stdout is not None:
                spinner.process.stdout.close()


@contextlib.contextmanager
def spinning(world: World, asks: Sequence[Ask]) -> Iterator[Group]:
    """A group that ends with the block."""
    group = Group(world, asks)
    try:
        yield group
    finally:
        group.close()
