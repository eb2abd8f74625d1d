"""What ``cgpu doctor`` says to a user of what they may not read (CLI-4)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import checks, releases, state, wiring
from cgpu_doctor.finding import Finding, Ground
from cgpu_env.version import VERSION
from cgpu_install.engines import select_engines
from cgpu_install.machine import Machine
from cgpu_upgrade.environment import Environment
from lab.machine.nobody import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A machine whose folders are closed to the user that we are."""
    folder = tmp_path / "run/cgpu"
    folder.mkdir(parents=True)
    for path in ("etc/cgpu", "etc/docker", "usr/bin"):
        (tmp_path / path).mkdir(parents=True)
    tmp_path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    yield Ground(Machine(str(tmp_path)), str(folder), None)
    os.seteuid(user)
    tmp_path.chmod(0o700)


def test_a_configuration_that_cannot_be_read_is_not_said_to_be_absent(ground: Ground) -> None:
    [found] = wiring.check_configuration(ground)
    assert (found.level, found.mend) == ("warning", "chmod a+rx /etc/cgpu")
    assert "not readable by you" in found.what


def test_a_runtime_that_cannot_be_seen_is_not_said_to_be_absent(ground: Ground) -> None:
    [found] = wiring.check_runtime(ground)
    assert (found.level, found.mend) == ("note", "as root: cgpu doctor")
    assert found.what == "/usr/bin/cgpu-runtime is not readable by you"


def test_an_engines_file_that_cannot_be_read_is_no_fault(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "detect_engines", lambda _: [select_engines(["docker"])[0]])
    monkeypatch.setattr(wiring, "Journal", lambda _: None)
    [found] = wiring.check_engines(ground)
    assert (found.level, found.mend) == ("note", "as root: cgpu doctor")
    assert found.what == "/etc/docker/daemon.json: Permission denied"


def test_a_journal_that_cannot_be_read_is_no_fault(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "detect_engines", lambda _: [select_engines(["docker"])[0]])
    monkeypatch.setattr(checks, "CHECKS", {"engines": wiring.check_engines})
    [found] = checks.run_checks(ground)
    assert (found.level, found.mend) == ("note", "as root: cgpu doctor")
    assert found.what == "/var/lib/cgpu/install.json: Permission denied"


@pytest.mark.parametrize(
    ("mend", "shown"),
    [
        ("cgpu install docker", "as root: cgpu install docker"),
        ("as root: cgpu doctor", "as root: cgpu doctor"),
        ("cgpu doctor --state-dir /x", "cgpu doctor --state-dir /x"),
    ],
)
def test_a_user_is_told_what_only_root_can_do(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, mend: str, shown: str
) -> None:
    monkeypatch.setattr(checks, "CHECKS", {"x": lambda _: [Finding("warning", "x", "", mend)]})
    assert [found.mend for found in checks.run_checks(ground)] == [shown]
    os.seteuid(os.getuid())
    if os.geteuid() == 0:
        assert [found.mend for found in checks.run_checks(ground)] == [mend]


def test_a_state_directory_that_cannot_be_read_is_said_to_be_so(ground: Ground) -> None:
    for check in (state.check_directory, state.check_leftovers, state.check_shares):
        assert ground.report_closed() in list(check(ground))
    [found] = state.check_server(ground)
    assert found.level == "note"
    assert "only root can see" in found.what


def test_an_environment_that_containers_may_use_is_not_said_to_be_unused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opt = tmp_path / "opt"
    for number in ("0.0.9", VERSION):
        packages = opt / f"cgpu-{number}/lib/python3.11/site-packages/cgpu_env"
        packages.mkdir(parents=True)
        (packages / "version.py").write_text(f'VERSION = "{number}"\n')
        Environment(str(opt / f"cgpu-{number}")).mark_removable()
    (opt / "cgpu").symlink_to(f"cgpu-{VERSION}")
    monkeypatch.setattr(releases.installation, "own_environment", lambda: str(opt / "cgpu"))
    monkeypatch.setattr(Ground, "is_closed", property(lambda _: True))
    [_, found] = releases.check_releases(Ground(Machine(), str(tmp_path), None))
    assert (found.level, found.value) == ("note", f"{opt}/cgpu-0.0.9")
    assert found.mend == "as root: cgpu doctor"
