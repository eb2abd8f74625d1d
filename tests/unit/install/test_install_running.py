"""Which containers an engine ends by our runtime, found without asking any engine (CLI-4)."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from cgpu_cli.commands import install
from cgpu_env import CgpuError
from cgpu_install import dockerd, running
from cgpu_install.journal import Journal
from lab.machine import wired

pytestmark = pytest.mark.unit

OURS, RUNC = "/usr/bin/cgpu-runtime", "runc"


class Machine:
    """A ``/proc`` with what keeps containers, and the bundles that it stands in."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.bundles = folder / "proc", folder / "bundles"
        (self.proc / "self").mkdir(parents=True)

    def process(self, comm: str, *words: str, root: str = "/") -> Path:
        folder = self.proc / str(len(list(self.proc.iterdir())))
        folder.mkdir()
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (folder / "root").symlink_to(root)
        return folder

    def monitor(self, id_: str, *words: str, root: str = "/") -> Path:
        """One with a container; returns the container's process."""
        pid_file = self.proc / id_
        place = str(pid_file) if root == "/" else f"/{id_}"
        own = self.process(
            "conmon", "conmon", "--api", "1", "-c", id_, "-p", place, *words, root=root
        )
        made = self.process("sh")
        (made / "status").write_text(f"Name:\tsh\nPPid:\t{own.name}\nUid:\t0\n")
        pid_file.write_text(made.name)
        return made

    def bundle(self, id_: str, **files: str) -> Path:
        folder = self.bundles / "ns" / id_
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        return folder

    def found(self) -> list[str]:
        return running.list_containers(str(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_shim_stands_for_all_containers_of_its_namespace(machine: Machine) -> None:
    """That of a pod keeps several, and stands in the bundle of the first."""
    pod = machine.bundle("pod", runtime=OURS)
    machine.bundle("plain", runtime=RUNC, options_json='{"binary_name":"runc"}')
    machine.bundle("main", runtime=OURS)
    machine.bundle("later", options_json=f'{{"binary_name":"{OURS}","root":"/run/x"}}')
    for _ in range(2):
        (machine.process("containerd-shim") / "cwd").symlink_to(pod)
    assert machine.found() == ["later", "main", "pod"]


@pytest.mark.parametrize("runtime", [RUNC, "", "/usr/bin/cgpu-runtime.old", "/x/my-cgpu-runtime"])
def test_those_of_other_runtimes_are_not_counted(machine: Machine, runtime: str) -> None:
    options = f'{{"binary_name":"{runtime}"}}'
    place = machine.bundle("plain", runtime=runtime, options_json=options)
    (machine.process("containerd-shim") / "cwd").symlink_to(place)
    machine.monitor("plain", "-r", runtime)
    machine.process("sleep", "sleep", "-c", "1", OURS)
    assert machine.found() == []


def test_a_monitor_names_its_container_and_its_runtime(machine: Machine) -> None:
    """podman's and CRI-O's, as both start it."""
    more = ["-b", "/var/lib/containers/c", "--exit-command-arg", "-c"]
    machine.monitor("one", "-r", OURS, *more)
    machine.monitor("two", f"--runtime={OURS}")
    assert machine.found() == ["one", "two"]


def test_a_monitor_whose_container_has_ended_counts_no_more(machine: Machine) -> None:
    """It waits for the server that was started with its container; the id is another one's."""
    left = machine.monitor("left", "-r", OURS)
    (left / "status").write_text("Name:\tother\nPPid:\t4711\n")
    (machine.monitor("removed", "-r", OURS).parent / "removed").unlink()
    assert machine.found() == []


def test_an_engine_in_a_root_of_its_own_is_not_this_machines(machine: Machine) -> None:
    place = machine.bundle("inner", runtime=OURS)
    (machine.process("containerd-shim", root=str(machine.proc)) / "cwd").symlink_to(place)
    machine.monitor("inner", "-r", OURS, root=str(machine.proc))
    assert machine.found() == []


def test_what_users_make_holds_up_nobody(machine: Machine) -> None:
    """A pipe that nobody writes to, and a name that is no text."""
    made = machine.monitor("slow", "-r", OURS)
    (made.parent / "slow").unlink()
    os.mkfifo(made.parent / "slow")
    place = machine.bundle("odd")
    os.mkfifo(place / "runtime")
    (machine.process("containerd-shim") / "cwd").symlink_to(place)
    (machine.process("other") / "comm").write_bytes(b"\xff\n")
    assert machine.found() == []


def test_what_ends_meanwhile_is_passed_over(machine: Machine) -> None:
    machine.process("containerd-shim")
    machine.process("containerd-shim", root="/nowhere at all")
    (machine.proc / "4711").mkdir()
    assert machine.found() == []


def test_a_container_made_while_cgpu_is_taken_out_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the search until the programs are gone an engine can make one, and not end it then."""
    monkeypatch.setattr(wired.TARGET, wired.target)
    machine = wired.made_below(tmp_path)
    wired.write(machine, dockerd.FILE, "{}\n")
    wired.install(machine, "docker", "podman")
    before = tree(tmp_path)
    searches: list[str] = []

    def search(state_dir: str) -> None:
        searches.append(state_dir)
        if len(searches) > 1:
            assert not Path(machine.resolve_path("/usr/bin/cgpu-runtime")).is_symlink()
            raise CgpuError("containers run with cgpu: stop them first: late")

    monkeypatch.setattr(install, "_check_idle", search)
    monkeypatch.setattr(install, "_make_job", lambda *_: install._Job(machine, Journal(machine)))  # noqa: SLF001
    monkeypatch.setattr(dockerd, "default_runtime", lambda: "")
    given = argparse.Namespace(root="", engines=[], now=False, dry_run=False, state_dir="/nowhere")
    with pytest.raises(CgpuError, match="stop them first: late"):
        install.Uninstall().run(given)
    assert (tree(tmp_path), len(searches)) == (before, 2)
    wired.uninstall(machine, "docker", "podman")
    assert machine.read_text(dockerd.FILE) == "{}\n"


def parsed(*words: str) -> argparse.Namespace:
    """The words of ``cgpu uninstall``."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    install.Uninstall().add_arguments(parser)
    return parser.parse_args(words)


def test_this_machine_named_as_a_root_is_searched_for_containers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(_: str) -> None:
        raise CgpuError("containers run with cgpu: stop them first")

    monkeypatch.setattr(install, "_check_idle", search)
    monkeypatch.setattr(install, "_require_rights", lambda *_: nullcontext())
    for root in ("/", "//", "/usr/.."):
        given = argparse.Namespace(**vars(parsed("--root", root, "docker")), state_dir=None)
        with pytest.raises(CgpuError, match="stop them first"):
            install.Uninstall().run(given)


def tree(root: Path) -> dict[str, object]:
    """Everything below ``root``."""
    return {
        str(path.relative_to(root)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
