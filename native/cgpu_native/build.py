"""Build of the cffi binding (API mode) from the C headers themselves.

``setup.py`` finds ``ffibuilder`` here. cffi gets the text between the markers of a header
unchanged, so no prototype or structure is written twice.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).resolve().parent.parent
# In the order in which they include one another.
HEADERS = (
    *("status.h", "limits.h", "ledger/ledger_file.h", "ledger/ledger.h", "holdings/holdings.h"),
    *("gate/gate.h", "policy/policy.h", "arbiter/thread/arbitration.h"),
    "system/system.h",
)
BEGIN = "/* cffi: begin */"
END = "/* cffi: end */"


def read_declarations(header: Path) -> str:
    """Return the text between the cffi markers in ``header``.

    Raises:
        ValueError: if the markers are missing.
    """
    parts = header.read_text(encoding="utf-8").split(BEGIN)[1:]
    if not parts or any(END not in part for part in parts):
        raise ValueError(f"{header} has no part between {BEGIN} and {END}")
    return "".join(part.partition(END)[0] for part in parts)


def _list_sources() -> list[str]:
    root = NATIVE.parent
    return sorted(str(path.relative_to(root)) for path in NATIVE.rglob("*.c"))


ffibuilder = FFI()
for name in HEADERS:
    ffibuilder.cdef(read_declarations(NATIVE / name))
ffibuilder.set_source(
    "cgpu_native._native",
    "".join(f'#include "{name}"\n' for name in HEADERS),
    sources=_list_sources(),
    # not include_dirs, because native/limits.h would then hide the C library's <limits.h>
    extra_compile_args=["-std=gnu11", "-iquote", str(NATIVE), "-fvisibility=hidden", "-pthread"],
    # setup.py says how, and for which machine, to build it.
    depends=[*sorted(str(path) for path in NATIVE.rglob("*.h")), str(NATIVE.parent / "setup.py")],
    py_limited_api=True,
)
