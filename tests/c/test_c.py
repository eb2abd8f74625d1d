"""Every C test, plain and under the sanitizers."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from c.programs import HERE, Case, build, cases, run

pytestmark = pytest.mark.c


@pytest.mark.parametrize(
    "case", cases(), ids=lambda case: f"{case.program}-{case.variant}-{case.name}"
)
def test_c(case: Case) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a tmpfs, as on the host
        run(case, Path(folder))


def test_the_harness_fails_a_test_that_it_does_not_know() -> None:
    program = build("ledger_accounts", "plain")
    done = subprocess.run(
        [str(program), "no_such_test"], cwd=HERE, check=False, capture_output=True
    )
    assert done.returncode == 2
