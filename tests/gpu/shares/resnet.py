"""ResNet50 in PyTorch, training or inference in half precision; a child process, told when.

The network of He et al., "Deep Residual Learning for Image Recognition" (2015), table 1; written
here so that only PyTorch is needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from gpu.check import say

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, first stride
EXPANSION, CLASSES, SIDE, WARM_UP = 4, 1000, 224, 10


def network(torch: Any) -> Any:
    """The layers."""
    nn = torch.nn

    def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[Any]:
        layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outputs)]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """Three convolutions beside a short cut."""

        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = width * EXPANSION
            self.layers = nn.Sequential(
                *convolution(inputs, width, 1),
                nn.ReLU(),
                *convolution(width, width, 3, stride),
                nn.ReLU(),
                *convolution(width, outputs, 1),
            )
            same = stride == 1 and inputs == outputs
            projection = [] if same else convolution(inputs, outputs, 1, stride)
            self.shortcut = nn.Sequential(*projection)

        def forward(self, images: Any) -> Any:
            return torch.relu(self.layers(images) + self.shortcut(images))

    layers = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in STAGES:
        layers += [
            Block(inputs if i == 0 else width * EXPANSION, width, stride if i == 0 else 1)
            for i in range(blocks)
        ]
        inputs = width * EXPANSION
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
    return nn.Sequential(*layers, *pool)


def trainer(torch: Any, batch: int) -> Callable[[], None]:
    """One step of training in automatic mixed precision."""
    model = network(torch).cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, SIDE, SIDE, device="cuda")
    labels = torch.randint(0, CLASSES, (batch,), device="cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        (loss * 128).backward()
        optimiser.step()

    return step


def inferrer(torch: Any, batch: int) -> Callable[[], None]:
    """One forward pass in half precision."""
    model = network(torch).cuda().half().eval().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, SIDE, SIDE, device="cuda", dtype=torch.float16)

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def serve(kind: str) -> None:
    """Per line ``BATCH``: get ready; per line ``START END`` (CLOCK_MONOTONIC): images a second."""
    import torch  # noqa: PLC0415 - only in the children that need it

    torch.backends.cudnn.benchmark = True
    step, batch = None, 0
    for line in sys.stdin:
        words = [int(word) for word in line.split()]
        if len(words) == 1:
            step, batch = None, words[0]
            torch.cuda.empty_cache()
            try:
                step = (trainer if kind == "training" else inferrer)(torch, batch)
                for _ in range(WARM_UP):
                    step()
                torch.cuda.synchronize()
                say(ready=True)
            except torch.cuda.OutOfMemoryError:
                say(ready=False)
        elif step is not None:
            say(rate=batch * _steps(torch, step, *words))


def _steps(torch: Any, step: Callable[[], None], start: int, end: int) -> float:
    """Steps a second that ended from ``start`` on: of two at least, by the time of the last."""
    ended: list[int] = []
    while len(ended) < 2 or ended[-1] < end:
        step()
        torch.cuda.synchronize()
        now = time.monotonic_ns()
        if now >= start:
            ended.append(now)
    return (len(ended) - 1) / (ended[-1] - ended[0]) * 1e9


if __name__ == "__main__":
    serve(sys.argv[1])
