"""``python tests/gpu`` (``make gpu-check``): check and measure cgpu on this machine's GPU.

Exit status: 0 all that was run holds; 1 something does not hold; 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "tests")

from gpu import overhead, report, suite
from gpu.cage import Cage
from gpu.catalogue import of_part
from gpu.check import PLAIN, Check
from gpu.world import FAILS, Outcome, World, outcome

PARTS = ("facts", "limits", "shares", "tests", "overhead")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/gpu", description=__doc__)
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU, in PCI order")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--driver-dir", metavar="DIR", help="where the driver's libraries are")
    parser.add_argument("--rehearse", action="store_true", help="DIR is a simulated driver")
    parser.add_argument("--brief", action="store_true", help="fewer shares, shorter waits")
    parser.add_argument("--part", choices=PARTS, action="append", help="this part only; repeatable")
    parser.add_argument("--only", metavar="NAME", help="this check only; writes no result")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the result goes")
    return parser


def _world(options: argparse.Namespace) -> World:
    if options.rehearse and not options.driver_dir:
        sys.exit("gpu-check: --rehearse needs --driver-dir, a simulated driver's directory")
    if not options.rehearse and not Path("/dev/nvidiactl").exists():
        print("gpu-check: no NVIDIA GPU here (/dev/nvidiactl is missing)", file=sys.stderr)
        sys.exit(2)
    try:
        return World(
            options.driver_dir,
            options.gpu,
            options.python,
            simulated=options.rehearse,
            brief=options.brief,
        )
    except OSError as error:
        print(f"gpu-check: the driver does not answer: {error}", file=sys.stderr)
        sys.exit(2)


def _show(result: Outcome) -> Outcome:
    under = f" under {result.cage}" if result.cage else ""
    print(f"{result.status:14} {result.name}{under}", flush=True)
    if result.status == FAILS:
        print(f"{'':14} {result.reason or result.measured}", flush=True)
    elif result.reason:
        print(f"{'':14} {result.reason}", flush=True)
    return result


def _run(world: World, parts: list[str], only: str | None) -> Iterator[Outcome]:
    for part in ("facts", "limits", "shares"):
        if part not in parts:
            continue
        checks = [check for check in of_part(part) if only in {None, check.name}]
        plain = [check for check in checks if check.where == PLAIN]
        for check in plain:
            yield outcome(world, check)
        cages = world.cages[:1] if part == "shares" else world.cages
        yield from _caged(world, cages, [check for check in checks if check.where != PLAIN])
    if "tests" in parts and not only:
        yield suite.outcome(world)


def _caged(world: World, cages: Sequence[Cage], checks: list[Check]) -> Iterator[Outcome]:
    for cage in cages:
        world.cage = cage
        for check in checks:
            yield outcome(world, check)
    world.cage = world.cages[0]


def main() -> int:
    """Run the command."""
    options = _arguments().parse_args()
    world = _world(options)
    try:
        return _check(world, options)
    finally:
        world.close()


def _write(
    world: World,
    options: argparse.Namespace,
    facts: dict[str, Any],
    results: list[Outcome],
    figures: dict[str, Any],
) -> None:
    rehearsal = ROOT / "bench" / "_build" / "rehearsal"
    folder = options.out or (rehearsal if options.rehearse else ROOT / "bench" / "results")
    facts["nvml_lists_children"] = bool(world.by_pid) and all(world.by_pid)
    for path in report.write(folder, facts, results, figures):
        print(f"wrote {path}")


def _check(world: World, options: argparse.Namespace) -> int:
    parts = options.part or list(PARTS)
    facts = report.machine(world)
    print(f"{facts['gpu']}, driver {facts['driver']}, kernel {facts['kernel']}", flush=True)
    results: list[Outcome] = []
    figures: dict[str, Any] = {}
    try:
        results.extend(map(_show, _run(world, parts, options.only)))
        if "overhead" in parts and not options.only:
            figures = overhead.measure(world)
    finally:  # what an interrupted run has found counts too
        if not options.only:
            _write(world, options, facts, results, figures)
    return int(any(result.status == FAILS for result in results))


if __name__ == "__main__":
    sys.exit(main())
