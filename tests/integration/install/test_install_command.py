"""``cgpu install`` and ``uninstall`` on trees of files, given back to the byte (CLI-4)."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_cli.commands import install as install_command
from cgpu_install import dockerd
from cgpu_install.engines import read_shipped, select_engines
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import InstallPlan
from lab.machine.node import BIN, ROOT
from lab.worlds.install import CONTAINERD, DOCKER, GOLDEN, NVIDIA, cgpu, make_machine, put, tree

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return make_machine(tmp_path)


def test_nobody_else_reads_a_backup(machine: Path) -> None:
    """CLI-4: an engine's configuration may hold what opens a registry."""
    cgpu("install", "--root", machine)
    backups = [path for path in (machine / "var/lib/cgpu/backup").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in backups} == {0o600}


@pytest.mark.parametrize("umask", [0, 0o077])
def test_new_folders_are_as_a_package_would_make_them(machine: Path, umask: int) -> None:
    """CLI-4: whatever root's umask."""
    before = os.umask(umask)
    try:
        cgpu("install", "--root", machine)
    finally:
        os.umask(before)
    folders = [machine / path for path in ("var", "var/lib", "var/lib/cgpu")]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o755] * 3


def test_every_engine_found_is_installed_once_and_given_back_to_the_byte(machine: Path) -> None:
    before = tree(machine)
    output = cgpu("install", "--root", machine).stdout
    assert {line.partition(":")[0] for line in output.splitlines()} == {
        "/usr/bin/cgpu-runtime",
        "/usr/bin/cgpu-hook",
        "/usr/bin/cgpud",
        "/etc/docker/daemon.json",
        "/etc/containerd/config.toml",
        "/etc/containers/containers.conf.d/cgpu.conf",
        "/etc/nvidia-container-runtime/config.toml",
        "/etc/systemd/system/cgpud.service",
        "/etc/systemd/system/run-cgpu.mount",
        "/etc/systemd/system/multi-user.target.wants/cgpud.service",
        "/etc/systemd/system/multi-user.target.wants/run-cgpu.mount",
    }
    installed = tree(machine)
    assert (machine / "usr/bin/cgpu-runtime").readlink() == BIN / "cgpu-runtime"
    golden = (GOLDEN / "docker/nvidia-ctk.json.after").read_bytes()
    assert installed[DOCKER] == (*before[DOCKER][:2], golden)
    assert installed[CONTAINERD][:2] == before[CONTAINERD][:2]
    backup = machine / "var/lib/cgpu/backup" / DOCKER
    assert backup.read_bytes() == before[DOCKER][2]
    assert cgpu("install", "--root", machine).stdout == "nothing to change\n"
    assert tree(machine) == installed
    cgpu("uninstall", "--root", machine)
    left = tree(machine)
    assert left.pop("var")
    assert left.pop("var/lib")
    assert left == before
    assert cgpu("uninstall", "--root", machine).stdout == "nothing to change\n"


def test_a_dry_run_shows_what_would_change_and_changes_nothing(machine: Path) -> None:
    before = tree(machine)
    shown = cgpu("install", "--root", machine, "--dry-run").stdout
    assert tree(machine) == before
    work = machine / "patched.json"
    shutil.copyfile(machine / DOCKER, work)
    start = shown.index("--- /etc/docker/daemon.json")
    part = shown[start : shown.index("\n---", start) + 1]
    subprocess.run(["patch", work], input=part, text=True, check=True, stdout=subprocess.DEVNULL)
    assert work.read_bytes() == (GOLDEN / "docker/nvidia-ctk.json.after").read_bytes()
    work.unlink()
    cgpu("install", "--root", machine)
    assert "+++ /dev/null" in cgpu("uninstall", "--root", machine, "--dry-run").stdout
    again = cgpu("install", "--root", machine, "--dry-run")
    assert (again.stdout, again.stderr) == ("", "nothing to change\n")


def test_containerd_without_cri_is_left_alone_unless_it_is_named(machine: Path) -> None:
    put(machine, CONTAINERD, "containerd/docker-ce.toml")
    output = cgpu("install", "--root", machine).stdout
    assert "note: containerd: left alone: " in output
    done = cgpu("install", "--root", machine, "containerd", check=False)
    assert (done.returncode, "switches CRI off" in done.stderr) == (2, True)


def test_what_others_write_afterwards_outlives_an_uninstall(machine: Path) -> None:
    cgpu("install", "--root", machine)
    text = (machine / DOCKER).read_text()
    (machine / DOCKER).write_text(text.replace('"nvidia",', '"runc",'))
    with (machine / CONTAINERD).open("a") as file:
        file.write("[debug]\n  level = 'info' # mine\n")
    cgpu("uninstall", "--root", machine)
    golden = (GOLDEN / "docker/nvidia-ctk.json").read_text()
    assert (machine / DOCKER).read_text() == golden.replace('"nvidia",', '"runc",')
    left = (machine / CONTAINERD).read_text()
    assert "cgpu" not in left
    assert left.startswith((GOLDEN / "containerd/kubeadm-v2.toml").read_text())
    assert left.endswith("level = 'info' # mine\n")


def test_a_second_install_after_a_foreign_change_keeps_that_change_when_undone(
    machine: Path,
) -> None:
    cgpu("install", "--root", machine)
    changed = (machine / DOCKER).read_text().replace('"nvidia",', '"runc",')
    (machine / DOCKER).write_text(changed)
    cgpu("install", "--root", machine, "--bin-dir", "/opt/bin")
    assert "/opt/bin/cgpu-runtime" in (machine / DOCKER).read_text()
    cgpu("uninstall", "--root", machine)
    golden = (GOLDEN / "docker/nvidia-ctk.json").read_text()
    assert (machine / DOCKER).read_text() == golden.replace('"nvidia",', '"runc",')


def test_a_second_install_elsewhere_still_comes_back_to_the_first_bytes(machine: Path) -> None:
    before = tree(machine)
    cgpu("install", "--root", machine)
    cgpu("install", "--root", machine, "--bin-dir", "/usr/lib")
    assert "/usr/lib/cgpu-runtime" in (machine / CONTAINERD).read_text()
    cgpu("uninstall", "--root", machine)
    left = tree(machine)
    assert {name: left[name] for name in before} == before
    assert {name for name in left if name not in before} == {"var", "var/lib"}


def test_an_older_install_made_by_hand_comes_back_to_the_byte(tmp_path: Path) -> None:
    put(tmp_path, DOCKER, "docker/older-path.json")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/cgpu-runtime").symlink_to("/opt/cgpu-0.1/bin/cgpu-runtime")
    before = tree(tmp_path)
    cgpu("install", "--root", tmp_path, "docker")
    assert (tmp_path / "usr/bin/cgpu-runtime").readlink() == BIN / "cgpu-runtime"
    cgpu("uninstall", "--root", tmp_path)
    assert {name: tree(tmp_path)[name] for name in before} == before


def test_an_install_made_by_hand_is_taken_out_too(tmp_path: Path) -> None:
    put(tmp_path, DOCKER, "docker/installed.json")
    cgpu("uninstall", "--root", tmp_path)
    assert json.loads((tmp_path / DOCKER).read_text()) == {}


def test_programs_stay_until_the_last_engine_goes(machine: Path) -> None:
    cgpu("install", "--root", machine, "docker", "podman")
    cgpu("uninstall", "--root", machine, "docker")
    assert (machine / "usr/bin/cgpu-runtime").is_symlink()
    cgpu("uninstall", "--root", machine, "podman")
    assert not (machine / "usr/bin/cgpu-runtime").is_symlink()
    assert not (machine / "var/lib/cgpu").exists()


def test_another_program_of_that_name_is_not_replaced(machine: Path) -> None:
    (machine / "usr/bin/cgpu-runtime").write_text("#!/bin/sh\n")
    before = tree(machine)
    done = cgpu("install", "--root", machine, check=False)
    assert (done.returncode, "/usr/bin/cgpu-runtime: expected " in done.stderr) == (2, True)
    assert tree(machine) == before


def test_a_configuration_that_is_a_link_is_left_to_its_owner(machine: Path) -> None:
    (machine / DOCKER).unlink()
    (machine / DOCKER).symlink_to("/nix/store/daemon.json")
    done = cgpu("install", "--root", machine, check=False)
    assert (done.returncode, "not a link, which another tool owns" in done.stderr) == (2, True)


def test_what_several_engines_need_is_run_once() -> None:
    engines = select_engines(["systemd", "metrics", "crio", "crio-hooks"])
    commands = install_command._list_commands(engines)  # noqa: SLF001
    assert sorted(commands) == sorted({then for engine in engines for then in engine.then})
    assert commands[0] == "systemctl daemon-reload"


def test_an_engine_is_remembered_until_it_has_read_its_file(machine: Path) -> None:
    """Also where nothing is changed meanwhile, or by a release that knows nothing of it."""
    cgpu("install", "--root", machine, "docker", "podman")
    place = Machine(str(machine))
    journal = Journal(place)
    assert journal.unread == {"docker", "podman", "programs"}
    journal.mark_read(["podman", "programs"])
    journal.mark_read(["docker"])
    journal.mark_read(["docker"])
    assert Journal(place).unread == set()
    cgpu("install", "--root", machine, "nvidia")
    assert Journal(place).unread == {"nvidia"}
    cgpu("uninstall", "--root", machine, "nvidia")
    assert Journal(place).unread == set()
    path = machine / "var/lib/cgpu/install.json"
    data = json.loads(path.read_text())
    del data["unread"]
    path.write_text(json.dumps(data))
    assert Journal(place).unread == set()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["dokcer"], "dokcer: expected one of docker, "),
        (["dokcer"], ": did you mean docker?"),
        (["podman-hooks", "crio-hooks"], "expected one, for they share a directory"),
        (["--bin-dir", "bin"], "--bin-dir bin: expected an absolute path"),
        (["--bin-dir", "/opt/my bin"], "--bin-dir /opt/my bin: expected no ' ' in it, which syst"),
        (["--now"], "--now: the engines of another root do not run here"),
        ([], "no container engine found"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = cgpu("install", "--root", tmp_path, *words, check=False)
    assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr


def test_containerd_is_told_in_the_import_that_decides(machine: Path) -> None:
    """Before 2.1 the last file with a section of the plugin replaces all others'."""
    main = machine / CONTAINERD
    main.write_text('version = 3\nimports = ["conf.d/*.toml", "/etc/other.toml"]\n')
    folder = main.parent / "conf.d"
    folder.mkdir()
    (folder / "10-log.toml").write_text('version = 3\n[debug]\nlevel = "info"\n')
    plugin = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "runc"\n'
    (folder / "99-nvidia.toml").write_text(f"version = 3\n{plugin}")
    output = cgpu("install", "--root", machine, "containerd").stdout
    assert "/etc/containerd/conf.d/99-nvidia.toml: changed" in output
    assert "config.toml" not in output


def test_containerd_is_told_in_what_an_import_imports(machine: Path) -> None:
    """Each imports the next, and the last one the first."""
    main = machine / CONTAINERD
    section = '[plugins."io.containerd.cri.v1.runtime"]\n'
    for name, imported in (("config", "a"), ("a", "b"), ("b", "config")):
        text = f'version = 3\nimports = ["{imported}.toml"]\n{section}'
        main.with_name(f"{name}.toml").write_text(text)
    output = cgpu("install", "--root", machine, "containerd").stdout
    assert "/etc/containerd/b.toml: changed" in output


def test_a_folder_that_containerd_does_not_import_is_not_written_to(machine: Path) -> None:
    """Before 2.2, and later where the file was there before: the imports it has are all."""
    folder = (machine / CONTAINERD).parent / "conf.d"
    folder.mkdir()
    drop_in = folder / "99-nvidia.toml"
    drop_in.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n')
    output = cgpu("install", "--root", machine, "containerd").stdout
    assert "/etc/containerd/config.toml: changed" in output
    assert "conf.d" not in output


def test_state_gets_its_file_system_at_once_if_there_is_none_yet(tmp_path: Path) -> None:
    """REL-5: mounted over state, it would hide the shares of containers that run."""
    [systemd] = select_engines(["systemd"])
    assert systemd.then[-1] == "systemctl start run-cgpu.mount cgpud.service"
    [condition] = re.findall(r"^Condition.*$", read_shipped("run-cgpu.mount"), re.MULTILINE)
    (tmp_path / "used" / "containers").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name, mounted in (("missing", True), ("empty", True), ("used", False)):
        words = [
            "systemd-analyze",
            "condition",
            condition.replace("/run/cgpu", f"{tmp_path}/{name}"),
        ]
        done = subprocess.run(words, capture_output=True, check=False)
        assert (done.returncode == 0) == mounted, name


@pytest.mark.parametrize("booted", [True, False])
def test_systemctl_is_run_only_where_systemd_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, booted: bool
) -> None:
    monkeypatch.setattr(Machine, "has", lambda *_: booted)
    monkeypatch.setattr(
        install_command, "_run_commands", lambda given: sys.stdout.write(str(given))
    )
    engines = select_engines(["docker", "crio"])
    given = argparse.Namespace(root="", now=True)
    install_command._print_report(InstallPlan([], []), engines, given)  # noqa: SLF001
    output = capfd.readouterr().out
    assert ("systemctl try-restart crio" in output) is booted
    by_hand = f"systemd does not run here; to be done by you: {dockerd.SIGNAL}, restart crio"
    assert (by_hand in output) is not booted


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("systemd", ": the first container starts cgpud"),
        ("metrics", ", so cgpud-metrics.socket serves no metrics: name an address, [server] me"),
    ],
)
def test_units_that_no_systemd_starts_have_a_note(
    monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.setattr(Machine, "has", lambda *_: False)
    [engine] = select_engines([name])
    [note] = engine.notes(Machine())
    assert note.startswith(f"systemd does not run here{sentence}")
    assert list(engine.notes(Machine("/image"))) == []
    monkeypatch.setattr(Machine, "has", lambda *_: True)
    assert list(engine.notes(Machine())) == []


def test_a_unit_is_wanted_by_what_it_says_itself(tmp_path: Path) -> None:
    """The links are those that `systemctl enable` would make."""
    cgpu("install", "--root", tmp_path, "systemd", "metrics")
    units = tmp_path / "etc/systemd/system"
    found = {path.name: path.parent.name for path in units.glob("*.wants/*")}
    wanted = {
        path.name: f"{path.read_text().partition('WantedBy=')[2].strip()}.wants"
        for path in units.glob("*.*")
        if path.is_file()
    }
    assert found == wanted
    assert len(found) == 3


def test_the_files_in_deploy_say_what_is_written(tmp_path: Path) -> None:
    """They are for reference, so they must not tell anything else."""
    (tmp_path / "etc/containerd").mkdir(parents=True)
    for engine, path in (("docker", DOCKER), ("nvidia", NVIDIA), ("containerd", CONTAINERD)):
        cgpu("install", "--root", tmp_path, engine)
        written = (tmp_path / path).read_text()
        name = {"docker": "docker-daemon.json", "nvidia": "nvidia-container-runtime.toml"}
        snippet = (ROOT / "deploy" / name.get(engine, "containerd-v2.toml")).read_text()
        if engine == "containerd":  # a snippet cannot know the entry of runc
            snippet = "".join(
                line.strip() + "\n" for line in snippet.splitlines() if "SystemdCgroup" not in line
            )
        assert written == snippet
