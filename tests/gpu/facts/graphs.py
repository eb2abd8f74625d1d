"""Facts about what executable graphs of kernels take."""

from __future__ import annotations

import os
import struct
from ctypes import c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from typing import Any

from gpu.check import Finding, check, near
from gpu.interface.driver import NOTHING, Driver

NODE_BYTES = 128 << 10  # shim/cuda/memory/code/instantiate.c
SIZES = ((1, 8), (100, 8))  # nodes of each graph, graphs
LARGE = ((600, 8), (600, 64))  # the simulator takes a minute for them


def kernel_graph(driver: Driver, function: Any, nodes: int, *, chained: bool) -> Any:
    """A graph of kernels without parameters, one after the other or beside each other."""
    graph = driver.made("cuGraphCreate", c_uint(0))
    # CUDA_KERNEL_NODE_PARAMS_v1: function, grid, block, shared bytes, two lists of parameters
    packed = struct.pack("<Q7I4xQQ", function.value, *[1] * 6, 0, 0, 0)
    parameters = create_string_buffer(packed, len(packed))
    before = None
    for _ in range(nodes):
        after = (c_void_p * 1)(before) if chained and before else None
        count = c_size_t(1 if after else 0)
        before = driver.made("cuGraphAddKernelNode", graph, after, count, parameters).value
    return graph


def _taken(driver: Driver, graph: Any, graphs: int) -> dict[str, int]:
    """Bytes taken since the start, after each step of so many executable graphs."""
    start, steps = driver.used(), {}
    made = [driver.made("cuGraphInstantiateWithFlags", graph, c_uint64(0)) for _ in range(graphs)]
    steps["instantiated"] = driver.used() - start
    for name, call in (("uploaded", "cuGraphUpload"), ("launched", "cuGraphLaunch")):
        for execution in made:
            driver.call(call, execution, None)
        driver.sync()
        steps[name] = driver.used() - start
    for execution in made:
        driver.call("cuGraphExecDestroy", execution)
    steps["destroyed"] = driver.used() - start
    device = driver.device()
    driver.call("cuDeviceGraphMemTrim", device)
    steps["trimmed"] = driver.used() - start
    return steps


@check("facts")
def an_executable_graph_takes_memory_for_each_kernel() -> Finding:
    """An executable graph takes at most 2 MiB, and 128 KiB for each kernel, when it is made.

    The nodes run one after the other, or beside each other. Uploads and launches take nothing
    more, and the driver keeps the memory: as many graphs made again take nothing.
    """
    driver = Driver()
    driver.needs("cuGraphAddKernelNode", "cuGraphInstantiateWithFlags")
    driver.start()
    function = driver.function(driver.load(NOTHING), "nothing")
    driver.launch(function)
    holds, measured = True, {}
    sizes = SIZES if os.environ.get("CGPU_CHECK_SIMULATED") else SIZES + LARGE
    for chained in (True, False):
        for nodes, graphs in sizes:
            graph = kernel_graph(driver, function, nodes, chained=chained)
            steps = _taken(driver, graph, graphs)
            steps["again"] = _taken(driver, graph, graphs)["trimmed"]
            name = f"{graphs} of {nodes} {'in a row' if chained else 'beside each other'}"
            measured[name] = steps
            most = graphs * (nodes * NODE_BYTES + (2 << 20))
            holds = holds and steps["again"] == 0 and steps["instantiated"] <= most
            holds = holds and steps["trimmed"] == steps["instantiated"]
    return Finding(holds, {"bytes": measured})


@check("facts")
def an_executable_graph_takes_memory_in_the_current_context() -> Finding:
    """What an executable graph takes goes with the current context, not with its kernels'."""
    driver = Driver()
    driver.needs("cuGraphAddKernelNode", "cuGraphInstantiateWithFlags")
    own = driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    left = {}
    for graphs in (0, 8):
        before = driver.used()
        theirs = driver.made("cuCtxCreate_v2", c_uint(0), driver.device())
        function = driver.function(driver.load(NOTHING), "nothing")
        driver.launch(function)
        driver.sync()
        graph = kernel_graph(driver, function, 100, chained=False)
        driver.call("cuCtxSetCurrent", own)
        start = driver.used()
        for _ in range(graphs):
            driver.made("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        taken = driver.used() - start
        driver.call("cuCtxDestroy_v2", theirs)
        left[graphs] = driver.used() - before
    measured = {"taken": taken, "left": left[8], "left without graphs": left[0]}
    return Finding(near(left[8] - left[0], taken), measured)
