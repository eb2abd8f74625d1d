"""What several files of this folder start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.driver.cuda_base import (
    PROGRAMS,
    STUB_CAP,
    STUB_CONTEXT,
    Base,
    compile_c,
    lay_out,
    stub_gpus,
)
from lab.driver.cuda_proxied import Proxied, make_proxied
from lab.machine.servers import end_servers
from lab.shares.gate_world import OPEN, Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def proxied(tmp_path: Path) -> Proxied:
    """6 of 15 GiB on each of two simulated T4."""
    return make_proxied(tmp_path)


@pytest.fixture
def gate(proxied: Proxied) -> Iterator[Gate]:
    """The gate of its first GPU, open, instead of an arbiter."""
    with Gate(proxied.base.path, state=OPEN) as made:
        yield made


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver that fails on demand."""
    folder = tmp_path_factory.mktemp("stub")
    flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    parts = [PROGRAMS / "drivers" / f"stub_{part}.c" for part in ("driver", "launch", "memory")]
    return compile_c(parts[0], folder / "libcuda.so.1", *map(str, parts[1:]), *flags)


@pytest.fixture
def make_base(stub: Path, tmp_path: Path) -> Callable[[int], Base]:
    """A base directory above the stub driver, with these flags in its limits."""
    return lambda flags: lay_out(tmp_path / "base", stub, stub_gpus(STUB_CAP, STUB_CONTEXT), flags)


@pytest.fixture
def base(make_base: Callable[[int], Base]) -> Base:
    """100 MiB on each GPU of the stub driver, where a context costs 10."""
    return make_base(0)


@pytest.fixture(scope="session", autouse=True)
def no_server_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was started for a state directory of a test ends with the tests."""
    yield
    end_servers(tmp_path_factory.getbasetemp())
