"""What ``cgpu doctor`` says of engines, of dockerds that run, and without systemd (CLI-4)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import wiring
from cgpu_doctor.finding import Finding, Ground
from cgpu_install import dockerd, running
from cgpu_install.machine import BOOTED, Machine
from lab.machine.wired import TARGET, findings, install, made_below, target, write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

USER = 1000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(TARGET, target)
    return made_below(tmp_path / "machine")


def wrong(found: list[Finding]) -> list[tuple[str, str, str]]:
    """Level, value and mending of what is not in order."""
    return [(f.level, f.value, f.mend) for f in found if f.level in ("warning", "error")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", ("warning", dockerd.FILE, "cgpu install docker")),
        ("{,}", ("error", "docker", "mend it, then: cgpu install docker")),
    ],
)
def test_an_engine_that_does_not_know_cgpu_is_named(
    machine: Machine, text: str, expected: tuple[str, str, str]
) -> None:
    write(machine, dockerd.FILE, text)
    assert wrong(findings(machine)) == [expected]


def test_an_engine_without_its_program_is_an_error(machine: Machine) -> None:
    settings = {"runtimes": {"cgpu": {"path": "/usr/bin/cgpu-runtime"}}}
    write(machine, dockerd.FILE, json.dumps(settings))
    assert wrong(findings(machine)) == [("error", "/usr/bin/cgpu-runtime", "cgpu install docker")]
    for name in ("cgpu-runtime", "cgpu-hook"):
        Path(machine.resolve_path(f"/usr/bin/{name}")).symlink_to(target(name))
    assert wrong(findings(machine)) == []


def test_without_systemd_no_unit_is_asked_for(machine: Machine) -> None:
    """Also where its units are there, as in an image."""
    write(machine, "/lib/systemd/systemd", "")
    (asked,) = findings(machine)
    assert (asked.level, asked.mend) == ("note", "cgpu install systemd")
    Path(machine.resolve_path(BOOTED)).rmdir()
    for _ in range(2):
        (output,) = findings(machine)
        assert (output.level, output.mend) == ("ok", "")
        assert output.what == (
            "systemd does not run here: the first container starts cgpud,"
            f" which logs to {machine.resolve_path('/run/cgpu')}/cgpud.log"
        )
        install(machine, "systemd")


class Processes:
    """The dockerds that run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def start(self, *words: str, uid: int = 0, name: str = "dockerd") -> int:
        """One with a command line; returns its pid."""
        pid = 100 + len(list(self._folder.iterdir()))
        place = self._folder / str(pid)
        place.mkdir()
        (place / "cmdline").write_text("".join(f"{word}\0" for word in (name, *words)))
        os.chown(place, uid, uid)
        return pid

    def folders(self, name: str) -> Iterator[str]:
        """As ``running.find_processes`` has them."""
        assert name in {"dockerd", "containerd"}
        return map(str, sorted(self._folder.iterdir()))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes(tmp_path / "proc")
    monkeypatch.setattr(running, "find_processes", made.folders)
    monkeypatch.setattr(dockerd, "_STARTS", ())
    monkeypatch.setattr(dockerd, "query_info", lambda _: 'runc {"runc":{}}')
    return made


def unread() -> list[tuple[str, str, str]]:
    """The finding where docker's file names cgpu, and dockerd does not know it."""
    ground = Ground(Machine(), "/run/cgpu", None)
    found = wiring.check_dockerd(ground, has_entry=True, is_default=False)
    return [(f.level, f.what, f.mend) for f in found]


def test_a_dockerd_that_reads_another_file_is_told_from_one_that_has_not_read_ours(
    processes: Processes,
) -> None:
    processes.start("--config-file", dockerd.FILE, "-H", "fd://")
    processes.start("--config-file=/home/me/daemon.json", uid=USER)
    [(level, what, _)] = unread()
    since = "dockerd has not read /etc/docker/daemon.json since it was changed"
    assert (level, what) == ("error", since)
    processes.start("--config-file=/opt/daemon.json")
    [(level, what, mend)] = unread()
    assert level == "error"
    assert what.endswith(
        "/cmdline: --config-file=/opt/daemon.json on dockerd's command line:"
        " it does not read /etc/docker/daemon.json"
    )
    assert mend == 'add to that file: "runtimes": {"cgpu": {"path": "/usr/bin/cgpu-runtime"}}'


@pytest.mark.parametrize("option", [("-c", "{}"), ("--config", "{}"), ("--config={}",)])
def test_a_containerd_that_reads_another_file_is_named(
    processes: Processes, tmp_path: Path, option: tuple[str, ...]
) -> None:
    file = tmp_path / "config.toml"
    words = [word.format(file) for word in option]
    file.write_text("version = 2\n")
    processes.start(name="containerd")
    processes.start("-c", "/etc/containerd/config.toml", name="/usr/bin/containerd")
    processes.start("--config", "/run/docker/containerd/containerd.toml", name="containerd")
    processes.start("--config", "/mnt/exec/containerd/containerd.toml", name="containerd")
    processes.start(*words, name="containerd", uid=USER)
    processes.start("-c", str(file), name="containerd-shim")
    assert list(wiring.check_containerds(Machine())) == []
    pid = processes.start(*words, name="/usr/bin/containerd")
    [found] = wiring.check_containerds(Machine())
    assert (found.level, found.value) == ("warning", str(file))
    assert found.what == f"containerd (pid {pid}) reads {file}, which names no runtime of cgpu"
    assert found.mend.startswith(f"add the runtime cgpu to {file}, as cgpu install containerd ")
    file.write_text('BinaryName = "/usr/bin/cgpu-runtime"\n')
    assert list(wiring.check_containerds(Machine())) == []
    file.write_text('version = 3\nimports = ["config.toml.d/*.toml"]\n')
    assert len(list(wiring.check_containerds(Machine()))) == 1
    drop_in = tmp_path / "config.toml.d" / "cgpu.toml"
    drop_in.parent.mkdir()
    drop_in.write_text('BinaryName = "/usr/bin/cgpu-runtime"\n')
    assert list(wiring.check_containerds(Machine())) == []


def test_a_containerd_names_its_file_by_its_own_folder(
    processes: Processes, tmp_path: Path
) -> None:
    pid = processes.start("-c", "other.toml", name="containerd")
    (tmp_path / "other.toml").write_text("version = 2\n")
    (tmp_path / "proc" / str(pid) / "cwd").symlink_to(tmp_path)
    [found] = wiring.check_containerds(Machine())
    assert found.value == str(tmp_path / "other.toml")


def test_the_command_line_of_a_users_own_dockerd_is_not_the_machines(processes: Processes) -> None:
    """It reads a file in the user's home, which cgpu leaves alone."""
    pid = processes.start("--default-runtime=crun", uid=USER)
    dockerd.check_default(Machine())
    [found] = wiring.check_rootless()
    assert (found.level, found.value) == ("note", str(pid))
    assert f"(pid {pid}) is user {USER}'s own (rootless)" in found.what


@pytest.mark.parametrize("is_booted", [True, False])
@pytest.mark.parametrize(
    ("known", "is_default", "mends"),
    [
        ("runc {}", False, (dockerd.RELOAD, dockerd.SIGNAL)),
        ('runc {"cgpu":{}}', True, (dockerd.RELOAD, dockerd.SIGNAL)),
        (
            'cgpu {"cgpu":{}}',
            False,
            (f"{dockerd.RESTART} ({dockerd.ENDS})", f"restart dockerd ({dockerd.ENDS})"),
        ),
    ],
)
def test_what_makes_dockerd_read_its_file_is_told_for_this_machine(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    known: str,
    mends: tuple[str, str],
    *,
    is_default: bool,
    is_booted: bool,
) -> None:
    monkeypatch.setattr(dockerd, "query_info", lambda _: known)
    ground = Ground(machine, machine.resolve_path("/run/cgpu"), None)
    if not is_booted:
        Path(machine.resolve_path(BOOTED)).rmdir()
    found = wiring.check_dockerd(ground, has_entry=True, is_default=is_default)
    assert [(f.level, f.mend) for f in found] == [("error", mends[not is_booted])]
