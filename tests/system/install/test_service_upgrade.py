"""Another release under a real systemd, with a session at work, and back (CLI-4, REL-2)."""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

import pytest

from cgpu_env.version import VERSION
from lab.containers import images
from lab.containers.enclosure import wait_until
from lab.machine.booted import CONFIG, Machine
from lab.machine.working import PROGRAM, Working
from lab.products import distribution, releases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]  # packages are built first

NEWER = "9.9.9"
OFFLINE = "--no-index --find-links /libraries"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two releases."""
    folder = tmp_path_factory.mktemp("wheels")
    present = shutil.copy(distribution.wheel(platform.machine()), folder)
    releases.renumbered(present, NEWER, folder)
    return folder


@pytest.fixture(scope="module")
def machine(t4_driver: Path, wheels: Path) -> Iterator[Machine]:
    """With an environment at /opt/cgpu and its service, as the operator's page says."""
    made = Machine("service", images.booting())
    made.give_gpu(t4_driver)
    made.share(wheels, "/wheels")
    made.share(images.wheels(), "/libraries")
    made.share(PROGRAM.parent, "/programs")
    made.write("/etc/cgpu/config.toml", CONFIG)
    made.boot()
    install = f"/opt/cgpu/bin/pip install -q {OFFLINE} /wheels/cgpu-{VERSION}-*.whl"
    links = "ln -s /opt/cgpu/bin/cgpu* /usr/local/bin/"
    made.run("sh", "-euc", f"python3 -m venv /opt/cgpu; {install}; {links}")
    made.run("/opt/cgpu/bin/cgpu", "install", "systemd", "--now")
    wait_until(made.serves, "the service serves")
    yield made
    made.stop()


def test_systemd_starts_the_other_release_and_a_session_goes_on(machine: Machine) -> None:
    words = ("/opt/cgpu/bin/cgpu-run", "--mem=6/15", "--", "python3", f"/programs/{PROGRAM.name}")
    session = Working(machine.command(*words))
    session.at_work()
    [wheel] = machine.run("sh", "-c", f"ls /wheels/cgpu-{NEWER}-*").stdout.split()
    look = ("sh", "-c", "cat /run/cgpu_km/0/run-*/memsize")
    cap = machine.run(*look).stdout
    steps = [(NEWER, (wheel, f"--pip={OFFLINE}")), (VERSION, ("--back",))]
    for number, how in steps:
        pid, begun = machine.main_pid(), session.figures().rounds
        done = machine.run("/opt/cgpu/bin/cgpu", "upgrade", *how)
        assert f"cgpud {number} serves, process" in done.stdout
        assert machine.main_pid() not in {"0", pid}
        wait_until(machine.serves, "the tree is mounted")
        assert machine.run("cat", "/run/cgpu_km/version").stdout == f"{number}\n"
        assert f'"version": "{number}"' in machine.run("/opt/cgpu/bin/cgpu", "get", "--json").stdout
        assert machine.run(*look).stdout == cap
        assert session.at_work().rounds > begun
        assert machine.run("systemctl", "is-active", "cgpud").stdout == "active\n"
    assert session.end() == 0
