"""As much of PyTorch as the programs of ``tests/gpu`` need to run; it computes nothing."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

MOST = 32  # a larger batch does not fit


class OutOfMemoryError(Exception):
    """``torch.cuda.OutOfMemoryError``."""


class Module:
    """A layer that passes on its input."""

    def __call__(self, given: Any) -> Any:
        return self.forward(given)

    def forward(self, given: Any) -> Any:
        return given

    def parameters(self) -> list[Any]:
        return []

    def to(self, **_: Any) -> Module:
        return self

    cuda = half = eval = to


class Sequential(Module):
    """One layer after the other."""

    def __init__(self, *layers: Any) -> None:
        self.layers = layers

    def forward(self, given: Any) -> Any:
        for layer in self.layers:
            given = layer(given)
        return given


def _images(batch: int, *_: Any, **__: Any) -> Any:
    if MOST < batch <= 128:
        raise OutOfMemoryError
    return MagicMock()


def install() -> None:
    """Install this module as ``torch`` in this process."""
    torch = MagicMock()
    torch.nn.Module, torch.nn.Sequential = Module, Sequential
    torch.cuda.OutOfMemoryError = OutOfMemoryError
    torch.randn = _images
    sys.modules["torch"] = torch
