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
LIBRARY_BYTES = 160 * MIB  # shim/cuda/memory/code/code.c
# The driver's own functions, by the types of their result and parameters; NULL is passed for all.
CALLS = {"vprintf": ("b32", "b64 b64"), "__assertfail": ("", "b64 b64 b32 b64 b64"),
         "malloc": ("b64", "b64")}  # fmt: skip
HANDLE_NAME = f"local_{LOCAL_BYTES}b"  # says to the simulated driver what it needs


def _image(variables: int, number: int) -> str:
    """A kernel of 200 instructions, and a variable."""
    steps = "".join(f"    mad.lo.u32 %i1, %i1, {2 * i + 3}, {i};\n" for i in range(200))
    table = f".visible .global .align 4 .b8 table{number}[{variables}];\n" if variables else ""
    head = f".visible .entry work{number}(.param .u64 out)\n{{\n    .reg .b32 %i<2>;\n"
    body = "    .reg .b64 %d<3>;\n    ld.param.u64 %d1, [out];\n    mov.u32 %i1, %tid.x;\n"
    tail = "    cvta.to.global.u64 %d2, %d1;\n    st.global.u32 [%d2], %i1;\n    ret;\n}\n"
    return PTX + table + head + body + steps + tail


def calling(name: str) -> str:
    """A kernel that calls one of the driver's functions, but never gets there."""
    result, kinds = CALLS[name][0], CALLS[name][1].split()
    declared = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(kinds))
    returned = f"(.param .{result} r) " if result else ""
    passed = "".join(
        f"    .param .{kind} q{i};\n    st.param.{kind} [q{i}], 0;\n"
        for i, kind in enumerate(kinds)
    )
    called = ", ".join(f"q{i}" for i in range(len(kinds)))
    call = f"call.uni {'(v), ' if result else ''}{name}, ({called});"
    value = f"    .param .{result} v;\n" if result else ""
    return (
        f"{PTX}.extern .func {returned}{name} ({declared});\n"
        ".visible .entry calls(.param .u32 never)\n{\n    .reg .b32 %i<2>;\n    .reg .pred %p<2>;\n"
        "    ld.param.u32 %i1, [never];\n    setp.eq.u32 %p1, %i1, 0;\n    @%p1 bra DONE;\n    {\n"
        f"{passed}{value}    {call}\n    }}\nDONE:\n    ret;\n}}\n"
    )


@check("facts")
def what_the_driver_adds_for_printf_comes_once() -> Finding:
    """Code that calls printf, assert or malloc takes at most 160 MiB more, once in a context.

    With its load; its launch takes at most 16 MiB. What remains after it is unloaded is shown.
    """
    driver = Driver()
    driver.start()
    driver.launch(driver.function(driver.load(NOTHING), "nothing"))
    start, steps, modules = driver.used(), {}, []
    for name in [*CALLS, *CALLS]:
        before = driver.used()
        modules.append(driver.load(calling(name)))
        function = driver.function(modules[-1], "calls")
        loaded = driver.used()
        driver.launch(function, c_uint(0))
        took = {"load": loaded - before, "launch": driver.used() - loaded}
        steps[f"{name} again" if name in steps else name] = took
    taken = driver.used() - start
    for module in modules:
        driver.call("cuModuleUnload", module)
    again = [took["load"] for name, took in steps.items() if name.endswith("again")]
    launches = [took["launch"] for took in steps.values()]
    measured = {"steps": steps, "in all": taken, "after unloading": driver.used() - start}
    holds = taken <= LIBRARY_BYTES and max(again) <= SLACK and max(launches) <= 16 * MIB
    return Finding(holds, measured)


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
