"""Facts about code: what modules take at most, and what a kernel's handle tells about it."""

from __future__ import annotations

from ctypes import c_int, c_uint, c_uint64

from gpu.check import MIB, Finding, NotRunError, check
from gpu.facts.memory import (
    LOCAL_ATTRIBUTE,
    LOCAL_BYTES,
    SMS,
    SPILL,
    THREADS_PER_SM,
)
from gpu.interface.driver import NOTHING, PTX, Driver

BYTES_A_LETTER, SLACK = 16, 4 * MIB  # shim/cuda/memory/code/ptx.[ch]
VARIABLES = (0, MIB // 2, MIB, 3 * MIB, 9 * MIB, 40 * MIB)
LARGE = VARIABLES[-1]
HANDLE_NAME = f"local_{LOCAL_BYTES}b"  # says to the simulated driver what it needs


def _image(variables: int, number: int) -> str:
    """A kernel of 200 instructions, and a variable."""
    steps = "".join(f"    mad.lo.u32 %i1, %i1, {2 * i + 3}, {i};\n" for i in range(200))
    table = f".visible .global .align 4 .b8 table{number}[{variables}];\n" if variables else ""
    head = f".visible .entry work{number}(.param .u64 out)\n{{\n    .reg .b32 %i<2>;\n"
    body = "    .reg .b64 %d<3>;\n    ld.param.u64 %d1, [out];\n    mov.u32 %i1, %tid.x;\n"
    tail = "    cvta.to.global.u64 %d2, %d1;\n    st.global.u32 [%d2], %i1;\n    ret;\n}\n"
    return PTX + table + head + body + steps + tail


@check("facts")
def a_module_takes_what_its_image_tells() -> Finding:
    """A module of PTX takes its variables, and at most 16 bytes a letter and 4 MiB more.

    From its load to its first launch; the first module of a process is not counted. Variables of
    up to 1 MiB may lie in a block that is there already.
    """
    driver = Driver()
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))  # lazy parts of the context
    out = c_uint64(driver.alloc(64))
    seen = []
    for number, variables in enumerate(VARIABLES * 3):
        image = _image(variables, number)
        before = driver.used()
        driver.launch(driver.function(driver.load(image), f"work{number}"), out)
        taken = driver.used() - before
        bound = BYTES_A_LETTER * len(image) + variables + SLACK
        least = variables if variables > MIB else 0
        seen.append({"least": least, "taken": taken, "bound": bound})
    return Finding(all(s["least"] <= s["taken"] <= s["bound"] for s in seen), {"modules": seen})


@check("facts")
def a_library_takes_its_variables_when_its_module_is_asked_for() -> Finding:
    """cuLibraryGetModule takes a library's variables; a launch by handle takes no more of them."""
    driver = Driver()
    driver.needs("cuLibraryGetKernel", "cuLibraryGetModule")
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    out = c_uint64(driver.alloc(64))
    text = _image(LARGE, 1).encode() + b"\0"
    library = driver.made("cuLibraryLoadData", text, None, None, 0, None, None, 0)
    kernel = driver.made("cuLibraryGetKernel", library, b"work1")
    before = driver.used()
    driver.made("cuLibraryGetModule", library)
    module = driver.used() - before
    driver.launch(kernel, out)
    launch = driver.used() - before - module
    measured = {"variables": LARGE, "with the module": module, "with the launch": launch}
    return Finding(LARGE <= module <= LARGE + SLACK and launch <= SLACK, measured)


@check("facts")
def a_kernels_handle_tells_its_local_memory_before_a_launch() -> Finding:
    """cuKernelGetAttribute tells local memory, takes no memory, and the launch takes that.

    By the kernel's handle, without a function: at most (local bytes + 512) x threads and 4 MiB.
    """
    driver = Driver()
    driver.needs("cuLibraryGetKernel", "cuKernelGetAttribute")
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    text = SPILL.replace("spill(", f"{HANDLE_NAME}(").encode() + b"\0"
    library = driver.made("cuLibraryLoadData", text, None, None, 0, None, None, 0)
    kernel = driver.made("cuLibraryGetKernel", library, HANDLE_NAME.encode())
    before = driver.used()
    attribute = ("cuKernelGetAttribute", LOCAL_ATTRIBUTE, kernel, driver.device())
    local = driver.made(*attribute, kind=c_int).value
    asked = driver.used() - before
    if local < LOCAL_BYTES:
        raise NotRunError(f"the driver's compiler left {local} bytes of local memory")
    out = c_uint64(driver.alloc(64))
    before = driver.used()
    driver.launch(kernel, out, c_uint(3), c_uint(3))
    taken = driver.used() - before
    threads = driver.attribute(THREADS_PER_SM) * driver.attribute(SMS)
    bound = (local + 512) * threads + SLACK
    measured = {"local bytes": local, "by asking": asked, "by the launch": taken, "bound": bound}
    return Finding(asked == 0 and taken <= bound, measured)
