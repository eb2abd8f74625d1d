"""The two tables of the driver's entry points: the classification, and what the proxy does."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

_SUFFIXES = {"PTSZ": "_ptsz", "PTDS": "_ptds"}  # of what works on the thread's own default stream
ROOT = Path(__file__).resolve().parents[3]
CLASSIFICATION = ROOT / "shim" / "driver_entry_points.csv"
HOOKS = ROOT / "shim" / "cuda" / "entry" / "hooks.def"
LOOKUP = ROOT / "shim" / "cuda" / "entry" / "lookup.c"


class EntryPoint(NamedTuple):
    """One row of the classification."""

    name: str
    kind: str
    treatment: str
    reason: str


def classification() -> list[EntryPoint]:
    """Every row, in order."""
    with CLASSIFICATION.open(newline="") as file:
        return [
            EntryPoint(row["name"], row["class"], row["treatment"], row["reason"])
            for row in csv.DictReader(file)
        ]


def hooks(kind: str) -> list[str]:
    """Names in rows of one kind (HOOK of any kind, REJECT, REAL) of ``hooks.def`` and its parts."""
    macro = "(?:HOOK|UNGUARDED|FOLLOW|SYNC|LAUNCH|TRANSFER)" if kind == "HOOK" else kind
    return re.findall(rf"^{macro}\((\w+)", _rows(), flags=re.MULTILINE)


def with_pointers() -> set[str]:
    """Names in rows of HOOK, UNGUARDED and FOLLOW that take pointers, not only handles."""
    row = re.compile(r"^(?:HOOK|UNGUARDED|FOLLOW)\((\w+)(.*?)^(?=\w|$)", re.MULTILINE | re.DOTALL)
    return {name for name, parameters in row.findall(_rows()) if "*" in parameters}


def _rows() -> str:
    text = "".join(path.read_text() for path in sorted(HOOKS.parent.glob("*.def")))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def published(header: Path) -> set[str]:
    """Every name in NVIDIA's ``cuda.h``, and those that its macros make of them."""
    text = header.read_text()
    names = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", text))
    names.update(re.findall(r"^#\s*define\s+cu\w+\s+(cu\w+)\s*$", text, re.MULTILINE))
    for macro, name in re.findall(r"__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)", text):
        names |= {name, f"{name}{_SUFFIXES[macro]}"}
    return names


def traced(header: Path) -> set[str]:
    """Every name in CUPTI's list, without those of Windows, and those that are mere numbers."""
    names = set(re.findall(r"CUPTI_DRIVER_TRACE_CBID_(cu\w+)", header.read_text()))
    return {each for each in names if not re.match(r"cu(da\d|D3D|GraphicsD3D|WGL)", each)}


def is_hidden(name: str) -> bool:
    """Whether a look-up hands out no such name of a driver that is newer than cgpu."""
    families, verbs = map(_words, ("families", "verbs"))
    return name.startswith(families) or any(verb in name for verb in verbs)


def _words(array: str) -> tuple[str, ...]:
    [body] = re.findall(rf"const {array}\[\] = {{(.*?)}}", LOOKUP.read_text(), re.DOTALL)
    return tuple(re.findall(r'"(\w+)"', body))
