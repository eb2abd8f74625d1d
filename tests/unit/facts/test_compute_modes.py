"""Which compute mode each GPU is in, as NVML's functions give it (CLI-4)."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cgpu_node.facts import probe

pytestmark = pytest.mark.unit

NOT_SUPPORTED, LOST = 3, 15


def give(pointer: Any, kind: Any, value: int) -> None:
    ctypes.cast(pointer, ctypes.POINTER(kind))[0] = value


class Nvml(probe._Library):  # noqa: SLF001
    """A library whose GPUs have these modes; a GPU of None has none."""

    def __init__(self, *modes: int | None) -> None:
        self._modes, self._lost = modes, -1

    def call(self, name: str, *arguments: Any) -> None:
        if name == "nvmlDeviceGetCount_v2":
            give(arguments[0], ctypes.c_uint, len(self._modes))
            return
        assert name == "nvmlDeviceGetHandleByIndex_v2"
        if arguments[0].value == self._lost:
            raise probe._FailedError(name, LOST, "GPU is lost")  # noqa: SLF001
        give(arguments[1], ctypes.c_void_p, arguments[0].value + 1)

    def read_text(self, name: str, *arguments: Any) -> str:
        assert name == "nvmlDeviceGetUUID"
        return f"GPU-{arguments[0].value - 1}"

    def try_call(self, name: str, *arguments: Any) -> int:
        assert name == "nvmlDeviceGetComputeMode"
        mode = self._modes[arguments[0].value - 1]
        if mode is None:
            return NOT_SUPPORTED
        give(arguments[1], ctypes.c_int, mode)
        return 0

    def lose(self, index: int) -> None:
        self._lost = index


def test_each_gpu_has_the_mode_that_the_driver_gives() -> None:
    """Exclusive Process is 3; a GPU that has no mode, or is lost, is left out."""
    nvml = Nvml(0, 3, None, 2)
    assert probe._read_modes(nvml) == {"GPU-0": 0, "GPU-1": 3, "GPU-3": 2}  # noqa: SLF001
    nvml.lose(1)
    assert probe._read_modes(nvml) == {"GPU-0": 0, "GPU-3": 2}  # noqa: SLF001
