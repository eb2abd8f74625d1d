"""NVML by ctypes: what the driver itself says of a GPU and of the processes on it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_uint64, c_void_p
from typing import NamedTuple

NOT_AVAILABLE = (1 << 64) - 1
_MAX_PROCESSES = 1024


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_uint64),
        ("reserved", c_uint64),
        ("free", c_uint64),
        ("used", c_uint64),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("used", c_uint64),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class Memory(NamedTuple):
    """Bytes; ``reserved`` is None for the first version of the call."""

    total: int
    used: int
    free: int
    reserved: int | None = None


class Nvml:
    """An initialised NVML; handles are its own.

    Raises:
        OSError: there is no library, or no GPU that it can talk to.
    """

    def __init__(self, path: str = "libnvidia-ml.so.1") -> None:
        self.library = ctypes.CDLL(path)
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: object) -> None:
        """A call that must succeed."""
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} gave error {status}")

    def _text(self, name: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, c_uint(96))
        return buffer.value.decode()

    def driver_version(self) -> str:
        """Such as 550.163.01."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """How many GPUs."""
        count = c_uint()
        self.call("nvmlDeviceGetCount_v2", byref(count))
        return count.value

    def gpu(self, index: int) -> c_void_p:
        """Handle of the GPU with this index."""
        handle = c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def gpu_of(self, uuid: str) -> c_void_p:
        """Handle of the GPU with this UUID."""
        handle = c_void_p()
        self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(handle))
        return handle

    def name(self, gpu: c_void_p) -> str:
        """Such as Tesla T4."""
        return self._text("nvmlDeviceGetName", gpu)

    def uuid(self, gpu: c_void_p) -> str:
        """Such as GPU-0123...."""
        return self._text("nvmlDeviceGetUUID", gpu)

    def memory(self, gpu: c_void_p) -> Memory:
        """What the first version of the call says."""
        raw = _Memory()
        self.call("nvmlDeviceGetMemoryInfo", gpu, byref(raw))
        return Memory(raw.total, raw.used, raw.free)

    def memory_v2(self, gpu: c_void_p) -> Memory:
        """What the second version says."""
        raw = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        self.call("nvmlDeviceGetMemoryInfo_v2", gpu, byref(raw))
        return Memory(raw.total, raw.used, raw.free, raw.reserved)

    def processes(self, gpu: c_void_p) -> dict[int, int | None]:
        """Pid -> bytes of the computing processes; None where the driver does not say."""
        found = (_Process * _MAX_PROCESSES)()
        count = c_uint(_MAX_PROCESSES)
        self.call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, byref(count), found)
        return {
            p.pid: None if p.used == NOT_AVAILABLE else int(p.used) for p in found[: count.value]
        }
