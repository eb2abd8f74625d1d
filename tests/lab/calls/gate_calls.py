"""Launches of every kind, for programs that tests start: ``how`` is the name of the entry point."""

from __future__ import annotations

import ctypes
import struct
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p, create_string_buffer
from typing import Any

from lab.calls.cuda_calls import check, context, cuda

PTX = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry spin_20us() { ret; }
.visible .entry spin_200us() { ret; }
.visible .entry spin_20000us() { ret; }
.visible .entry spin_200000us() { ret; }
.visible .entry spin_until(.param .u64 word) { ret; }
\0"""
NON_BLOCKING = 1


def made(call: Any, *arguments: Any) -> Any:
    """The handle that a successful call makes."""
    out = c_void_p()
    check(call(byref(out), *arguments))
    return out


class Kernels:
    """A module's functions by their duration in us, and a stream to launch them into."""

    def __init__(self) -> None:
        module = made(cuda.cuModuleLoadData, PTX)
        self._functions = {
            us: made(cuda.cuModuleGetFunction, module, f"spin_{us}us".encode())
            for us in (20, 200, 20000, 200000)
        }
        self._until = made(cuda.cuModuleGetFunction, module, b"spin_until")

    def function(self, us: int = 20) -> c_void_p:
        return self._functions[us]

    def launch(self, us: int = 20, stream: Any = None, how: str = "cuLaunchKernel") -> int:
        """Status of one launch of a kernel."""
        return LAUNCHES[how.removesuffix("_ptsz")](getattr(cuda, how), self.function(us), stream)

    def stay(self, word: c_uint32, stream: Any = None) -> None:
        """Launch a kernel that stays until ``word`` is not 0."""
        address = c_uint64(ctypes.addressof(word))
        parameters = (c_void_p * 1)(ctypes.addressof(address))
        kernel = self._until
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, None))


def _plain(call: Any, function: c_void_p, stream: Any) -> int:
    return int(call(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None))


def _cooperative(call: Any, function: c_void_p, stream: Any) -> int:
    return int(call(function, 1, 1, 1, 32, 1, 1, 0, stream, None))


def _number(stream: Any) -> int:
    return int(getattr(stream, "value", stream) or 0)


def _ex(call: Any, function: c_void_p, stream: Any) -> int:
    config = struct.pack("<7IxxxxQQI4x", 1, 1, 1, 32, 1, 1, 0, _number(stream), 0, 0)
    return int(call(create_string_buffer(config, len(config)), function, None, None))


def _multi(call: Any, function: c_void_p, stream: Any) -> int:
    item = struct.pack("<Q7IxxxxQQ", function.value, 1, 1, 1, 32, 1, 1, 0, _number(stream), 0)
    return int(call(create_string_buffer(item, len(item)), 1, 0))


def _v1(call: Any, function: c_void_p, _stream: Any) -> int:
    check(cuda.cuFuncSetBlockShape(function, 32, 1, 1))
    return int(call(function))


def _grid(call: Any, function: c_void_p, _stream: Any) -> int:
    check(cuda.cuFuncSetBlockShape(function, 32, 1, 1))
    return int(call(function, 1, 1))


def _grid_async(call: Any, function: c_void_p, stream: Any) -> int:
    check(cuda.cuFuncSetBlockShape(function, 32, 1, 1))
    return int(call(function, 1, 1, stream))


def captured(launch: Any) -> c_void_p:
    """An executable graph of what ``launch`` puts into the stream that it is given."""
    stream = made(cuda.cuStreamCreate, NON_BLOCKING)
    check(cuda.cuStreamBeginCapture_v2(stream, 2))
    launch(stream)
    graph = c_void_p()
    check(cuda.cuStreamEndCapture(stream, byref(graph)))
    check(cuda.cuStreamDestroy_v2(stream))
    return graph


def node_count(graph: Any) -> int:
    """Nodes of a graph."""
    count = c_size_t()
    check(cuda.cuGraphGetNodes(graph, None, byref(count)))
    return count.value


_EXECS: dict[int, c_void_p] = {}


def _graph(call: Any, function: c_void_p, stream: Any) -> int:
    exec_ = _EXECS.get(function.value or 0)
    if exec_ is None:
        graph = captured(lambda into: check(_plain(cuda.cuLaunchKernel, function, into)))
        exec_ = made(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(0))
        _EXECS[function.value or 0] = exec_
    return int(call(exec_, stream))


LAUNCHES = {
    "cuLaunchKernel": _plain,
    "cuLaunchKernelEx": _ex,
    "cuLaunchCooperativeKernel": _cooperative,
    "cuLaunchCooperativeKernelMultiDevice": _multi,
    "cuLaunch": _v1,
    "cuLaunchGrid": _grid,
    "cuLaunchGridAsync": _grid_async,
    "cuGraphLaunch": _graph,
}


def begin() -> Kernels:
    """A context and its kernels."""
    context()
    return Kernels()


def done(stream: Any = None) -> bool:
    """Whether the stream has nothing to do."""
    return int(cuda.cuStreamQuery(stream)) == 0


__all__ = [
    "LAUNCHES", "NON_BLOCKING", "Kernels", "begin", "c_int", "c_uint32", "captured", "ctypes",
    "done", "made", "node_count",
]  # fmt: skip
