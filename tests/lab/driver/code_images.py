"""Images of code for tests, and programs that load them through the libcuda proxy."""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab.driver.cuda_proxied import Proxied

START = "from lab.calls.cuda_kind_calls import *\ncontext()\nbase = used()\n"
# A thread of a program that runs in the body of a test: it allocates beside the proxy.
NEIGHBOUR = """
        import threading
        from cgpu_sim import Fault, inject
        from pathlib import Path
        base_folder = Path(os.environ["CGPU_PROXY"]).parent.parent
        real = ctypes.CDLL(str(base_folder / "real" / "libcuda.so.1"))
        machine = Path(os.environ["CGPU_SIM_MACHINE"]).parent
        others, stop = c_void_p(), threading.Event()
        check(real.cuDevicePrimaryCtxRetain(byref(others), 0))
        def neighbour(bytes, limit):
            check(real.cuCtxSetCurrent(others))
            held = []
            while not stop.is_set():
                address = c_uint64()
                check(real.cuMemAlloc_v2(byref(address), c_size_t(bytes)))
                held.append(address)
                stop.wait(0.001)
                if len(held) * bytes >= limit:
                    for address in held:
                        check(real.cuMemFree_v2(address))
                    held = []
            for address in held:
                check(real.cuMemFree_v2(address))
        thread = threading.Thread(target=neighbour, args=(8 * MIB, 4096 * MIB))
"""
ELF_HEADER = 64
SECTION = 64
SYMBOL = 24
ENTRY = 0x10  # st_other of a kernel


def run(proxied: Proxied, program: str, *arguments: str, **env: str) -> list[str]:
    """Lines of a program below ``START``."""
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    return proxied.check(START + "\n".join(lines), *arguments, **env).out


def cubin(*, managed: bool, sections: int = 3, symbols: int = 2, calls: str = "") -> bytes:
    """A cubin with one variable of 4,000 bytes: a symbol table, its names, and no code.

    If it ``calls`` a function of the driver, it has a kernel ``work``.
    """
    names = b"\0plain\0.nv.global\0"
    table = bytes(SYMBOL) + struct.pack("<IBBHQQ", 1, 0x11, 4 if managed else 0, 1, 0, 4000)
    if calls:
        table += struct.pack("<IBBHQQ", len(names), 0x12, ENTRY, 1, 0, 0)
        table += struct.pack("<IBBHQQ", len(names) + 5, 0x12, 0, 0, 0, 0)
        names += f"work\0{calls}\0".encode()
        symbols += 2
    at = ELF_HEADER
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    offset = at + len(table) + len(names)
    rest = (2, 190, 1, 0, 0, offset, 0, 64, 0, 0, SECTION, sections, 1)
    header += struct.pack("<HHIQQQIHHHHHH", *rest)
    sizes = (SYMBOL * symbols, len(names))
    rows = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at, sizes[0], 1, 1, 8, SYMBOL)
    rows += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at + len(table), sizes[1], 0, 0, 1, 0)
    rows += struct.pack("<IIQQQQIIQQ", 7, 8, 3, 0, offset, 4000, 0, 0, 4, 0)
    return header + table + names + rows


def fat(*members: tuple[int, bytes, int], architectures: Iterable[int] = repeat(75)) -> bytes:
    """A fat binary of (kind, image, flags)."""
    body = b""
    for (kind, content, flags), architecture in zip(members, architectures, strict=False):
        image = content.ljust((len(content) + 7) // 8 * 8, b"\0")
        body += struct.pack("<HHIQ", kind, 0x101, 64, len(image))
        body += struct.pack("<12xI8x", architecture)
        body += struct.pack("<Q", flags) + bytes(16) + image
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


__all__ = ["NEIGHBOUR", "START", "cubin", "fat", "run"]
