"""Copies and fills by every entry point, for programs that tests start: the name, and how much.

Each takes the size in bytes and gives the driver's status. The buffers live as long as the program.
"""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_ushort, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.calls.cuda_calls import MIB, alloc, check, cuda

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE, SMALL = 2 * MIB, 4096
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
POINTER = 1
ROWS = 16


class Asked(NamedTuple):
    """What a call is to do: ``shape`` is its name without variants."""

    shape: str
    size: int
    old: bool
    """The first release of an entry point that has others."""

    def words(self, *values: int) -> list[Any]:
        """Addresses and sizes, as wide as they are there."""
        return [c_uint(value) if self.old else c_uint64(value) for value in values]


class Buffers:
    """What is copied from and to: two of each kind of memory."""

    def __init__(self) -> None:
        self.device = [_alloc(), _alloc()]
        self.array = [_array(), _array()]
        self.host = ctypes.create_string_buffer(LARGE)


def _alloc() -> int:
    status, address = alloc(LARGE)
    check(status)
    return address


def _array() -> int:
    array = c_void_p()
    shape = (c_uint64 * 3)(LARGE // 16, 0, 4 << 32 | 0x20)  # four floats a texel, one row
    check(cuda.cuArrayCreate_v2(byref(array), byref(shape)))
    return array.value or 0


def call(buffers: Buffers, name: str, size: int) -> int:
    """Status of the entry point ``name`` that moves ``size`` bytes inside the GPU's memory."""
    family = name.removesuffix("_ptsz").removesuffix("_ptds")
    version = 2 if family.endswith("_v2") else 1
    family = family.removesuffix("_v2")
    shape = family.removesuffix("Async")
    stream = [None] if family != shape else []
    for prefix, make in FAMILIES:
        if shape.startswith(prefix):
            old = version == 1 and f"{family}_v2" in VERSIONED
            arguments = make(buffers, Asked(shape, size, old))
            return int(getattr(cuda, name)(*arguments, *stream))
    raise SystemExit(f"no call of {name}")


def _wide(*values: int) -> list[Any]:
    return [c_uint64(value) for value in values]


def _fill(buffers: Buffers, asked: Asked) -> list[Any]:
    bits = int(asked.shape.rpartition("D")[2])
    value = {8: c_ubyte, 16: c_ushort, 32: c_uint}[bits](1)
    count = asked.size * 8 // bits
    if "D2D" in asked.shape:
        to, pitch, width, height = asked.words(
            buffers.device[0], asked.size // ROWS, count // ROWS, ROWS
        )
        return [to, pitch, value, width, height]
    to, number = asked.words(buffers.device[0], count)
    return [to, value, number]


def _plain(buffers: Buffers, asked: Asked) -> list[Any]:
    return asked.words(*buffers.device, asked.size)


def _with_attributes(buffers: Buffers, asked: Asked) -> list[Any]:
    return [*_wide(*buffers.device, asked.size), None]


def _peer(buffers: Buffers, asked: Asked) -> list[Any]:
    context = c_void_p()
    check(cuda.cuCtxGetCurrent(byref(context)))
    to, source, number = _wide(*buffers.device, asked.size)
    return [to, context, source, context, number]


def _array_to_array(buffers: Buffers, asked: Asked) -> list[Any]:
    (zero, number), (to, source) = asked.words(0, asked.size), map(c_void_p, buffers.array)
    return [to, zero, source, zero, number]


def _array_to_device(buffers: Buffers, asked: Asked) -> list[Any]:
    to, zero, number = asked.words(buffers.device[0], 0, asked.size)
    return [to, c_void_p(buffers.array[0]), zero, number]


def _device_to_array(buffers: Buffers, asked: Asked) -> list[Any]:
    zero, source, number = asked.words(0, buffers.device[0], asked.size)
    return [c_void_p(buffers.array[0]), zero, source, number]


def _packed(layout: str, *values: int) -> Any:
    data = struct.pack(layout, *values)
    return ctypes.create_string_buffer(data, len(data))


def flat(to: int, source: int, size: int, kinds: tuple[int, int] = (DEVICE, DEVICE)) -> Any:
    """CUDA_MEMCPY2D of ``size`` bytes between addresses; ``kinds`` of target and source."""
    width = size // ROWS
    sides = [
        (0, 0, kind, address if kind == HOST else 0, address, 0, width)
        for kind, address in ((kinds[1], source), (kinds[0], to))
    ]
    return _packed("<QQi4xQQQQQQi4xQQQQQQ", *sides[0], *sides[1], width, ROWS)


def _flat(buffers: Buffers, asked: Asked) -> list[Any]:
    if not asked.old:
        return [flat(*buffers.device, asked.size)]
    width = asked.size // ROWS
    side = (0, 0, DEVICE, 0, 4096, 0, width)
    return [_packed("<IIi4xQI4xQIIIiQI4xQIII4x", *side, *side, width, ROWS)]


def _solid(buffers: Buffers, asked: Asked) -> list[Any]:
    width = asked.size // ROWS
    sides = [
        (0, 0, 0, 0, DEVICE, 0, 4096 if asked.old else address, 0, 0, width, ROWS // 2)
        for address in buffers.device
    ]
    layout = "<" + ("IIIIi4xQI4xQQII" if asked.old else "QQQQi4xQQQQQQ") * 2
    layout += "III4x" if asked.old else "QQQ"
    return [_packed(layout, *sides[0], *sides[1], width, ROWS // 2, 2)]


def _many(buffers: Buffers, asked: Asked) -> list[Any]:
    pair = [(c_uint64 * 2)(address, address) for address in buffers.device]
    sizes = (c_size_t * 2)(asked.size // 2, asked.size // 2)
    failed = [byref(c_size_t())] if asked.old else []
    return [*pair, sizes, c_size_t(2), None, None, c_size_t(0), *failed]


def operations(buffers: Buffers, size: int, kind: int = POINTER) -> Any:
    """CUDA_MEMCPY3D_BATCH_OP of ``size`` bytes between two places of a kind."""
    sides = [(kind, address, 0, 0, 0, 0) for address in buffers.device]
    return _packed("<i4xQQQiii4xQQQiiQQQiI", *sides[0], *sides[1], size // ROWS, ROWS, 1, 0, 0)


def _many_solid(buffers: Buffers, asked: Asked) -> list[Any]:
    more = [byref(c_size_t())] if asked.old else []
    return [c_size_t(1), operations(buffers, asked.size), *more, c_ulonglong(0)]


def _solid_with_attributes(buffers: Buffers, asked: Asked) -> list[Any]:
    return [operations(buffers, asked.size), c_ulonglong(0)]


def _decompress(buffers: Buffers, asked: Asked) -> list[Any]:
    item = _packed("<QQQQQi20x", asked.size, asked.size, 0, *buffers.device, 0)
    return [item, c_size_t(1), c_uint(0), byref(c_size_t())]


# The first that a name begins with.
FAMILIES: tuple[tuple[str, Callable[[Buffers, Asked], list[Any]]], ...] = (
    ("cuMemset", _fill),
    ("cuMemcpyWithAttributes", _with_attributes),
    ("cuMemcpyPeer", _peer),
    ("cuMemcpyAtoA", _array_to_array),
    ("cuMemcpyAtoD", _array_to_device),
    ("cuMemcpyDtoA", _device_to_array),
    ("cuMemcpy2D", _flat),
    ("cuMemcpy3DBatch", _many_solid),
    ("cuMemcpy3DWithAttributes", _solid_with_attributes),
    ("cuMemcpy3D", _solid),
    ("cuMemcpyBatch", _many),
    ("cuMemBatchDecompress", _decompress),
    ("cuMemcpy", _plain),
)
# Those whose first release took 32-bit addresses and sizes, or said which copy had failed.
VERSIONED = {
    *(f"cuMemset{kind}_v2" for kind in ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32")),
    *("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"),
    *("cuMemcpyAtoA_v2", "cuMemcpyAtoD_v2", "cuMemcpyDtoA_v2"),
    *("cuMemcpy2D_v2", "cuMemcpy2DAsync_v2", "cuMemcpy2DUnaligned_v2"),
    *("cuMemcpy3D_v2", "cuMemcpy3DAsync_v2"),
    *("cuMemcpyBatchAsync_v2", "cuMemcpy3DBatchAsync_v2"),
}

__all__ = ["DEVICE", "HOST", "LARGE", "SMALL", "UNIFIED", "Buffers", "call", "flat", "operations"]
