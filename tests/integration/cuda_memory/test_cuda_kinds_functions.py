"""Functions and kernels through the libcuda proxy: what loading and launching them takes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from lab.driver.code_images import NEIGHBOUR, cubin, fat, run
from lab.driver.cuda_base import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_proxied import Proxied

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("image", ["PTX", "open(sys.argv[1], 'rb').read()"], ids=["PTX", "cubin"])
def test_mem_1_a_neighbours_memory_is_not_charged_as_code_that_is_loaded_beside_it(
    proxied: Proxied, tmp_path: Path, image: str
) -> None:
    """MEM-1: a module counts as no more than what its image can need, whatever the GPU does."""
    (tmp_path / "cubin").write_bytes(cubin(managed=False))
    out = run(
        proxied,
        NEIGHBOUR
        + f"""
        image = {image}
        inject(machine, Fault("cuModuleLoadData", delay_us=10000, repeat=True))
        thread.start()
        modules = [made(cuda.cuModuleLoadData, image) for _ in range(40)]
        stop.set()
        thread.join()
        show((used() - base) // MIB <= 40 * 6)
        for module in modules:
            check(cuda.cuModuleUnload(module))
        show(used() - base)
        """,
        str(tmp_path / "cubin"),
    )
    assert out == ["True", "0"]


def test_mem_1_a_neighbours_memory_is_not_charged_as_a_function_that_is_loaded_lazily(
    proxied: Proxied,
) -> None:
    """MEM-1: all functions of a module take no more than its image can need."""
    out = run(
        proxied,
        NEIGHBOUR
        + r"""
        names = [f"kernel{i}".encode() for i in range(20)]
        image = b".version 7.0\n" + b"".join(b".entry %s() { ret; }\n" % name for name in names)
        inject(machine, Fault("cuFuncLoad", delay_us=10000, repeat=True))
        module = made(cuda.cuModuleLoadData, image + b"\0")
        thread.start()
        for name in names:
            made(cuda.cuModuleGetFunction, module, name)
        stop.set()
        thread.join()
        show((used() - base) // MIB <= 6)
        check(cuda.cuModuleUnload(module))
        show(used() - base)
        """,
        CGPU_SIM_LAZY="1",
    )
    assert out == ["True", "0"]


@pytest.mark.parametrize(
    "load",
    [
        "made(cuda.cuModuleLoadData, image)",
        "made(cuda.cuLibraryGetModule, load_library(image))",
        "made(cuda.cuLibraryGetKernel, load_library(image), b'plain')",
        "made(cuda.cuModuleLoadFatBinary, open(sys.argv[1], 'rb').read())",
    ],
    ids=["module", "library", "kernel", "fat binary"],
)
def test_mem_1_variables_are_charged_while_a_neighbour_frees_memory(
    proxied: Proxied, tmp_path: Path, load: str
) -> None:
    """MEM-1: what an image declares is charged even if the GPU has more free than before."""
    size = struct.pack("<Q", 100 * MIB)
    image = cubin(managed=False).replace(struct.pack("<Q", 4000), size)
    (tmp_path / "fat").write_bytes(fat((2, image, 0), (1, b"packed", 0x8000)))
    out = run(
        proxied,
        NEIGHBOUR
        + rf"""
        image = b".version 7.0\n.global .b8 t[100 * MIB];\n.visible .entry plain() {{ ret; }}\n\0"
        image = image.replace(b"100 * MIB", b"%d" % (100 * MIB))
        for call in ("cuModuleLoadData", "cuLibraryGetModule", "cuModuleLoadFatBinary"):
            inject(machine, Fault(call, delay_us=50000, repeat=True))
        def free():
            for address in held:
                check(real.cuMemFree_v2(address))
                stop.wait(0.02)
        check(real.cuCtxPushCurrent_v2(others))
        held = [c_uint64() for _ in range(30)]
        for address in held:
            check(real.cuMemAlloc_v2(byref(address), c_size_t(100 * MIB)))
        check(real.cuCtxPopCurrent_v2(byref(c_void_p())))
        thread = threading.Thread(target=free)
        thread.start()
        for _ in range(5):
            {load}
        show((used() - base) // MIB >= 500)
        stop.set()
        thread.join()
        """,
        str(tmp_path / "fat"),
    )
    assert out == ["True"]


PLAIN = cubin(managed=False, sections=2, symbols=1)
LARGE = cubin(managed=False).replace(struct.pack("<Q", 4000), struct.pack("<Q", 100 * MIB))
LARGE_PTX = b".version 7.0\n.global .b8 t[%d];\n\0" % (100 * MIB)


@pytest.mark.parametrize(
    ("members", "charged"),
    [
        ({90: (2, LARGE, 0), 75: (2, PLAIN, 0)}, 2),
        ({75: (2, PLAIN, 0), 90: (2, LARGE, 0)}, 2),
        ({80: (2, PLAIN, 0), 75: (2, LARGE, 0)}, 102),
        ({75: (2, PLAIN, 0), 60: (1, LARGE_PTX, 0)}, 2),
        ({80: (2, PLAIN, 0), 60: (1, LARGE_PTX, 0)}, 102),
    ],
    ids=["its cubin last", "its cubin first", "its cubin is large", "before PTX", "else PTX"],
)
def test_mem_1_variables_of_the_member_that_the_driver_chooses_are_charged(
    proxied: Proxied, tmp_path: Path, members: dict[int, tuple[int, bytes, int]], charged: int
) -> None:
    """MEM-1: those of a fat binary's other members take nothing. The GPU is of capability 7.5."""
    (tmp_path / "fat").write_bytes(fat(*members.values(), architectures=members))
    out = run(
        proxied,
        """
        made(cuda.cuModuleLoadFatBinary, open(sys.argv[1], "rb").read())
        show((used() - base) // MIB, drift())
        """,
        str(tmp_path / "fat"),
    )
    assert out == [f"{charged} 0"]


@pytest.mark.parametrize("dimensions", ["[314572800]", "[300][0x100000]", "[ 300 ][1048576]"])
def test_mem_1_large_variables_of_ptx_are_charged_when_it_is_loaded(
    proxied: Proxied, dimensions: str
) -> None:
    """MEM-1: the text states their sizes, so the bound contains them."""
    out = run(
        proxied,
        rf"""
        text = b".version 7.0\n.visible .global .align 4 .b8 big{dimensions};\n\0"
        made(cuda.cuModuleLoadData, text)
        show((used() - base) // MIB, drift())
        """,
    )
    assert out == ["302 0"]


def test_modules_are_loaded_by_several_threads_at_once(proxied: Proxied) -> None:
    """Eight loads of 200 ms each take no longer than three: no thread waits for another's."""
    out = run(
        proxied,
        """
        import threading, time
        from cgpu_sim import Fault, inject
        from pathlib import Path
        machine = Path(os.environ["CGPU_SIM_MACHINE"]).parent
        inject(machine, Fault("cuModuleLoadData", delay_us=200000, repeat=True))
        current, modules = c_void_p(), []
        check(cuda.cuCtxGetCurrent(byref(current)))
        def load():
            check(cuda.cuCtxSetCurrent(current))
            modules.append(made(cuda.cuModuleLoadData, PTX))
        threads = [threading.Thread(target=load) for _ in range(8)]
        begun = time.monotonic()
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        show(time.monotonic() - begun < 0.6)
        show((used() - base) // MIB, drift())
        for module in modules:
            check(cuda.cuModuleUnload(module))
        show(used() - base, drift())
        """,
    )
    assert out == ["True", "16 0", "0 0"]


def test_a_kernel_whose_function_is_known_is_not_measured_again(proxied: Proxied) -> None:
    """cuKernelGetFunction neither asks for free memory nor waits for a thread that compiles."""
    out = run(
        proxied,
        """
        import threading, time
        from cgpu_sim import Fault, inject
        from pathlib import Path
        machine = Path(os.environ["CGPU_SIM_MACHINE"]).parent
        kernel = made(cuda.cuLibraryGetKernel, load_library(PTX), b"plain")
        made(cuda.cuKernelGetFunction, kernel)
        inject(machine, Fault("cuModuleLoadData", delay_us=2000000))
        current, done = c_void_p(), threading.Event()
        check(cuda.cuCtxGetCurrent(byref(current)))
        def compile():
            check(cuda.cuCtxSetCurrent(current))
            made(cuda.cuModuleLoadData, PTX)
            done.set()
        thread = threading.Thread(target=compile)
        thread.start()
        time.sleep(0.5)
        for _ in range(1000):
            made(cuda.cuKernelGetFunction, kernel)
        show(done.is_set())
        thread.join()
        inject(machine, Fault("cuMemGetInfo", kill=True))
        for _ in range(1000):
            made(cuda.cuKernelGetFunction, kernel)
        show("measured nothing")
        """,
    )
    assert out == ["False", "measured nothing"]


LOCAL = r"""
        BIG = b'''.version 7.0
        .visible .entry plain(.param .u64 x) { ret; }
        .visible .entry local_9216b() { ret; }
        \0'''
        GROWTH = (9216 - 1024) * 1024 * 40 // MIB
        def launch(kernel):
            return cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        def entries(enumerate, owner):
            found = (c_void_p * 2)()
            check(enumerate(found, 2, owner))
            return [c_void_p(handle) for handle in found]
        def named(handles, of_name):
            for handle in handles:
                name = ctypes.c_char_p()
                check(of_name(byref(name), handle))
                if name.value == b"local_9216b":
                    return handle
        def module_function():
            return made(cuda.cuModuleGetFunction, made(cuda.cuModuleLoadData, BIG), b"local_9216b")
        def enumerated_function():
            module = made(cuda.cuModuleLoadData, BIG)
            return named(entries(cuda.cuModuleEnumerateFunctions, module), cuda.cuFuncGetName)
        def kernel():
            return made(cuda.cuLibraryGetKernel, load_library(BIG), b"local_9216b")
        def enumerated_kernel():
            return named(entries(cuda.cuLibraryEnumerateKernels, load_library(BIG)),
                         cuda.cuKernelGetName)
        def kernel_function():
            return made(cuda.cuKernelGetFunction, kernel())
        def library_function():
            module = made(cuda.cuLibraryGetModule, load_library(BIG))
            return made(cuda.cuModuleGetFunction, module, b"local_9216b")
"""
WAYS = (
    *("module_function", "enumerated_function", "kernel", "enumerated_kernel"),
    *("kernel_function", "library_function"),
)


LOADED_BY_LAUNCH = {
    "eager": ("kernel", "enumerated_kernel"),
    "lazy": ("kernel", "enumerated_kernel", "enumerated_function"),
}


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("way", WAYS)
def test_mem_1_local_memory_is_charged_however_a_kernels_handle_was_got(
    proxied: Proxied, way: str, mode: str
) -> None:
    """MEM-1: before the kernel's first launch, and once.

    Code that only a launch loads is not charged: 2 MiB of the driver.
    """
    out = run(
        proxied,
        LOCAL
        + f"""
        handle = {way}()
        before = used() - base >= GROWTH * MIB
        check(launch(handle))
        show(before, (used() - base) // MIB - GROWTH, drift())
        """,
        **({"CGPU_SIM_LAZY": "1"} if mode == "lazy" else {}),
    )
    by_launch = way in LOADED_BY_LAUNCH[mode]
    assert out == [f"True {0 if by_launch else 2} {2 * MIB if by_launch else 0}"]


@pytest.mark.parametrize("way", WAYS)
def test_mem_2_a_kernel_whose_local_memory_does_not_fit_is_refused(
    proxied: Proxied, way: str
) -> None:
    """MEM-2: asking for it says out of memory; nothing was launched that could take more."""
    out = run(
        proxied,
        LOCAL
        + f"""
        status, filler = alloc(left() - 100 * MIB)
        try:
            {way}()
            show("got")
        except SystemExit as refused:
            show(refused)
        show(drift())
        """,
    )
    assert out == ["CUDA status 2", "0"]


def test_mem_1_a_function_at_the_address_of_an_unloaded_one_is_looked_at_anew(
    proxied: Proxied,
) -> None:
    """MEM-1: until the driver gives the address out again."""
    out = run(
        proxied,
        LOCAL
        + r"""
        modest = BIG.replace(b"9216", b"0000")
        seen = set()
        for image in [modest] * 20 + [BIG] * 20:
            module = made(cuda.cuModuleLoadData, image)
            name = b"local_9216b" if image is BIG else b"local_0000b"
            function = made(cuda.cuModuleGetFunction, module, name)
            if image is BIG and (module.value, function.value) in seen:
                break
            seen.add((module.value, function.value))
            check(cuda.cuModuleUnload(module))
        show(image is BIG, launch(function), drift())
        """,
    )
    assert out == ["True 0 0"]


def test_mem_1_a_context_made_later_is_charged_for_kernels_that_are_known(
    proxied: Proxied,
) -> None:
    """MEM-1: a kernel's handle is good in every context of the process."""
    out = run(
        proxied,
        LOCAL
        + """
        handle = kernel()
        show((used() - base) // MIB - GROWTH)
        before = used()
        other = made(cuda.cuCtxCreate_v2, 0, 0)
        show((used() - before) // MIB - GROWTH - 105)
        check(launch(handle))
        show((used() - before) // MIB - GROWTH - 105)
        check(cuda.cuCtxDestroy_v2(other))
        show(used() - before)
        """,
    )
    assert out == ["0", "0", "0", "0"]
