"""What ``cgpu doctor`` says to root of files that are closed to users (CLI-4)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import users
from cgpu_doctor.finding import Ground
from cgpu_env import CgpuError
from cgpu_install.machine import Machine
from cgpu_node.facts import driver, node
from cgpu_node.settings.config import Config
from lab.machine import folders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def machine() -> Iterator[Path]:
    """Folders that every user can read."""
    folder = folders.make("cgpu-doctor-")
    for name in ("home", "etc/cgpu", "opt/cgpu/bin", "driver"):
        (folder / name).mkdir(parents=True)
    for file in ("home/python", "etc/cgpu/config.toml", "opt/cgpu/module.py"):
        (folder / file).touch()
    for name in driver.PROXIED:
        (folder / "driver" / name).touch()
    yield folder
    folders.remove(folder)


def closed(machine: Path) -> dict[str, str]:
    """What is closed there, and what mends it."""
    found = users.check_access(Ground(Machine(str(machine)), str(machine), str(machine / "driver")))
    wrong = {each.value: each.mend for each in found if each.level == "warning"}
    return {path: mend for path, mend in wrong.items() if path.startswith(str(machine))}


def test_a_python_below_roots_home_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = machine / "opt/cgpu/bin/python"
    link.symlink_to(machine / "home/python")
    monkeypatch.setattr(sys, "executable", str(link))
    assert closed(machine) == {}
    (machine / "home").chmod(0o700)
    assert closed(machine) == {str(machine / "home"): users._ELSEWHERE}  # noqa: SLF001


@pytest.mark.parametrize(("path", "mode"), [("opt/cgpu", 0o700), ("opt/cgpu/module.py", 0o600)])
def test_an_installation_of_a_closed_umask_is_named(
    machine: Path, monkeypatch: pytest.MonkeyPatch, path: str, mode: int
) -> None:
    module = ModuleType("cgpu_closed")
    module.__file__ = str(machine / "opt/cgpu/module.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    own = str(machine / "opt/cgpu")
    monkeypatch.setattr(users.installation, "own_environment", lambda: own)
    assert closed(machine) == {}
    (machine / path).chmod(mode)
    assert closed(machine) == {str(machine / path): f"chmod -R a+rX {own}"}


@pytest.mark.parametrize("path", ["etc/cgpu", "driver"])
def test_a_closed_configuration_or_driver_is_named(machine: Path, path: str) -> None:
    (machine / path).chmod(0o700)
    assert closed(machine) == {str(machine / path): f"chmod a+rX {machine / path}"}


@pytest.mark.parametrize(("user", "whom"), [(0, "other users"), (7, "you")])
def test_a_user_is_sure_of_their_own_access_alone(
    machine: Path, monkeypatch: pytest.MonkeyPatch, user: int, whom: str
) -> None:
    monkeypatch.setattr(users.os, "geteuid", lambda: user)
    monkeypatch.setattr(users, "_list_needed", lambda _: ())
    [found] = users.check_access(Ground(Machine(str(machine)), str(machine), None))
    assert found.what == f"nothing that cgpu-run needs is closed to {whom}"


def test_whoever_cannot_read_the_configuration_learns_that_it_may_name_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> str:
        raise CgpuError("no NVIDIA driver found on this machine", hint="name it")

    monkeypatch.setattr(driver, "find_driver_dir", missing)
    for is_closed, hint in ((False, "name it"), (True, "as root: chmod a+rx /etc/cgpu")):
        monkeypatch.setattr(node, "is_closed", lambda is_closed=is_closed: is_closed)
        with pytest.raises(CgpuError, match="no NVIDIA driver found") as refused:
            node.driver_folder(None, Config())
        assert refused.value.hint == hint
        assert ("not readable by you" in str(refused.value)) == is_closed


@pytest.fixture
def scripts(machine: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Where ``cgpu-run`` is, below a folder of the parameter's name."""
    folder = machine / "opt" / str(request.param) / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setattr(users.sysconfig, "get_path", lambda _: str(folder))
    monkeypatch.setattr(users, "_list_needed", lambda _: ())
    return folder


def errors(machine: Path) -> list[str]:
    found = users.check_access(Ground(Machine(str(machine)), str(machine), None))
    return [each.what for each in found if each.level == "error"]


@pytest.mark.parametrize(
    ("scripts", "is_named"), [("cgpu", False), ("my cgpu", True)], indirect=["scripts"]
)
def test_a_cgpu_run_that_cannot_be_started_is_named(
    machine: Path, scripts: Path, *, is_named: bool
) -> None:
    """Pip writes the interpreter's path into its first line, of which a space is the end."""
    (scripts / "cgpu-run").write_text(f"#!{scripts}/python\n")
    first = f"{machine}/opt/my"
    what = (
        f"{scripts}/cgpu-run cannot be started: its first line names {first}, which is no program"
    )
    assert errors(machine) == [what] * is_named


@pytest.mark.parametrize("scripts", ["cgpu"], indirect=True)
@pytest.mark.parametrize("content", [b"\x7fELF\2\1\1\0\0\0", b"exec python -m x\n", b""])
def test_a_cgpu_run_that_pip_has_not_made_is_no_fault(
    machine: Path, scripts: Path, content: bytes
) -> None:
    """As a wrapper of Nix, which is a binary."""
    (scripts / "cgpu-run").write_bytes(content)
    assert errors(machine) == []
