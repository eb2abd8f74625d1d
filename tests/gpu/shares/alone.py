"""What the weighted fair policy costs a PyTorch program that has the GPU to itself."""

from __future__ import annotations

import statistics
import time
from typing import Any

from gpu.cage import Ask
from gpu.check import HOST, Finding, check, heard, say
from gpu.limits.training import LONG
from gpu.shares.weights import WEIGHTED_FAIR
from gpu.world import World

ROUNDS, ROUNDS_BRIEF, SLOWER = 7, 3, 0.01
LAYERS, WIDTH, TOKENS, WARM_UP = 24, 2048, 2000, 200
DECODE = "from gpu.shares.alone import decode; decode()"


def decode() -> None:
    """Replay a graph of a decoder's products for one token after the other; print ms a token."""
    import torch  # noqa: PLC0415 - only in the children that need it

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=torch.float16) / WIDTH**0.5

    layers = [(matrix(4 * WIDTH, WIDTH), matrix(WIDTH, 4 * WIDTH)) for _ in range(LAYERS)]
    token = torch.randn(WIDTH, 1, device="cuda", dtype=torch.float16)

    def forward() -> Any:
        state = token
        for wide, narrow in layers:
            state = state + narrow @ torch.relu(
                wide @ torch.nn.functional.layer_norm(state.T, (WIDTH,)).T
            )
        return state

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    times = []
    for _ in range(TOKENS):
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    say(step_ms=statistics.fmean(times[WARM_UP:]) * 1000)


def _step(world: World, program: str, *, capped: bool) -> float:
    command = [world.python, "-c", program]
    done = world.run(command, capped=capped, ask=Ask(policy=WEIGHTED_FAIR))
    for line in done.out.splitlines():
        message = heard(line)
        if message is not None:
            return float(message["step_ms"])
    raise RuntimeError(f"a program ended with {done.code}: {done.log.strip()[-400:]}")


def slowdown(world: World, program: str) -> Finding:
    """Medians over rounds of one run each without and with cgpu."""
    plain, capped = [], []
    for _ in range(ROUNDS_BRIEF if world.brief else ROUNDS):
        plain.append(_step(world, program, capped=False))
        capped.append(_step(world, program, capped=True))
    slower = statistics.median(capped) / statistics.median(plain) - 1
    measured = {"slower": round(slower, 4), "plain_ms": plain, "capped_ms": capped}
    return Finding(slower <= SLOWER, measured)


@check("shares", HOST, torch=True)
def a_pytorch_training_alone_loses_at_most_1_percent(world: World) -> Finding:
    """A PyTorch training loop alone under policy 6 is at most 1 % slower than without cgpu."""
    return slowdown(world, LONG)


@check("shares", HOST, torch=True)
def a_decode_loop_of_graphs_alone_loses_at_most_1_percent(world: World) -> Finding:
    """So is a decode loop that replays one CUDA graph per token."""
    return slowdown(world, DECODE)
