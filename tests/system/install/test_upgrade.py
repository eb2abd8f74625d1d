"""Another release of the node side under running containers, and back (SPEC CLI-4, REL-2)."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from cgpu_env.version import VERSION
from lab.containers.enclosure import wait_until
from lab.containers.engines import Bundle
from lab.machine.installed import Installed
from lab.machine.node import share
from lab.machine.working import PROGRAM, Working
from lab.products import releases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from lab.containers.engines import Docker, Result

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

PROXY = "cgpu_shim/_lib/libcuda.so.1"
BEFORE = releases.previous()
RUNTIME = "/usr/bin/cgpu-runtime"


class Guest(Working):
    """That program in a container or session, and its directory as this process reaches it."""

    def __init__(self, words: list[str], state: Path) -> None:
        before = set(names(state))
        super().__init__(words)
        wait_until(lambda: set(names(state)) - before, "it is admitted")
        [name] = set(names(state)) - before
        self.folder = state / "containers" / name
        self.at_work()

    def page(self) -> cgpu_native.LimitsGpu:
        return cgpu_native.read_limits(self.folder / "limits").gpus[0]

    def is_arbitrated(self) -> bool:
        return time.monotonic_ns() - self.page().heartbeat_ns < 1_000_000_000

    def charged_again(self) -> None:
        """Wait until an arbiter counts its time."""
        wait_until(self.is_arbitrated, "it is arbitrated")
        charged = self.page().charged_ns
        wait_until(lambda: self.page().charged_ns > charged, "its time is counted")


def names(state: Path) -> list[str]:
    folder = state / "containers"
    there = folder.iterdir() if folder.exists() else ()
    return [path.name for path in there if not path.name.startswith(".")]


class Machine(Installed):
    """With the release before this one in a virtual environment, as a user has it."""

    def __init__(self, root: Path) -> None:
        super().__init__("upgrade")
        os.environ.setdefault("PIP_NO_COMPILE", "1")
        self.root = root
        self.state = self.seen("/run/cgpu")
        self.prefix = self.base / "opt" / "cgpu"
        self.prefix.parent.mkdir()
        self.run("python3", "-m", "venv", self.prefix)
        wheel = releases.previous_wheel(BEFORE)
        self.run(self.prefix / "bin/pip", "install", "--quiet", wheel)

    def run(self, *words: str | Path, check: bool = True) -> Result:
        return self.enclosure.run(*words, check=check)

    def own(self, *words: str | Path, check: bool = True) -> Result:
        """The command that a user has."""
        return self.enclosure.run(self.prefix / "bin/cgpu", *words, check=check, timeout=480)

    def seen(self, path: str) -> Path:
        """A path of the machine as this process, which is not in it, reaches it."""
        return Path(f"/proc/{self.enclosure.pid}/root{path}")

    def proxy(self, prefix: Path | str) -> int:
        """The inode of the proxy that an environment gives to containers."""
        [path] = Path(prefix).glob(f"lib/python3*/site-packages/{PROXY}")
        return path.stat().st_ino

    def bundle(self) -> Guest:
        made = Bundle(self.enclosure, self.root)
        self.run("cp", PROGRAM, made.root)
        made.prepare(["python3", "/at_the_cap.py"], share(3))
        return Guest(self.enclosure.command(*made.start_command([RUNTIME])), self.state)

    def container(self, docker: Docker) -> Guest:
        volumes = [f"--volume={PROGRAM}:/at_the_cap.py:ro"]
        options = ["run", "--rm", "--interactive", "--runtime=cgpu", *volumes]
        words = docker.arguments("debian", ["python3", "/at_the_cap.py"], share(3), [])
        return Guest(self.enclosure.command(*docker.client(), *options, *words), self.state)

    def session(self) -> Guest:
        words = [str(self.prefix / "bin/cgpu-run"), "--mem", "3/15", "--", "python3", str(PROGRAM)]
        return Guest(self.enclosure.command(*words), self.state)

    def server(self) -> tuple[int, str]:
        """Process and release of the server that answers."""
        output = json.loads(self.cgpu("get", "--json").stdout)
        return output["pid"], output["node"]["version"]

    def tree(self) -> dict[str, str]:
        lines = self.run("cat", "/run/cgpu_km/upgrade").stdout.splitlines()
        return dict(line.split(": ") for line in lines)


class Loop:
    """Makes containers one after the other for as long as its block runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._ends = machine, threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.made: list[Result] = []

    def _go_on(self) -> None:
        while not self._ends.is_set():
            bundle = Bundle(self._machine.enclosure, self._machine.root)
            self.made.append(bundle.run([RUNTIME], "true", env=share(1), check=False))
            bundle.remove()

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: len(self.made) > 2, "containers are made")
        return self

    def __exit__(self, *_: object) -> None:
        count = len(self.made)
        wait_until(lambda: len(self.made) > count + 2, "containers are made")
        self._ends.set()
        self._thread.join()


@pytest.fixture(scope="module")
def machine(debian_root: Path) -> Iterator[Machine]:
    made = Machine(debian_root)
    yield made
    made.enclosure.stop()


@pytest.fixture(scope="module")
def docker(machine: Machine, debian_root: Path) -> Iterator[Docker]:
    engine = machine.docker(lambda: machine.own("install", "docker"))
    engine.load("debian", debian_root)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return releases.present_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def old(machine: Machine, docker: Docker) -> list[Guest]:
    """A container of docker, one of runc and a session, made by the release before."""
    return [machine.container(docker), machine.bundle(), machine.session()]


def snapshot(machine: Machine) -> list[tuple[str, str]]:
    """What an upgrade that is refused must not have touched."""
    paths = [*machine.prefix.parent.iterdir(), *machine.seen("/usr/bin").glob("cgpu*")]
    links = sorted((p.name, str(p.readlink()) if p.is_symlink() else "") for p in paths)
    return [*links, ("server", str(machine.server()))]


def test_a_pip_that_fails_leaves_everything_as_it_was(machine: Machine, old: list[Guest]) -> None:
    before = snapshot(machine)
    broken = machine.base / "source"
    broken.mkdir()
    done = machine.cgpu("upgrade", str(broken), "--prefix", str(machine.prefix), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cgpu: pip wheel fails; nothing was changed\n")
    assert snapshot(machine) == before
    assert [guest.at_work().wrong for guest in old] == [0, 0, 0]


def test_containers_go_on_under_another_release(
    machine: Machine, docker: Docker, old: list[Guest], wheel: Path
) -> None:
    old_proxy, old_server = machine.proxy(machine.prefix), machine.server()
    assert old_server[1] == BEFORE.number
    begun = [guest.figures().rounds for guest in old]
    again = Bundle(machine.enclosure, machine.root)
    again.run([RUNTIME], "true", env=share(1))
    with Loop(machine) as loop:
        done = machine.cgpu("upgrade", str(wheel), "--prefix", str(machine.prefix))
    assert [r for r in loop.made if r.returncode != 0] == []
    again.start([RUNTIME])
    assert "hot: " in done.stdout
    assert f"cgpu {VERSION} is in use; back to {BEFORE.number}" in done.stdout
    server = machine.server()
    assert (server[0] != old_server[0], server[1]) == (True, VERSION)
    for guest, rounds in zip(old, begun, strict=True):
        assert guest.at_work().rounds > rounds
        guest.charged_again()
    new = machine.container(docker)
    new.charged_again()
    new_proxy = machine.proxy(machine.prefix)
    assert new_proxy != old_proxy
    assert old_proxy in old[0].figures().mapped
    assert old_proxy in old[1].figures().mapped
    assert new_proxy in new.figures().mapped
    assert machine.tree() == {
        "Running": VERSION,
        "Installed": VERSION,
        "Back": BEFORE.number,
        "Older": str(len(old)),
    }
    old.append(new)


def test_a_release_that_cannot_read_a_containers_files_is_refused(
    machine: Machine, old: list[Guest]
) -> None:
    """Before anything is changed, with its name; the same for --dry-run."""
    before = snapshot(machine)
    page = old[1].folder / "limits"
    version = page.read_bytes()[4:8]
    for words in (["--back"], ["--back", "--dry-run"]):
        _write(page, struct.pack("<I", 99))
        try:
            done = machine.own("upgrade", *words, check=False)
        finally:
            _write(page, version)
        assert done.returncode == 2
        assert f"cgpu {BEFORE.number} cannot read the files of running containers: " in done.stderr
        assert f"{old[1].folder.name[:12]} ({BEFORE.number})" in done.stderr
    assert snapshot(machine) == before


def test_a_server_that_does_not_come_up_takes_all_back(machine: Machine, old: list[Guest]) -> None:
    """It is the last thing that can fail, when the rest is in use already."""
    before = snapshot(machine)[:-1]
    [module] = Path(f"{machine.prefix}.back").glob(
        "lib/python3*/site-packages/cgpu_server/daemon.py"
    )
    text = module.read_text()
    broken = re.sub(r"self\.(_state\.)?refresh\(\)", "raise SystemExit(1)", text, count=1)
    assert broken != text
    module.write_text(broken)
    done = machine.own("upgrade", "--back", check=False)
    module.write_text(text)
    assert done.returncode == 2
    sentence = f"cgpud {BEFORE.number} does not come up; {VERSION} is in use as before"
    assert done.stderr.startswith(f"cgpu: {sentence}\n")
    assert snapshot(machine)[:-1] == before
    assert machine.server()[1] == VERSION
    for guest in old:
        guest.at_work()
        guest.charged_again()


def test_the_release_before_takes_the_node_back(machine: Machine, old: list[Guest]) -> None:
    """With containers of both; those of the later one too live on, and end cleanly."""
    with Loop(machine) as loop:
        done = machine.own("upgrade", "--back")
    assert [r for r in loop.made if r.returncode != 0] == []
    assert f"cgpu {BEFORE.number} is in use; back to {VERSION}" in done.stdout
    assert machine.server()[1] == BEFORE.number
    for guest in old:
        guest.at_work()
        guest.charged_again()
    assert machine.own("upgrade", check=False).returncode == 2, "it has no such command"


def test_all_end_cleanly_under_whatever_release(machine: Machine, old: list[Guest]) -> None:
    for guest in old:
        assert guest.end() == 0
    wait_until(lambda: names(machine.state) == [], "nothing is left of them")
    assert machine.run("sh", "-c", "ls -A /run/cgpu/containers").stdout == ""


def test_without_containers_it_is_cold(machine: Machine) -> None:
    done = machine.run(f"{machine.prefix}.back/bin/cgpu", "upgrade", "--back", "--json")
    output = json.loads(done.stdout)
    assert (output["before"], output["after"], output["containers"]) == (BEFORE.number, VERSION, {})
    assert machine.prefix.readlink() == Path(f"cgpu-{VERSION}")
    done = machine.own("upgrade")
    assert "is in use" not in done.stdout


def _write(page: Path, version: bytes) -> None:
    with page.open("r+b") as file:
        file.seek(4)
        file.write(version)
