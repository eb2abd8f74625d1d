"""Every C test, plain and under the sanitizers."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from c.programs import BUILD, HERE, Case, build, cases, run

pytestmark = pytest.mark.c


@pytest.fixture(scope="module", autouse=True)
def _programs(request: pytest.FixtureRequest) -> None:
    """Every program of the tests that were asked for."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [call.params["case"] for call in calls if call and "case" in call.params]
    build({(case.program, case.variant) for case in asked if isinstance(case, Case)})


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.program}-{case.variant}-{case.name}",
            marks=() if case.variant == "plain" else pytest.mark.long,
        )
        for case in cases()
    ],
)
def test_c(case: Case) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # a tmpfs, as on the host
        run(case, Path(folder))


def test_the_harness_fails_a_test_that_it_does_not_know() -> None:
    build({("ledger_accounts", "plain")})
    program = BUILD / "plain" / "ledger_accounts"
    done = subprocess.run(
        [str(program), "no_such_test"], cwd=HERE, check=False, capture_output=True
    )
    assert done.returncode == 2
