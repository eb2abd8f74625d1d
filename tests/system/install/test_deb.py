"""The Debian package on machines of its own: installed, used, removed, purged."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path
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

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]  # packages are built first

ROOT = Path(__file__).resolve().parents[3]
OLDER = "0.1.9"
CAPABILITIES = (0, 1, 5, 19)  # CHOWN, DAC_OVERRIDE, KILL, SYS_PTRACE, as the unit has them
# What dpkg itself writes, and what tools of the system keep for all packages.
KEPT = ("var/lib/dpkg", "var/log", "var/cache", "etc/ld.so.cache", "var/lib/systemd", "run", "tmp")


def _machine(name: str, driver: Path) -> Machine:
    machine = Machine(name, images.booting())
    machine.give_gpu(driver)
    machine.share(distribution.made(), "/packages")
    return machine


def _package() -> str:
    return f"/packages/{distribution.deb(platform.machine()).name}"


def test_lintian_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    words = ["lintian", "--allow-root", "--fail-on=error,warning", "--profile=debian"]
    packages = [str(distribution.deb(machine)) for machine in distribution.MACHINES]
    done = subprocess.run(
        [*words, *packages],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # where it leaves files
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_is_left_of_a_package_that_is_purged(t4_driver: Path) -> None:
    """In a tree that no systemd runs in, as images are made."""
    machine = _machine("deb", t4_driver)
    try:
        daemon = "/etc/docker/daemon.json"
        machine.write(daemon, '{"debug": true}\n')
        machine.write("/etc/cgpu/config.toml", CONFIG)  # before there was a package
        before = _left(machine)
        done = machine.run("dpkg", "--install", _package())
        assert "config.toml" not in done.stdout + done.stderr
        machine.write("/tmp/own/cgpu_entry.py", "raise SystemExit(7)\n")
        for name in ("cgpu", "cgpu-run", "cgpu-smi", "cgpud"):
            shown = machine.run("env", "PYTHONPATH=/tmp/own", name, "--version").stdout
            assert shown.startswith(f"{name} ")
        shown = machine.run("cgpu-run", "--mem=6/15", "--", "cat", "/proc/self/mounts").stdout
        assert "libcuda.so.1" in shown
        machine.run("cgpu", "install", "docker")
        assert "/usr/bin/cgpu-runtime" in machine.run("cat", daemon).stdout
        findings = json.loads(machine.run("cgpu", "doctor", "--json", check=False).stdout)
        levels = {f["check"]: f["level"] for f in findings["findings"]}
        assert (levels["driver"], levels["runtime"], levels["engines"]) == ("ok", "ok", "ok")
        machine.run("dpkg", "--remove", "cgpu")
        assert machine.run("cat", daemon).stdout == '{"debug": true}\n'
        assert machine.run("cat", "/etc/cgpu/config.toml").stdout == CONFIG
        tree = f"{machine.root}/run/cgpu_km"  # of a server that has not ended yet
        machine.enclosure.run("mkdir", "--parents", tree)
        machine.enclosure.run("mount", "-t", "tmpfs", "tmpfs", tree)
        machine.run("dpkg", "--purge", "cgpu")
        assert _left(machine) == before
    finally:
        machine.stop()


def _left(machine: Machine) -> set[str]:
    return {line for line in machine.files() if not line.startswith(KEPT)}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = distribution.deb(platform.machine())
    return releases.renumbered_package(package, OLDER, tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def booted(t4_driver: Path, older: Path) -> Iterator[Machine]:
    """With a systemd that runs, and the package installed."""
    machine = _machine("boot", t4_driver)
    machine.share(older.parent, "/older")
    machine.share(PROGRAM.parent, "/programs")
    machine.boot()
    machine.run("dpkg", "--install", _package())
    machine.run(
        "install", "-D", "-m", "644", "/usr/share/cgpu/config.toml", "/etc/cgpu/config.toml"
    )
    machine.run("sh", "-c", f"printf '%s' '{CONFIG}' > /etc/cgpu/config.toml")
    machine.run("systemctl", "restart", "cgpud")
    yield machine
    machine.stop()


def test_the_service_runs_confined_with_its_control_tree(booted: Machine) -> None:
    wait_until(booted.serves, "the tree is mounted")
    assert booted.run("systemctl", "is-active", "cgpud").stdout == "active\n"
    booted.run("sh", "-c", "echo 3 > /run/cgpu_km/0/policy")
    assert booted.run("cgpu", "get", "0/policy").stdout == "3\n"
    booted.run("cgpu", "set", "0", "policy=6")
    assert booted.run("cat", "/run/cgpu_km/0/policy").stdout == "6\n"
    status = booted.run("cat", f"/proc/{booted.main_pid()}/status").stdout
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert int(fields["CapEff"], 16) == sum(1 << number for number in CAPABILITIES)


def test_state_is_on_a_file_system_of_its_own(booted: Machine) -> None:
    """REL-5: since the installation; state that is there already is not covered."""

    def mounted() -> list[str]:
        words = ("findmnt", "--noheadings", "--output=SOURCE,SIZE", "/run/cgpu")
        return booted.run(*words, check=False).stdout.split()

    assert mounted() == ["tmpfs", "64M"]
    booted.run("systemctl", "stop", "cgpud", "run-cgpu.mount")
    booted.run("mkdir", "--parents", "/run/cgpu/containers/there")
    booted.run("systemctl", "start", "cgpud")
    assert mounted() == []
    booted.run("systemctl", "stop", "cgpud")
    booted.run("rm", "--recursive", "/run/cgpu")
    booted.run("systemctl", "start", "cgpud")
    assert mounted() == ["tmpfs", "64M"]


def test_the_service_comes_back_when_it_is_killed(booted: Machine) -> None:
    wait_until(booted.serves, "the server serves")
    words = booted.command("cgpu-run", "--mem=6/15", "--", "python3", f"/programs/{PROGRAM.name}")
    session = Working(words)
    look = "cat /run/cgpu_km/0/run-*/memsize"
    wait_until(lambda: booted.run("sh", "-c", look, check=False).stdout, "the session is seen")
    cap, pid = booted.run("sh", "-c", look).stdout, booted.main_pid()
    booted.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "cgpud")
    wait_until(lambda: booted.main_pid() not in {"0", pid}, "another server")
    wait_until(lambda: booted.run("sh", "-c", look, check=False).stdout == cap, "the same cap")
    session.at_work()
    assert session.end() == 0


def test_commands_of_the_operators_page_run_as_written(booted: Machine) -> None:
    """Those that need no container engine."""
    page = (ROOT / "docs" / "operating.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    wait_until(booted.serves, "the server serves")
    for block in blocks:
        booted.run("sh", "-euc", block)


def test_man_finds_the_pages(booted: Machine) -> None:
    for path in (ROOT / "docs" / "man").iterdir():
        page, _, section = path.name.rpartition(".")
        assert booted.run("man", "--where", section, page).stdout.startswith("/usr/share/man/")


def test_help_says_where_the_documents_are(booted: Machine) -> None:
    output = booted.run("cgpu", "--help").stdout
    assert "documents: /usr/share/doc/cgpu\n" in output
    assert output.endswith(
        "settings to copy, alert rules, dashboard, RuntimeClass: /usr/share/cgpu\n"
    )
    booted.run("test", "-e", "/usr/share/doc/cgpu/docs/operating.md")
    booted.run("test", "-e", "/usr/share/cgpu/prometheus/cgpu-alerts.yml")


def test_metrics_are_served_by_the_packaged_socket(booted: Machine) -> None:
    """The packaged units are used as they are; the service itself has no network."""
    booted.run("cgpu", "install", "metrics", "--now")
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9477/metrics').read())"
    output = []

    def answers() -> bool:
        output[:] = [booted.run("python3", "-c", ask, check=False).stdout]
        return "cgpu_" in output[0]

    wait_until(answers, "metrics are served")
    assert "cgpud-metrics.socket" not in booted.run("ls", "/etc/systemd/system").stdout


def test_a_package_over_a_package_lets_the_server_follow(booted: Machine, older: Path) -> None:
    """Back to another release and forth again, with a session at work."""
    words = ("cgpu-run", "--mem=6/15", "--", "python3", f"/programs/{PROGRAM.name}")
    session = Working(booted.command(*words))
    for package, number in ((f"/older/{older.name}", OLDER), (_package(), VERSION)):
        session.at_work()
        pid = booted.main_pid()
        done = booted.run("dpkg", "--force-downgrade", "--install", package)
        assert "cgpu:" not in done.stderr
        assert f"cgpud {number} serves" in done.stdout
        assert booted.main_pid() not in {"0", pid}
        wait_until(booted.serves, "the tree is mounted")
        assert booted.run("cat", "/run/cgpu_km/version").stdout == f"{number}\n"
        session.at_work()
    assert session.end() == 0
    assert booted.run("cat", "/etc/cgpu/config.toml").stdout == CONFIG


def test_the_packaged_units_are_what_install_would_write(booted: Machine) -> None:
    assert "nothing" in booted.run("cgpu", "install", "systemd").stdout
    booted.run("cgpu", "uninstall", "systemd")
    assert booted.run("systemctl", "is-enabled", "cgpud").stdout == "enabled\n"
    booted.run("test", "-x", "/usr/bin/cgpu-runtime")


def test_nothing_runs_when_the_package_is_removed(booted: Machine) -> None:
    pid = booted.main_pid()
    booted.run("dpkg", "--purge", "cgpu")
    assert booted.run("test", "-e", f"/proc/{pid}/exe", check=False).returncode != 0
    assert "/run/cgpu" not in booted.run("cat", "/proc/mounts").stdout
    assert "cgpu" not in booted.run("systemctl", "list-unit-files", "--no-legend").stdout
