"""cgpud as deploy/cgpud.service has systemd start it (REL-2)."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest

from lab.machine.as_service import UNIT, capabilities, nice_limit, settings
from lab.runs.packages import ensure_packages
from lab.worlds.server import World, environment, is_arbitrated, wait_until

pytestmark = pytest.mark.integration
NICE = 16  # field of /proc/PID/stat behind the name
ARBITER_NICE = -10  # native/arbiter/thread/arbitration_thread.c
# linux/capability.h
NUMBERS = {"chown": 0, "dac_override": 1, "kill": 5, "sys_ptrace": 19}


def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    """With a program where it says that one is installed."""
    ensure_packages()
    program = tmp_path / "cgpud"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = UNIT.read_text()
    assert "ExecStart=/usr/bin/cgpud " in text
    units = [tmp_path / each for each in (UNIT.name, "run-cgpu.mount", "cgpud-metrics.socket")]
    units[0].write_text(text.replace("/usr/bin/cgpud", str(program)))
    for unit in units[1:]:
        unit.write_text((UNIT.parent / unit.name).read_text())
    words = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("abstract", [False, True])
def test_it_answers_as_soon_as_it_has_said_that_it_is_ready(
    world: World, tmp_path: Path, *, abstract: bool
) -> None:
    """sd_notify(3)."""
    assert settings()["Type"] == "notify"
    name = f"{'@' if abstract else ''}{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name.replace("@", "\0", 1))
        end.settimeout(20)
        server = subprocess.Popen(world.command(), env={**environment(), "NOTIFY_SOCKET": name})
        assert end.recv(64) == b"READY=1"
        assert world.ask({"request": "status"})["pid"] == server.pid
        assert "WatchdogSec" in settings()
        assert [end.recv(64) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    server.terminate()
    assert server.wait(20) == 0


def test_it_has_the_units_rights_and_its_arbiter_goes_first(world: World) -> None:
    """Nothing that it does needs more (``test_server_guests.py``)."""
    directory = world.admit("a")
    server = world.start(service=True)
    wait_until(lambda: is_arbitrated(directory), "an arbiter gives a sign")
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    kept = sum(1 << NUMBERS[name] for name in capabilities())
    assert nice_limit() == 20 - ARBITER_NICE
    assert [int(facts[each], 16) for each in ("CapPrm", "CapEff", "CapBnd")] == [kept] * 3
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    niceness, here = _niceness(server.pid), os.nice(0)
    granted = resource.prlimit(server.pid, resource.RLIMIT_NICE)[0] == nice_limit()
    assert niceness.pop("cgpu-arbiter") == (ARBITER_NICE if granted else here)
    assert set(niceness.values()) == {here}


def _niceness(pid: int) -> dict[str, int]:
    """By the name of the thread."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    fields = [(task / "stat").read_text().rpartition(")")[2].split() for task in tasks]
    names = [(task / "comm").read_text().strip() for task in tasks]
    return {name: int(each[NICE]) for name, each in zip(names, fields, strict=True)}
