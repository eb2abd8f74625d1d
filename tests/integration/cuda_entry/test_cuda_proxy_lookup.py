"""Every way to a symbol of libcuda leads to the proxy's function, on the real libraries too."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lab.driver import real_driver
from lab.driver.cuda_base import MIB, PROGRAMS, compile_c, lay_out, stub_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from lab.driver.cuda_base import Base

pytestmark = pytest.mark.integration


@pytest.fixture(params=["535", "550"])
def real_base(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    library = real_driver.real_library(request.param, "libcuda.so.1")
    return lay_out(tmp_path / "base", library, stub_gpus(100 * MIB))


def test_mem_1_lookups_of_the_real_driver_are_swapped_exactly(real_base: Base) -> None:
    """MEM-1: every name, 12 versions, 3 flags, both look-ups; version- and thread-correct."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / "every_lookup.py"],
        env=real_base.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *wrong, compared = done.stdout.splitlines()
    assert wrong == []
    assert int(compared) > 15000
    assert done.stderr == ""


def test_mem_5_the_real_driver_answers_for_itself_through_the_proxy(real_base: Base) -> None:
    """MEM-5: without a GPU cuInit gives 100; version and export tables are the driver's own."""
    outcome = real_base.check(
        """
        real = ctypes.CDLL(os.environ["CGPU_PROXY"].replace("/lib/", "/real/"))
        version = c_int()
        check(cuda.cuDriverGetVersion(byref(version)))
        address = lambda library: ctypes.cast(library.cuGetExportTable, c_void_p).value
        show(cuda.cuInit(0), version.value >= 12020, address(cuda) == address(real))
        """
    )
    assert (outcome.out, outcome.log) == (["100 True True"], "")


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C program that is linked against libcuda.so.1 and finds cuMemAlloc in every way."""
    folder = tmp_path_factory.mktemp("routes")
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    stub = compile_c(PROGRAMS / "drivers" / "stub_driver.c", folder / "libcuda.so.1", *flags)
    return compile_c(PROGRAMS / "routes.c", folder / "routes", str(stub), "-ldl")


@pytest.fixture
def base(routes: Path, tmp_path: Path) -> Base:
    return lay_out(tmp_path / "base", routes.parent / "libcuda.so.1", stub_gpus(100 * MIB))


def _routes(routes: Path, base: Base, **env: str) -> list[str]:
    done = subprocess.run(
        [routes, base.proxy],
        env={"LD_LIBRARY_PATH": str(base.path / "lib"), "CGPU_LOG": "off", **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_mem_1_every_route_to_an_allocation_is_capped(routes: Path, base: Base) -> None:
    """MEM-1: linked, dlsym in every manner, other namespaces, both look-ups with every flag."""
    assert _routes(routes, base) == [
        f"{route} 2"
        for route in (
            "linked",
            "dlsym default",
            "dlopen soname",
            "dlopen absolute",
            "dlopen deep-bound",
            "dlopen local lazy",
            "dlmopen",
            "lookup",
            "lookup per-thread",
            "lookup v2",
            "lookup v2 per-thread",
            "lookup of the lookup",
        )
    ]


def test_lookups_give_our_function_whoever_else_exports_its_name(
    routes: Path, base: Base, tmp_path: Path
) -> None:
    """A preloaded library may put itself before us; it does not get into our table."""
    source = tmp_path / "other.c"
    source.write_text("int cuMemAlloc_v2(void); int cuMemAlloc_v2(void) { return 77; }\n")
    other = compile_c(source, tmp_path / "other.so", "-shared", "-fPIC")
    answers = _routes(routes, base, LD_PRELOAD=str(other))
    assert answers[0] == "linked 77"
    assert [line for line in answers if line.startswith("lookup")] == [
        f"lookup{how} 2" for how in ("", " per-thread", " v2", " v2 per-thread", " of the lookup")
    ]
