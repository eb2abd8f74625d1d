"""A small training under the cap: the ledger after it, and two beside each other."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from gpu.check import CAPPED, HOST, Finding, check, driver_bytes, heard, near
from gpu.interface.driver import Driver
from gpu.world import World, log_of, stop

STEPS = 60
PROGRAM = "from gpu.limits.training import report; report()"
LONG = "from gpu.limits.training import report; report(800)"  # for differences of 1 %
_WARM_UP = 5
_COMPARED = 10  # step; later ones magnify the order of additions


def model(torch: Any) -> Any:
    """A network with convolutions, a norm and products."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(64 * 64, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def train(torch: Any, steps: int = STEPS) -> tuple[list[float], list[float]]:
    """Losses, and seconds of each step; the same data and start each time."""
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = True
    network = model(torch).cuda()
    optimiser = torch.optim.Adam(network.parameters())
    images, labels = torch.randn(64, 3, 64, 64).cuda(), torch.randint(0, 10, (64,)).cuda()
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, seconds


def report(steps: int = STEPS) -> None:
    """Train, and print losses and the median step in milliseconds."""
    import torch  # noqa: PLC0415 - only in the children that need it

    losses, seconds = train(torch, steps)
    median = statistics.median(seconds[_WARM_UP:]) * 1000
    print(json.dumps({"cgpu": {"losses": losses, "step_ms": median}}), flush=True)


@check("limits", CAPPED, torch=True)
def the_ledger_is_right_after_a_training() -> Finding:
    """After a training loop ledger and NVML differ by less than 1 % or 2 MiB for the process.

    Shown for each stage, which tells the kind of memory that differs.
    """
    import torch  # noqa: PLC0415

    driver, stages = Driver(), {}

    def stage(name: str) -> None:
        torch.cuda.synchronize()
        reserved = torch.cuda.memory_reserved()
        stages[name] = {"ledger": driver.used(), "driver": driver_bytes(), "reserved": reserved}

    torch.cuda.init()
    torch.empty(1, device="cuda")
    stage("context")
    held = torch.empty(64 << 20, device="cuda")
    stage("tensors")
    (held[: 1 << 20].view(1024, 1024) @ held[: 1 << 20].view(1024, 1024)).sum()
    stage("cuBLAS")
    torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(4, 3, 32, 32).cuda()).sum()
    stage("cuDNN")
    losses, _ = train(torch)
    stage("training")
    end = stages["training"]
    difference = end["ledger"] - end["driver"]
    measured = {"stages": stages, "difference": difference, "share": difference / end["driver"]}
    return Finding(near(end["ledger"], end["driver"], 0.01) and losses[-1] < losses[0], measured)


def _answer(lines: str) -> dict[str, Any]:
    for line in lines.splitlines():
        message = heard(line)
        if message is not None:
            return message
    raise RuntimeError("a training printed no result")


@check("limits", HOST, torch=True)
def two_capped_trainings_do_not_disturb_each_other(world: World) -> Finding:
    """Two capped trainings beside each other learn as one that runs alone."""
    command = [world.python, "-c", PROGRAM]
    alone = world.run(command, capped=True)
    if alone.code != 0:
        raise RuntimeError(alone.log[-600:])
    expected = _answer(alone.out)
    processes = [world.start(command, capped=True) for _ in range(2)]
    results, logs = [], []
    for process in processes:
        try:
            out, _ = process.communicate(timeout=300)
            results.append(_answer(out) if process.returncode == 0 else None)
        finally:
            stop(process)
            logs.append(log_of(process)[-300:])
    if None in results:
        raise RuntimeError(f"a training beside another failed: {logs}")
    found = [result["losses"][_COMPARED] for result in results if result]
    target = expected["losses"][_COMPARED]
    same = all(abs(loss - target) <= 0.02 * abs(target) for loss in found)
    times = [expected["step_ms"], *(r["step_ms"] for r in results if r)]
    return Finding(same, {"losses": [target, *found], "step_ms alone and beside": times})
