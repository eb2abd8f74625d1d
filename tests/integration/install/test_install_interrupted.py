"""``cgpu install`` that is cut short, meets a full disk or another install (CLI-4)."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_cli.commands import install as install_command
from cgpu_env import CgpuError
from cgpu_install.engines import ENGINES, select_engines
from cgpu_install.journal import Journal
from cgpu_install.machine import BIN_DIR, Machine
from cgpu_install.plan import plan_install, plan_uninstall
from lab.worlds.install import CONTAINERD, DOCKER, NVIDIA, cgpu, make_machine, put, tree

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return make_machine(tmp_path)


@pytest.mark.parametrize(
    ("path", "case", "sentence"),
    [
        (DOCKER, "docker/comment.json", "/etc/docker/daemon.json: not JSON"),
        (CONTAINERD, "containerd/version-1.toml", "/etc/containerd/config.toml: version = 1: "),
        (NVIDIA, "nvidia/broken.toml", "/etc/nvidia-container-runtime/config.toml: not TOML"),
    ],
)
def test_one_file_that_is_not_understood_keeps_all_as_they_are(
    machine: Path, path: str, case: str, sentence: str
) -> None:
    put(machine, path, case)
    before = tree(machine)
    done = cgpu("install", "--root", machine, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cgpu: {sentence}")
    assert len(done.stderr.splitlines()) == 1
    assert tree(machine) == before


@pytest.mark.parametrize("step", range(1, 7))
def test_an_install_that_is_cut_short_can_be_undone_and_done_again(
    machine: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any write of a file: what was written down before it is what was there."""
    before = tree(machine)
    place = Machine(str(machine))
    writes = 0
    whole = Journal._replace_content  # noqa: SLF001 (where a machine would stop)

    def put_some(journal: Journal, path: str, what: object) -> None:
        nonlocal writes
        writes += 1
        if writes == step:
            raise KeyboardInterrupt
        whole(journal, path, what)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "_replace_content", put_some)
    journal = Journal(place)
    plan = plan_install(place, select_engines(["docker", "nvidia"]), journal, forgiving=False)
    with pytest.raises(KeyboardInterrupt):
        journal.install(plan.changes, BIN_DIR)
    monkeypatch.undo()
    if step % 2:  # either way
        cgpu("install", "--root", machine, "docker", "nvidia")
    journal = Journal(place)
    names = [*(engine.name for engine in ENGINES), "programs"]
    journal.uninstall(plan_uninstall(place, ENGINES, journal).changes, names)
    left = tree(machine)
    assert {name: left[name] for name in before} == before
    assert {name for name in left if name not in before} <= {"var", "var/lib"}


_FULL = """
import json, subprocess, sys
from pathlib import Path
root, *command = sys.argv[1:]
from lab.worlds.install import tree
folder = Path(root, "etc/nvidia-container-runtime")
text = (folder / "config.toml").read_bytes()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
(folder / "config.toml").write_bytes(text)
filler = (folder / "filler").open("wb", buffering=0)
try:
    while filler.write(bytes(4096)):
        pass
except OSError:
    filler.close()
before = tree(Path(root))
done = subprocess.run(command, capture_output=True, text=True)
print(json.dumps([done.returncode, done.stderr, tree(Path(root)) == before]))
"""


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_full_disk_is_named_and_nothing_is_changed(machine: Path, command: str) -> None:
    """The tool kit's configuration is on a disk of its own, the last that is written."""
    (machine / "var/lib").mkdir(parents=True)
    if command == "uninstall":
        cgpu("install", "--root", machine)
    words = [sys.executable, "-m", "cgpu_cli.main", command, "--root", str(machine)]
    script = [
        "unshare",
        "--mount",
        sys.executable,
        "-c",
        _FULL,
        str(machine),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*script, *words], capture_output=True, text=True, env=environment, check=True
    )
    sentence = f"cgpu: /{NVIDIA}: No space left on device; nothing was changed\n"
    assert json.loads(done.stdout) == [2, sentence, True]


def test_of_two_installs_at_once_the_later_one_forgets_nothing(machine: Path) -> None:
    cgpu("install", "--root", machine, "podman")  # the programs are there
    place = Machine(str(machine))
    late = Journal(place)
    changes = plan_install(place, select_engines(["docker"]), late, forgiving=False).changes
    cgpu("install", "--root", machine, "nvidia")
    with pytest.raises(CgpuError, match=r"install\.json: changed meanwhile: run this again"):
        late.install(changes, BIN_DIR)
    assert Journal(place).list_engines() == {"podman", "nvidia", "programs"}


def test_a_user_who_locks_the_folder_stops_no_install(machine: Path) -> None:
    """REL-8: every user can open it."""
    cgpu("install", "--root", machine, "podman")
    folder = os.open(machine / "var/lib/cgpu", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    cgpu("install", "--root", machine, "nvidia")
    os.close(folder)
    assert Journal(Machine(str(machine))).list_engines() == {"podman", "nvidia", "programs"}
    assert not (machine / "var/lib/cgpu.lock").exists()


def test_what_is_written_is_on_the_disk_before_the_next_step(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power may fail: the backup is safe first, then the journal, then the change."""
    steps: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        steps.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        fsync(fd)

    def noted_rename(source: str, target: str) -> None:
        steps.append(("rename", target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    place = Machine(str(machine))
    journal = Journal(place)
    plan = plan_install(place, select_engines(["docker"]), journal, forgiving=False)
    journal.install(plan.changes, BIN_DIR)
    files = [path for what, path in steps if what == "rename" and Path(path).is_file()]
    for path in (f"{machine}{name}" for name in ("/var/lib/cgpu/install.json", f"/{DOCKER}")):
        assert path in files
    for path in (each for each in files if not Path(each).is_symlink()):
        assert ("sync", f"{path}.new") == steps[steps.index(("rename", path)) - 1]
        assert ("sync", str(Path(path).parent)) == steps[steps.index(("rename", path)) + 1]


def test_a_command_that_fails_keeps_no_other_from_running(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = "false: exit status 1; /none now: No such file or directory"
    with pytest.raises(CgpuError, match=output):
        install_command._run_commands(["false", "/none now", "echo ran"])  # noqa: SLF001
    assert "ran\n" in capfd.readouterr().out
