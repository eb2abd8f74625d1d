"""Which folders' headers C includes, as docs/ARCHITECTURE.md says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
# Folder with C in it: the folders whose headers it may include.
NATIVE = {"native", "native/ledger", "native/holdings", "native/policy", "native/gate"}
GROUP = {*NATIVE, "native/arbiter", "native/arbiter/group"}
ENTRY = {*NATIVE, "shim", "shim/cuda/entry"}
COMPUTE = {*ENTRY, "shim/cuda/compute"}
KINDS = {"shim/cuda/memory/pools", "shim/cuda/memory/physical"}
MEMORY = {*ENTRY, "shim/cuda/memory", *KINDS}
SIM = {"tests/sim/machine", "tests/sim/cuda"}
SIMULATED = {"tests/sim/cuda": SIM} | {
    (room := f"tests/sim/cuda/{name}"): {*SIM, room}
    for name in ("context", "memory", "code", "stream", "graph")
}
INCLUDES = {
    "native": {"native"},
    "native/ledger": {"native", "native/ledger"},
    "native/holdings": {"native", "native/holdings"},
    "native/policy": {"native", "native/policy"},
    "native/gate": {"native", "native/ledger", "native/policy", "native/gate"},
    "native/system": {"native", "native/system"},
    "native/arbiter": {*NATIVE, "native/arbiter"},
    "native/arbiter/group": GROUP,
    "native/arbiter/thread": {*GROUP, "native/arbiter/thread"},
    "shim": {*NATIVE, "shim"},
    "shim/nvml": {*NATIVE, "shim", "shim/nvml"},
    "shim/cuda/entry": ENTRY,
    "shim/cuda/compute": COMPUTE,
    **dict.fromkeys(("shim/cuda/memory", *sorted(KINDS)), MEMORY),
    "shim/cuda/memory/code": {*MEMORY, "shim/cuda/memory/code"},
    "shim/cuda": {*COMPUTE, *MEMORY, "shim/cuda"},
    "hook/common": {"hook/common"},
    "hook/cgpu-runtime": {"hook/common", "hook/cgpu-runtime"},
    "hook/cgpu-hook": {"hook/common", "hook/cgpu-hook"},
    "hook/cgpu-python": {"hook/common"},
    # The model runs the arbiter and the gate, and nothing of the proxy.
    "tests/model": {*GROUP, "tests/model", "tests/model/cases"},
    "tests/model/cases": {*GROUP, "tests/model", "tests/model/cases"},
    "tests/sim/machine": {"tests/sim/machine"},
    "tests/sim/nvml": {"tests/sim/machine", "tests/sim/nvml", "shim/nvml"},  # NVML's types: once
    **SIMULATED,
}
# Where the compiler looks for what is not beside the file.
ANGLED = ("shim", "hook/common", "tests/sim/machine")  # by #include <> too: -I in setup.py
SEARCHED = ("native", "shim/cuda", "shim/nvml", *ANGLED, *sorted(SIM), "tests/model")
INCLUDED = re.compile(r'^\s*#\s*include\s*(?:/\*.*?\*/\s*)*(["<])([^">]+)[">]', re.MULTILINE)


def included(path: Path, text: str) -> list[tuple[str, str]]:
    """The headers of ours that a file with this ``text`` includes: name, and folder."""
    found = []
    for mark, name in INCLUDED.findall(text):
        near = [path.parent] if mark == '"' else []
        places = [*near, *(ROOT / folder for folder in (SEARCHED if near else ANGLED))]
        place = next((place for place in places if (place / name).is_file()), None)
        assert place or not near, f"{path} includes {name}, which is nowhere"
        if place:
            found.append((name, str((place / name).resolve().parent.relative_to(ROOT))))
    return found


@pytest.mark.parametrize("folder", INCLUDES)
def test_c_includes_only_headers_of_its_own_folder_and_of_those_below(folder: str) -> None:
    for kind in ("c", "h", "def", "inc"):
        for path in (ROOT / folder).glob(f"*.{kind}"):
            text = path.read_text(encoding="utf-8")
            for name, where in included(path, text):
                assert where in INCLUDES[folder], f"{path} includes {name}"


def test_every_folder_with_c_in_it_has_its_rule() -> None:
    listed = subprocess.check_output(["git", "ls-files", "*.c"], cwd=ROOT, text=True).split()
    folders = {str(Path(name).parent) for name in listed}
    product = {name for name in folders if not name.startswith(("tests/", "bench"))}
    assert product <= set(INCLUDES)


@pytest.mark.parametrize(
    "line",
    [
        '#include "memory/charge.h"',
        '#include "../memory/charge.h"',
        "#include <cuda/memory/charge.h>",
        '# include /* why */ "memory/charge.h"',
    ],
)
def test_an_include_is_found_however_it_is_written(line: str) -> None:
    path = ROOT / "shim/cuda/compute/batch_slot.c"
    assert [where for _, where in included(path, line)] == ["shim/cuda/memory"]
