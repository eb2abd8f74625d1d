"""cgpu's programs on a node of which only mounts and root are known, as the driver installs them.

DRA-4, DRA-8.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_env.version import VERSION
from cgpu_k8s.dra import node_programs
from cgpu_k8s.dra.cdi import file_name
from cgpu_k8s.dra.node_programs import NodePlace, NodePrograms
from cgpu_k8s.dra.programs import LOADER, ProgramFiles, collect_programs
from cgpu_k8s.names import AGENT_LOCK
from cgpu_node.lockfile import try_lock
from cgpu_node.paths import open_state
from cgpu_node.shares.registry import Registry
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import Gpu, make_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

FOLDER = "/opt/cgpu-dra"
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
T4 = [Gpu("Tesla T4", 15109, 0)]
# A child of the folder's Python, when a driver's folder has a C library of the node's.
_FAMILY = """
import json, os, subprocess, sys
child = "import os; print(os.confstr('CS_GNU_LIBC_VERSION'), os.environ.get('LD_LIBRARY_PATH'))"
started = subprocess.run([sys.executable, "-ISc", child], capture_output=True, env={})
maps = {line.split()[-1] for line in open("/proc/self/maps")}
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix,
    "libraries": sorted(each for each in maps if each.startswith("/") and ".so" in each),
    "given": os.environ["LD_LIBRARY_PATH"], "child": started.stdout.decode()}))
"""


@pytest.fixture(name="programs", scope="module")
def _programs() -> ProgramFiles:
    return collect_programs()


class Hanging(NodePrograms):
    """Programs whose question to NVIDIA's driver has no answer until it is let on."""

    def __init__(self) -> None:
        super().__init__(
            NodePlace(FOLDER, os.getpid(), Path("/none"), "/none"), ProgramFiles("a", {})
        )
        self.go_on = threading.Event()

    def _install(self) -> None:
        assert self.go_on.wait(60)
        raise CgpuError("no answer")


def test_dra_8_a_driver_that_hangs_while_programs_are_installed_holds_up_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_programs, "_TURN_SECONDS", 0.01)
    hanging = Hanging()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(hanging.find_problem)
        wait_until(first.running, "it asks")
        second = threads.submit(hanging.find_problem)
        try:
            assert "is being found out" in second.result(30)
        finally:
            hanging.go_on.set()
        assert first.result(30) == hanging.find_problem() == "no answer"


class BareMachine:
    """A node: a process with mounts of its own, in which ``/opt`` is empty."""

    def __init__(self, folder: Path, process: int) -> None:
        driver = make_machine(folder / "driver", T4)
        state = open_state(str(folder / "state"))
        (folder / "cdi").mkdir()
        self.place = NodePlace(FOLDER, process, folder / "cdi", state, str(driver))

    def run(self, *words: str, **options: Any) -> str:
        """What a program prints there."""
        enter = ["nsenter", f"--mount=/proc/{self.place.process}/ns/mnt", "--"]
        return subprocess.run(
            [*enter, *words], check=True, capture_output=True, text=True, **options
        ).stdout

    def listed(self) -> list[str]:
        """What is in the folder of programs."""
        return sorted(self.run("sh", "-c", f"ls -A {FOLDER} 2>/dev/null || true").split())

    def make_version(self, name: str) -> None:
        """Make what looks like another version."""
        loader = self.place.path(f"{FOLDER}/{name}/{LOADER}")
        loader.parent.mkdir(parents=True)
        loader.write_bytes(b"")


@contextmanager
def machine(folder: Path, options: str = "size=1g") -> Iterator[BareMachine]:
    script = f"mount -t tmpfs -o {options} tmpfs /opt; echo; read end"
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield BareMachine(folder, process.pid)
        finally:
            process.stdin.close()


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[BareMachine]:
    with machine(tmp_path) as node:
        yield node


def test_dra_4_programs_are_installed_once_and_work(
    node: BareMachine, programs: ProgramFiles
) -> None:
    own = NodePrograms(node.place, programs)
    assert own.find_problem() == ""
    assert node.listed() == [programs.name]
    assert programs.name.startswith(f"{VERSION}-")
    made = node.place.path(own.hook).stat()
    assert NodePrograms(node.place, programs).find_problem() == ""
    assert node.place.path(own.hook).stat().st_ino == made.st_ino
    facts = json.loads(node.run("cat", f"{node.place.state_dir}/node.json"))
    assert [gpu["name"] for gpu in facts["gpus"]] == ["Tesla T4"]
    node.run("rm", "-r", FOLDER)  # by somebody who tidies up
    assert own.find_problem() == ""
    assert node.listed() == [programs.name]


def test_dra_4_their_python_has_its_own_c_library_and_hands_no_variable_on(
    node: BareMachine, programs: ProgramFiles
) -> None:
    assert NodePrograms(node.place, programs).find_problem() == ""
    folder = f"{FOLDER}/{programs.name}"
    libc = json.loads(node.run(f"{folder}/bin/python3", "-ISc", _FAMILY, env=environment("/lib64")))
    theirs = f"/usr/lib/{platform.machine()}-linux-gnu"
    found = json.loads(node.run(f"{folder}/bin/python3", "-ISc", _FAMILY, env=environment(theirs)))
    assert found["executable"] == f"{folder}/bin/python3"
    assert found["prefix"] == folder
    assert found["given"] == theirs
    assert {each.rpartition("/lib/")[0] for each in found["libraries"]} == {folder}
    assert found["libraries"] == libc["libraries"]
    assert found["child"].startswith("glibc ")
    assert found["child"].endswith(" None\n")


def environment(libraries: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries}


@pytest.mark.parametrize(
    ("options", "says"),
    [("ro", "Read-only file system; name another folder of the node by the chart's value"),
     ("noexec", "Permission denied (if /opt/cgpu-dra is mounted noexec, name another folder"),
     ("size=4m", "No space left on device; name another folder")],
)  # fmt: skip
def test_dra_4_a_node_that_cannot_have_them_is_told_why(
    tmp_path: Path, programs: ProgramFiles, options: str, says: str
) -> None:
    with machine(tmp_path, options) as node:
        problem = NodePrograms(node.place, programs).find_problem()
        assert says in problem
        assert node.listed() == ([programs.name] if options == "noexec" else [])


def test_dra_4_a_node_on_which_the_driver_does_not_answer_is_told_so(
    node: BareMachine, programs: ProgramFiles
) -> None:
    place = node.place._replace(driver_dir="/nowhere")
    assert "driver directory /nowhere" in NodePrograms(place, programs).find_problem()


def test_dra_4_versions_that_nothing_uses_are_removed(
    node: BareMachine, programs: ProgramFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the file of a claim goes that is given back."""
    listed_files = node_programs._list_files  # noqa: SLF001
    monkeypatch.setattr(
        node_programs, "_list_files", lambda folder: [*listed_files(folder), folder / "gone"]
    )
    for name in ("claimed", "running", "mounted", "unused"):
        node.make_version(name)
    for name in (".unfinished-killed", "theirs"):
        node.place.path(f"{FOLDER}/{name}").mkdir()
    layers = f"lowerdir={FOLDER}/mounted/lib:{FOLDER}/theirs"
    node.run("mount", "-t", "overlay", "-o", layers, "overlay", "/mnt")  # as in a container
    hook = {"path": f"{FOLDER}/claimed/lib/x/cgpu-hook"}
    (node.place.cdi / file_name("a")).write_text(json.dumps(hook))
    node.run("cp", "/bin/sleep", f"{FOLDER}/running/lib/sleep")
    enter = ["nsenter", f"--mount=/proc/{node.place.process}/ns/mnt", "--"]
    with subprocess.Popen([*enter, f"{FOLDER}/running/lib/sleep", "1000"]) as running:
        executable = f"/proc/{running.pid}/exe"
        wait_until(lambda: FOLDER in node.run("readlink", executable), "it runs")
        problem, listed = NodePrograms(node.place, programs).find_problem(), node.listed()
        running.kill()
    assert problem == ""
    assert listed == sorted(["claimed", "running", "mounted", "theirs", programs.name])
    (node.place.cdi / file_name("a")).unlink()
    node.run("umount", "/mnt")
    assert NodePrograms(node.place, programs).find_problem() == ""
    assert node.listed() == sorted(["theirs", programs.name])


def test_dra_4_at_the_end_the_state_of_a_running_agent_stays(
    node: BareMachine, programs: ProgramFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits meanwhile who wants a share."""
    monkeypatch.setattr(node_programs, "_END_SECONDS", 0.2)
    own = NodePrograms(node.place, programs)
    assert own.find_problem() == ""
    look = node_programs.try_lock

    def look_beside_another(path: str) -> int | None:
        if path.endswith(AGENT_LOCK) and not looks:
            looks.append(path)
            with Registry(node.place.state_dir, patience=0.1).lock(create=True):
                pass
        return look(path)

    looks: list[str] = []
    monkeypatch.setattr(node_programs, "try_lock", look_beside_another)
    lock = try_lock(f"{node.place.state_dir}/{AGENT_LOCK}")
    assert lock is not None
    assert own.remove(Registry(node.place.state_dir)) == ""
    assert node.run("ls", "-A", "/opt") == ""
    assert "node.json" in node.run("ls", node.place.state_dir)
    assert looks
    os.close(lock)


def test_dra_4_at_the_end_all_is_removed_that_is_ours(
    node: BareMachine, programs: ProgramFiles
) -> None:
    own = NodePrograms(node.place, programs)
    assert own.find_problem() == ""
    (node.place.cdi / file_name("a")).write_text("{}")
    assert own.remove(Registry(node.place.state_dir)) == ""
    assert node.run("ls", "-A", "/opt") == ""
    assert not node.place.cdi.exists()
    assert node.run("sh", "-c", f"ls -d {node.place.state_dir} || true") == ""


def test_dra_4_a_driver_that_ends_while_it_installs_leaves_nothing(
    node: BareMachine, programs: ProgramFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, go_on = threading.Event(), threading.Event()
    own = NodePrograms(node.place, programs)

    def stall() -> None:
        copied.set()
        assert go_on.wait(60)

    monkeypatch.setattr(os, "sync", stall)
    with ThreadPoolExecutor() as threads:
        installed = threads.submit(own.find_problem)
        assert copied.wait(60)
        removed = threads.submit(own.remove, Registry(node.place.state_dir))
        assert not wait([removed], 1).done
        go_on.set()
        assert (installed.result(), removed.result()) == ("", "")
    assert node.run("ls", "-A", "/opt") == ""
