"""The NVML proxy as a binary: what it exports, what it needs, and the list it was built from."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from lab.driver.nvml_base import ROOT, SONAME
from lab.driver.real_driver import real_library
from lab.driver.symbols import dynamic, exported, machine, versions_needed
from lab.products.products import build

pytestmark = [pytest.mark.integration, pytest.mark.exact]

SHIM = ROOT / "shim" / "nvml"
MACHINES = {"x86_64": "x64", "aarch64": "AArch64"}
CLASSES = {"HOOK", "REJECT", "PASS"}
BASE = "/dev/cgpu" + "/." * 100


def hooks(kind: str = r"HOOK|REJECT") -> list[str]:
    return re.findall(rf"^(?:{kind})\((\w+)", (SHIM / "hooks.def").read_text(), flags=re.MULTILINE)


def entry_points() -> list[dict[str, str]]:
    with (SHIM / "entry_points.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", params=MACHINES)
def processor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proxy(processor: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(processor)
    return build(f"shim/cgpu_shim/_lib/{SONAME}", processor, folder)


def test_it_is_built_for_the_processor(proxy: Path, processor: str) -> None:
    assert machine(proxy) == MACHINES[processor]


def test_it_exports_exactly_the_hooks(proxy: Path) -> None:
    assert exported(proxy) == set(hooks())


def test_it_needs_the_real_library_by_absolute_path_and_else_only_libc(proxy: Path) -> None:
    own, *others = dynamic(proxy, "DT_NEEDED")
    assert own == f"{BASE}/real/{SONAME}"
    assert set(others) <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert dynamic(proxy, "DT_SONAME") == [SONAME]


def test_it_has_no_runpath(proxy: Path) -> None:
    assert dynamic(proxy, "DT_RUNPATH") == []
    assert dynamic(proxy, "DT_RPATH") == []


def test_it_runs_on_glibc_2_17(proxy: Path) -> None:
    versions = [v.removeprefix("GLIBC_").split(".") for v in versions_needed(proxy)]
    assert versions
    assert max(tuple(map(int, version)) for version in versions) <= (2, 17)


@pytest.mark.parametrize("version", ["535", "550"])
def test_every_name_of_the_real_library_is_in_exactly_one_class(version: str) -> None:
    rows = entry_points()
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names))
    assert {row["class"] for row in rows} == CLASSES
    real = exported(real_library(version, SONAME))
    assert real == {row["name"] for row in rows if row[f"exported{version}"]}


def test_hooks_are_the_names_classed_so() -> None:
    for kind in ("HOOK", "REJECT"):
        assert hooks(kind) == list(dict.fromkeys(hooks(kind)))
        assert set(hooks(kind)) == {r["name"] for r in entry_points() if r["class"] == kind}


def test_every_name_that_is_called_exists_in_the_real_library() -> None:
    assert set(hooks("HOOK|REAL")) <= exported(real_library("550", SONAME))
