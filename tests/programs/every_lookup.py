"""Ask the proxy and the real driver below it for every name, version and flag, and compare.

Prints each answer that is wrong, then how many addresses were compared. Needs no GPU: look-ups work
before cuInit.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from lab.calls.cuda_calls import cuda, show
from lab.driver import entry_points

VERSIONS = (2000, 3020, 4000, 6050, 7000, 9000, 11000, 11030, 11040, 12000, 12040, 13000)
FLAGS = (0, 1, 2)

real = ctypes.CDLL(str(Path(os.environ["CGPU_PROXY"]).parent.parent / "real" / "libcuda.so.1"))


def address_of(library: ctypes.CDLL, name: str) -> int | None:
    """Where a library has a symbol, or None."""
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def ask(library: ctypes.CDLL, new: bool, *question: Any) -> tuple[int, int | None, int]:  # noqa: FBT001
    """cuGetProcAddress (_v2 if ``new``): status, address, status of the symbol."""
    name, version, flags = question
    address, found = ctypes.c_void_p(), ctypes.c_int(-1)
    arguments = [name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags)]
    if new:
        status = library.cuGetProcAddress_v2(*arguments, ctypes.byref(found))
    else:
        status = library.cuGetProcAddress(*arguments)
    return status, address.value, found.value


def main() -> None:
    """Compare all."""
    names = {row.name: row.treatment for row in entry_points.classification()}
    symbols = {address_of(real, name): name for name in names}
    compared = 0
    for new in (True, False):
        questions = [
            (n, v, f) for n in ["", "cuNoSuchName", *names] for v in VERSIONS for f in FLAGS
        ]
        for question in questions:
            status, address, found = ask(real, new, *question)
            expected = address
            if address is not None:
                compared += 1
                symbol = symbols[address]
                expected = address_of(cuda, symbol)
                hooked = names[symbol] != "pass"
                if hooked != (expected != address):
                    show("not swapped, or swapped without a reason:", symbol)
            answer = ask(cuda, new, *question)
            if answer != (status, expected, found):
                show("wrong:", new, question, answer, (status, expected, found))
    show(compared)


main()
