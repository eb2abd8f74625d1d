"""``--bin-dir`` is given once: install, doctor and upgrade find it in the journal (CLI-4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.machine.node import T4, Node

pytestmark = pytest.mark.integration

CGPU = (sys.executable, "-m", "cgpu_cli.main")
TELL = "from cgpu_upgrade import upgrade; print(upgrade._tell_engines(upgrade._own_cgpu))"


class Machine:
    """Docker on a machine with an ``/etc`` and a ``/var/lib`` of its own."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder, T4)
        self.programs, self._etc, self._var = folder / "bin", folder / "etc", folder / "var"
        for path in (self.programs, self._etc / "docker", self._etc / "containers", self._var):
            path.mkdir(parents=True)

    def run(self, *words: str) -> str:
        """What a command prints there; it may fail."""
        mounts = [f"mount --bind {self._etc} /etc", f"mount --bind {self._var} /var/lib"]
        mounts += ["mount --bind /usr/bin /usr/bin", "mount -o remount,bind,ro /usr/bin"]
        script = " && ".join((*mounts, 'exec "$@"'))
        apart = ["unshare", "-m", "-p", "-f", "--mount-proc"]  # from a dockerd of another test
        command = [*apart, "sh", "-c", script, "sh", *words]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
        return done.stdout.decode()

    @property
    def journal(self) -> Path:
        """What ``cgpu install`` wrote down."""
        return self._var / "cgpu" / "install.json"

    def text(self, path: str) -> str:
        """Of a file below ``/etc``."""
        return (self._etc / path).read_text()

    def findings(self) -> list[dict[str, Any]]:
        """What doctor says."""
        where = ("--state-dir", str(self.node.state), "--driver-dir", str(self.node.driver))
        found: list[dict[str, Any]] = json.loads(self.run(*CGPU, "doctor", "--json", *where))[
            "findings"
        ]
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.run(*CGPU, "install", "--bin-dir", str(made.programs), "docker")
    return made


def test_uninstall_takes_nothing_from_another_state_directory(
    machine: Machine, tmp_path: Path
) -> None:
    """Overlays of the proxies are in root's own alone (REL-9)."""
    made = tmp_path / "other/lib/0-1-2/cgpu_shim/_lib"
    made.mkdir(parents=True)
    output = machine.run(*CGPU, "uninstall", "--state-dir", str(tmp_path / "other"))
    assert "docker/daemon.json" in output
    assert made.is_dir()


def test_install_remembers_it(machine: Machine) -> None:
    program = str(machine.programs / "cgpu-runtime")
    assert program in machine.text("docker/daemon.json")
    assert "nothing to change" in machine.run(*CGPU, "install", "docker")
    machine.run(*CGPU, "install", "podman")
    assert program in machine.text("containers/containers.conf.d/cgpu.conf")
    assert program in machine.text("docker/daemon.json")


def test_a_wrong_record_of_an_earlier_release_is_mended(machine: Machine) -> None:
    install, journal = (*CGPU, "install", "--bin-dir", str(machine.programs)), machine.journal
    right = journal.read_text()
    journal.write_text(right.replace(f'"bin_dir": "{machine.programs}"', '"bin_dir": "/usr/bin"'))
    assert journal.read_text() != right
    assert "nothing to change" in machine.run(*install, "docker")
    assert journal.read_text() == right


def test_doctor_remembers_it(machine: Machine) -> None:
    program = str(machine.programs / "cgpu-runtime")
    assert [f["level"] for f in machine.findings() if f["value"] == program] == ["ok"]
    assert not [f for f in machine.findings() if "/usr/bin/cgpu" in json.dumps(f)]


def test_doctor_makes_its_other_checks_beside_a_damaged_record(machine: Machine) -> None:
    machine.journal.write_text("{")
    found = machine.findings()
    errors = [f["what"] for f in found if (f["check"], f["level"]) == ("engines", "error")]
    assert errors == ["/var/lib/cgpu/install.json: damaged: expected what cgpu install wrote"]
    assert [f["level"] for f in found if f["check"] == "driver"] == ["ok"]


def test_upgrade_remembers_it(machine: Machine) -> None:
    before = machine.text("docker/daemon.json")
    assert machine.run(sys.executable, "-c", TELL) == "[]\n", "there was nothing to change"
    assert machine.text("docker/daemon.json") == before
