"""Graphs that allocate, through the libcuda proxy: charged from upload to trim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cgpu_sim import Fault, inject
from lab.driver.code_images import NEIGHBOUR

if TYPE_CHECKING:
    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration

START = (
    "from lab.calls.cuda_kind_calls import *\ncontext()\nstream = made(cuda.cuStreamCreate, 0)\n"
    "base = used()\nmib = lambda: (used() - base) // MIB\n"
)


def run(proxied: Proxied, program: str) -> list[str]:
    """Lines of a program below ``START``."""
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    return proxied.check(START + "\n".join(lines)).out


def test_mem_1_graph_memory_is_charged_from_the_launch_until_it_is_trimmed(
    proxied: Proxied,
) -> None:
    """MEM-1: building and instantiating take nothing; freeing and destroying keep the reserve."""
    out = run(
        proxied,
        """
        graph = memory_graph(100 * MIB, 60 * MIB)
        exec = instantiate(graph)
        show(mib(), drift())
        for _ in range(3):
            check(cuda.cuGraphLaunch(exec, stream))
            show(mib(), drift())
        check(cuda.cuGraphExecDestroy(exec))
        check(cuda.cuGraphDestroy(graph))
        show(mib(), drift())
        check(cuda.cuDeviceGraphMemTrim(0))
        show(mib(), drift())
        """,
    )
    assert out == ["0 0", "100 0", "100 0", "100 0", "100 0", "0 0"]


def test_mem_1_an_upload_is_charged_and_after_a_trim_the_next_launch_again(
    proxied: Proxied,
) -> None:
    """MEM-1: _ptsz variants as well."""
    out = run(
        proxied,
        """
        exec = instantiate(memory_graph(40 * MIB))
        check(cuda.cuGraphUpload_ptsz(exec, None))
        show(mib(), drift())
        check(cuda.cuDeviceGraphMemTrim(0))
        show(mib(), drift())
        check(cuda.cuGraphLaunch_ptsz(exec, None))
        show(mib(), drift())
        """,
    )
    assert out == ["40 0", "0 0", "40 0"]


def test_mem_2_a_launch_over_the_cap_is_refused_before_anything_runs(proxied: Proxied) -> None:
    """MEM-2: nothing stays taken or charged, and when there is room the same graph runs."""
    out = run(
        proxied,
        """
        graph = memory_graph(100 * MIB)
        exec = instantiate(graph)
        status, filler = alloc(left() - 50 * MIB)
        before = used()
        show(status, cuda.cuGraphLaunch(exec, stream), used() - before, drift())
        show(cuda.cuGraphUpload(exec, stream), used() - before, drift())
        check(free(filler))
        show(cuda.cuGraphLaunch(exec, stream), mib(), drift())
        """,
    )
    assert out == ["0 2 0 0", "2 0 0", "0 100 0"]


def test_mem_6_idle_graph_memory_is_let_go_before_anything_is_refused(proxied: Proxied) -> None:
    """MEM-6: no false refusal."""
    out = run(
        proxied,
        """
        exec = instantiate(memory_graph(2000 * MIB))
        check(cuda.cuGraphLaunch(exec, stream))
        show(mib())
        status, filler = alloc(left() + 1500 * MIB)
        show(status, drift())
        show(cuda.cuGraphLaunch(exec, stream), drift())
        check(free(filler))
        show(cuda.cuGraphLaunch(exec, stream), mib(), drift())
        """,
    )
    assert out == ["2000", "0 0", "2 0", "0 2000 0"]


def test_mem_2_memory_is_not_trimmed_away_between_the_look_and_the_launch(
    proxied: Proxied,
) -> None:
    """MEM-2: what another thread allocates in its place would be over the cap with it."""
    inject(proxied.machine, Fault("cuGraphLaunch", nth=2, delay_us=400_000))
    out = run(
        proxied,
        """
        import threading
        import time
        exec = instantiate(memory_graph(100 * MIB))
        check(cuda.cuGraphLaunch(exec, stream))
        status, filler = alloc(left() - 50 * MIB)
        cap = used() + left()
        statuses = []
        thread = threading.Thread(
            target=lambda: statuses.append(cuda.cuGraphLaunch(exec, stream))
        )
        thread.start()
        time.sleep(0.1)
        check(cuda.cuDeviceGraphMemTrim(0))
        show(alloc(120 * MIB)[0])
        thread.join()
        show(statuses, used() <= cap, drift())
        """,
    )
    assert out == ["0", "[0] True 0"]


def test_mem_2_what_one_graph_keeps_another_does_not_have_from_its_upload(
    proxied: Proxied,
) -> None:
    """MEM-2: graphs share a reserve, so the third launch needs more than the first did."""
    out = run(
        proxied,
        """
        keeper = instantiate(memory_graph(100 * MIB, freed=False))
        exec = instantiate(memory_graph(100 * MIB))
        status, filler = alloc(left() - 150 * MIB)
        cap = used() + left()
        for each in (exec, keeper, exec):
            show(cuda.cuGraphLaunch(each, stream), used() <= cap, drift())
        """,
    )
    assert out == ["0 True 0", "0 True 0", "2 True 0"]


def test_mem_2_without_memory_for_the_upload_there_is_no_launch(proxied: Proxied) -> None:
    """MEM-2: the GPU may have memory again by then, but nobody would have charged it."""
    inject(proxied.machine, Fault("cuGraphUpload", result=2))
    out = run(
        proxied,
        """
        exec = instantiate(memory_graph(100 * MIB))
        status, filler = alloc(left() - 50 * MIB)
        cap = used() + left()
        show(cuda.cuGraphLaunch(exec, stream), used() <= cap, drift())
        """,
    )
    assert out == ["2 True 0"]


def test_a_graph_that_is_launched_again_is_not_uploaded_again(proxied: Proxied) -> None:
    """Neither if another was launched meanwhile, but for once."""
    inject(proxied.machine, Fault("cuGraphUpload", nth=4, result=2))
    out = run(
        proxied,
        """
        first, second = (instantiate(memory_graph(20 * MIB)) for _ in range(2))
        show(*(cuda.cuGraphLaunch(first, stream) for _ in range(3)))
        show(*(cuda.cuGraphLaunch(second, stream) for _ in range(3)))
        show(*(cuda.cuGraphLaunch(first, stream) for _ in range(3)))
        show(cuda.cuGraphLaunch(second, stream))
        """,
    )
    assert out == ["0 0 0", "0 0 0", "0 0 0", "2"]


def test_mem_1_memory_captured_from_a_stream_is_graph_memory(proxied: Proxied) -> None:
    """MEM-1: a captured cuMemAllocAsync takes nothing, its graph's launch does, until trimmed."""
    out = run(
        proxied,
        """
        check(cuda.cuStreamBeginCapture_v2(stream, 0))
        status, address = alloc_async(30 * MIB, None, stream)
        show(status, mib(), drift())
        graph = c_void_p()
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        exec = instantiate(graph)
        check(cuda.cuGraphLaunch(exec, stream))
        show(mib(), drift())
        check(cuda.cuDeviceGraphMemTrim(0))
        show(mib(), drift())
        check(free_async(address, stream))
        check(cuda.cuDeviceGraphMemTrim(0))
        show(mib(), drift())
        """,
    )
    assert out == ["0 0 0", "30 0", "30 0", "0 0"]


def test_mem_1_every_way_of_instantiating_is_charged(proxied: Proxied) -> None:
    """MEM-1."""
    out = run(
        proxied,
        """
        ways = (
            lambda graph: made(cuda.cuGraphInstantiate, graph, None, None, c_size_t(0)),
            lambda graph: made(cuda.cuGraphInstantiate_v2, graph, None, None, c_size_t(0)),
            lambda graph: made(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(0)),
            lambda graph: made(cuda.cuGraphInstantiateWithParams, graph, (c_uint64 * 4)()),
            lambda graph: made(cuda.cuGraphInstantiateWithParams_ptsz, graph, (c_uint64 * 4)()),
        )
        for way in ways:
            exec = way(memory_graph(20 * MIB))
            check(cuda.cuGraphLaunch(exec, stream))
            show(mib(), drift())
            check(cuda.cuGraphExecDestroy(exec))
            check(cuda.cuDeviceGraphMemTrim(0))
        show(mib(), drift())
        """,
    )
    assert out == ["20 0"] * 5 + ["0 0"]


def test_graphs_without_memory_are_launched_as_before(proxied: Proxied) -> None:
    """MEM-1: beside graphs that allocate, and while a stream captures."""
    out = run(
        proxied,
        """
        plain = made(cuda.cuGraphCreate, 0)
        node = made(cuda.cuGraphAddEmptyNode, plain, None, c_size_t(0))
        exec = instantiate(plain)
        check(cuda.cuGraphLaunch(exec, stream))
        other = instantiate(memory_graph(20 * MIB))
        check(cuda.cuGraphLaunch(other, stream))
        check(cuda.cuGraphLaunch(exec, stream))
        check(cuda.cuStreamBeginCapture_v2(stream, 0))
        check(cuda.cuGraphLaunch(exec, stream))
        graph = c_void_p()
        show(cuda.cuStreamEndCapture(stream, byref(graph)), mib(), drift())
        """,
    )
    assert out == ["0 20 0"]


def test_accounting_does_not_spoil_a_capture_in_progress(proxied: Proxied) -> None:
    """MEM-1: functions asked for, allocations refused and figures read while a stream captures."""
    out = run(
        proxied,
        """
        module = made(cuda.cuModuleLoadData, PTX)
        other = made(cuda.cuStreamCreate, 1)
        exec = instantiate(memory_graph(20 * MIB))
        check(cuda.cuStreamBeginCapture_v2(stream, 0))
        function = made(cuda.cuModuleGetFunction, module, b"plain")
        show(alloc_async(left() + MIB, None, other)[0], alloc_async(MIB, None, other)[0])
        check(cuda.cuGraphLaunch(exec, other))
        check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None))
        graph = c_void_p()
        show(cuda.cuStreamEndCapture(stream, byref(graph)), drift())
        """,
    )
    assert out == ["2 0", "0 0"]


def test_mem_1_kernels_of_executable_graphs_are_charged_until_the_context_goes(
    proxied: Proxied,
) -> None:
    """MEM-1: the driver keeps what it took for further graphs, and takes little for a chain."""
    out = run(
        proxied,
        """
        for graph in (kernel_graph(20, chained=True), kernel_graph(100)):
            for _ in range(2):
                made_ones = [instantiate(graph) for _ in range(8)]
                show(mib(), drift())
                for exec in made_ones:
                    check(cuda.cuGraphLaunch(exec, stream))
                    check(cuda.cuStreamSynchronize(stream))
                    check(cuda.cuGraphExecDestroy(exec))
                show(mib(), drift())
        check(cuda.cuCtxDestroy_v2(made(cuda.cuCtxGetCurrent)))
        show(used())
        """,
    )
    assert out == [*["4 0"] * 4, *["92 0"] * 4, "0"]  # 4: two modules


def test_mem_1_graphs_beside_a_busy_neighbour_are_charged_what_their_nodes_can_take(
    proxied: Proxied,
) -> None:
    """MEM-1: what another container allocates meanwhile does not add up over many graphs."""
    out = run(
        proxied,
        NEIGHBOUR
        + """
        graph = kernel_graph(100)
        base = used()
        inject(machine, Fault("cuGraphInstantiateWithFlags", delay_us=10000, repeat=True))
        thread.start()
        for _ in range(40):
            check(cuda.cuGraphExecDestroy(instantiate(graph)))
        stop.set()
        thread.join()
        show(10 <= mib() <= 12)
        """,
    )
    assert out == ["True"]


def test_mem_2_a_graph_whose_kernels_do_not_fit_is_not_made(proxied: Proxied) -> None:
    """MEM-2: the driver would keep what it took. A chain of as many takes little, and is made."""
    out = run(
        proxied,
        """
        graph, chain = kernel_graph(100), kernel_graph(100, chained=True)
        status, filler = alloc(left() - 4 * MIB)
        exec, before = c_void_p(), truth()
        for one in (graph, chain):
            show(status, cuda.cuGraphInstantiateWithFlags(byref(exec), one, 0), truth() - before)
        check(free(filler))
        show(cuda.cuGraphInstantiateWithFlags(byref(exec), graph, 0), drift())
        """,
    )
    assert out == ["0 2 0", "0 0 0", "0 0"]


def test_mem_1_a_graph_that_was_refused_allows_no_charge_for_others_later(
    proxied: Proxied,
) -> None:
    """MEM-1: its kernels were never there; those of a small graph take nothing."""
    out = run(
        proxied,
        NEIGHBOUR
        + """
        graph, small = kernel_graph(100), kernel_graph(1)
        status, filler = alloc(left() - 4 * MIB)
        exec = c_void_p()
        show(status, cuda.cuGraphInstantiateWithFlags(byref(exec), graph, 0))
        check(free(filler))
        base = used()
        inject(machine, Fault("cuGraphInstantiateWithFlags", delay_us=10000, repeat=True))
        thread.start()
        for _ in range(20):
            check(cuda.cuGraphExecDestroy(instantiate(small)))
        stop.set()
        thread.join()
        show(used() - base)
        """,
    )
    assert out == ["0 2", "0"]


def test_graphs_and_functions_do_not_wait_while_a_context_is_destroyed(proxied: Proxied) -> None:
    """Its end waits for its host functions, and one of them may wait for another thread."""
    out = run(
        proxied,
        """
        import threading
        import time
        image = PTX.replace(b"plain", b"local_9216b")
        done = threading.Event()
        waited = []
        function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: waited.append(done.wait(20)))
        first = made(cuda.cuCtxGetCurrent)
        check(cuda.cuLaunchHostFunc(stream, function, None))
        second = context()
        def work():
            time.sleep(0.3)  # until the other thread is in its call
            check(cuda.cuCtxSetCurrent(second))
            exec = instantiate(kernel_graph(100))
            check(cuda.cuGraphExecDestroy(exec))
            made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, image), b"local_9216b")
            done.set()
        thread = threading.Thread(target=work)
        thread.start()
        check(cuda.cuCtxDestroy_v2(first))
        thread.join()
        show(waited)
        """,
    )
    assert out == ["[True]"]
