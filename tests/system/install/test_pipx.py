"""What pipx makes of the wheel: for one user, and for the machine."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env.version import VERSION
from lab.machine.installed import Installed
from lab.machine.nobody import NOBODY, become_nobody
from lab.products import distribution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.containers.engines import Result

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]  # packages are built first

PROGRAM = Path(__file__).parents[2] / "programs" / "fill_memory.py"
CAP = 6043


class Machine(Installed):
    """With a folder of pipx's for each user, and nothing of this source tree's on any path."""

    def __init__(self) -> None:
        super().__init__("pipx")
        self.enclosure.run("mkdir", self.base / "root", self.base / "nobody")
        self.enclosure.run("chown", f"{NOBODY}:{NOBODY}", self.base / "nobody")

    def start(self, user: str, *words: str | Path, check: bool = True) -> Result:
        """A command as ``root`` or ``nobody``, with what pipx has installed first on its path."""
        home = self.base / user
        environment = {
            "HOME": home,
            "XDG_RUNTIME_DIR": home,  # without it, a user's state is in /tmp
            "PATH": f"{home}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PIPX_HOME": home / "pipx",
            "PIPX_BIN_DIR": home / "bin",
            "PIPX_MAN_DIR": home / "man",
            "PIPX_GLOBAL_HOME": home / "pipx",
            "PIPX_GLOBAL_BIN_DIR": home / "bin",
            "PIPX_GLOBAL_MAN_DIR": home / "man",
        }
        given = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", "-i", "--chdir=/", *given, *map(str, words)]
        if user == "root":
            return self.enclosure.run(*command, check=check)
        script = ["unshare", "--mount", "sh", "-c", become_nobody(command)]
        return self.enclosure.run(*script, check=check)

    def pipx(self, user: str, *words: str) -> None:
        """Let pipx install the wheel."""
        wheel = self.base / distribution.wheel(platform.machine()).name
        self.enclosure.run("cp", distribution.wheel(platform.machine()), wheel)
        self.start(user, sys.executable, "-m", "pipx", "install", *words, wheel)

    def works(self, user: str) -> None:
        """The commands are there, and a program gets its share of the simulated GPU."""
        assert self.start(user, "cgpu", "--version").stdout == f"cgpu {VERSION}\n"
        done = self.start(user, "cgpu", "doctor", "--json", check=False)
        levels = {found["check"]: found["level"] for found in json.loads(done.stdout)["findings"]}
        assert (levels["driver"], levels["glibc"]) == ("ok", "ok")
        program = ["python3", PROGRAM, self.node.driver]
        done = self.start(user, "cgpu-run", "--mem=6/15", "--", *program)
        seen = json.loads(done.stdout)
        assert (seen["total"], seen["status"]) == (CAP, 2)
        assert CAP - 200 < seen["got"] < CAP


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.enclosure.stop()


def test_a_user_without_rights_has_all_that_cgpu_run_needs(machine: Machine) -> None:
    machine.pipx("nobody")
    machine.works("nobody")
    assert machine.start("nobody", "test", "-e", machine.base / "nobody/man/man1/cgpu-run.1")
    tree = machine.base / "nobody" / "tree"
    machine.start("nobody", "mkdir", tree)
    done = machine.start("nobody", "cgpu", "install", "--root", tree, "docker", check=False)
    assert done.returncode == 0, done.stderr  # of nobody's tree; root refuses such programs
    program = f"{machine.base}/nobody/bin/cgpu"
    done = machine.start("root", program, "install", "--dry-run", "docker", check=False)
    assert done.returncode == 2
    assert "others could change" in done.stderr


def test_one_for_the_machine_is_what_engines_are_told_of(machine: Machine) -> None:
    machine.pipx("root", "--global")
    machine.works("root")
    tree = machine.base / "root" / "tree"
    machine.start("root", "mkdir", tree)
    machine.start("root", "cgpu", "install", "--root", tree, "docker", "systemd")
    daemon = json.loads(machine.read(f"{tree}/etc/docker/daemon.json"))
    assert daemon["runtimes"]["cgpu"]["path"] == "/usr/bin/cgpu-runtime"
    for name in ("cgpu-runtime", "cgpu-hook", "cgpud"):
        target = machine.enclosure.run("readlink", f"{tree}/usr/bin/{name}").stdout.strip()
        assert target.startswith(f"{machine.base}/root/pipx/venvs/cgpu/")
        machine.enclosure.run("test", "-x", target)
    done = machine.start("root", "cgpu", "upgrade", "cgpu-9.whl", check=False)
    assert "this cgpu is pipx's: pipx upgrade --global cgpu" in done.stderr
