"""Every entry point of the driver is classified, and treated as its class demands."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from lab.containers.images import cuda_header
from lab.driver import entry_points, real_driver, symbols

pytestmark = pytest.mark.unit

CLASSES = {
    "ACCOUNT", "ACCOUNT-CTX", "ACCOUNT-GRAPH", "ACCOUNT-IMPORT", "ACCOUNT-MODULE", "ACCOUNT-POOL",
    "ACCOUNT-RELEASE", "DEBUGGER", "GRAPH-BUILD", "HOOK-LOOKUP", "HOST-PINNED", "NEVER-LIE(103)",
    "PASS", "REJECT-ESCAPE", "REJECT-MANAGED", "STREAM-STATE", "SUBMIT-SYNC", "THROTTLE",
    "THROTTLE-COPY", "VIRTUALISE",
}  # fmt: skip
MUST_ACT = ("ACCOUNT", "VIRTUALISE", "REJECT", "HOOK-LOOKUP", "THROTTLE")


def test_mem_1_every_name_is_in_exactly_one_class() -> None:
    """MEM-1: the table lists all names, each once."""
    rows = entry_points.classification()
    assert [name for name, n in Counter(row.name for row in rows).items() if n > 1] == []
    assert {row.kind for row in rows} <= CLASSES
    assert {row.treatment for row in rows} == {"hook", "reject", "pass"}


@pytest.mark.parametrize("version", ["535", "550"])
def test_mem_1_every_symbol_of_the_real_library_is_classified(version: str) -> None:
    """MEM-1: a new driver's new name fails here until somebody has thought about it."""
    library = real_driver.real_library(version, "libcuda.so.1")
    names = {row.name for row in entry_points.classification()}
    assert symbols.exported(library) - names == set()


def test_mem_1_every_name_that_nvidia_has_published_is_classified() -> None:
    """MEM-1: those of drivers that no archive has yet, too."""
    names = {row.name for row in entry_points.classification()}
    assert entry_points.published(cuda_header()) - names == set()


def test_mem_1_every_name_that_tools_can_trace_is_classified_or_hidden() -> None:
    """MEM-1: CUPTI lists what no header declares."""
    names = {row.name for row in entry_points.classification()}
    unknown = entry_points.traced(cuda_header("cupti_driver_cbid.h")) - names
    assert {name for name in unknown if not entry_points.is_hidden(name)} == set()


def test_mem_1_a_newer_version_of_what_takes_memory_is_hidden() -> None:
    """MEM-1: nothing would charge for it."""
    taking = [
        row.name
        for row in entry_points.classification()
        if row.kind.startswith(("ACCOUNT", "REJECT", "THROTTLE"))
        and row.kind != "ACCOUNT-RELEASE"
        and row.treatment != "pass"
    ]
    assert "cuCtxSetLimit" in taking
    assert [name for name in taking if not entry_points.is_hidden(name)] == []


@pytest.mark.parametrize(
    ("kind", "treatment"), [("HOOK", "hook"), ("REJECT", "reject"), ("REAL", "pass")]
)
def test_what_hooks_def_does_is_what_the_table_says(kind: str, treatment: str) -> None:
    listed = entry_points.hooks(kind)
    shown = {row.name for row in entry_points.classification() if row.treatment == treatment}
    assert len(listed) == len(set(listed))
    assert set(listed) <= shown
    if kind != "REAL":
        assert shown == set(listed)


def test_mem_1_sch_8_what_takes_memory_or_time_is_hooked_or_says_why_not() -> None:
    """MEM-1, MEM-3, MEM-4, SCH-8: no class that must act is passed silently."""
    silent = [
        row.name
        for row in entry_points.classification()
        if row.kind.startswith(MUST_ACT) and row.treatment == "pass" and not row.reason
    ]
    assert silent == []


def test_mem_3_whatever_is_classed_as_refused_is_refused() -> None:
    """MEM-3: a reason does not excuse a row of these classes."""
    wrong = [
        row.name
        for row in entry_points.classification()
        if row.kind.startswith("REJECT") and row.treatment != "reject"
    ]
    assert wrong == []


def test_mem_5_what_libcudart_verifies_is_never_hooked() -> None:
    """MEM-5: driver version, device count, UUIDs, PCI ids and export tables."""
    wrong = [
        row.name
        for row in entry_points.classification()
        if (row.kind.startswith("NEVER-LIE") or row.name == "cuGetExportTable")
        and row.treatment != "pass"
    ]
    assert wrong == []


def test_the_known_names_of_the_proxy_are_those_of_the_table() -> None:
    script = entry_points.HOOKS.parent / "known_names.py"
    spec = importlib.util.spec_from_file_location("known_names", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.render(), f"run python {script}"
