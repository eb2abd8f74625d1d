"""Milliseconds that cgpu adds to starting a container or a program, on the simulated driver."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.timing import Timing, in_turns
from lab.containers.enclosure import Enclosure
from lab.containers.engines import DOCKER, ULIMITS, Docker
from lab.containers.images import small
from lab.machine.node import RUNC, T4, Node, share

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "bench" / "_build"
CONTAINER_ROUNDS = 40
PROGRAM_ROUNDS = 60
# Debian's dockerd wraps a runtime that has arguments in a shell script. cgpu-runtime gets some here
# to find the simulated driver, so runc gets a harmless one: both pay for the script.
PLAIN = {"path": RUNC, "runtimeArgs": ["--systemd-cgroup=false"]}


def containers() -> dict[str, Timing]:
    """``docker run --rm`` and ``docker exec`` of ``true``: runc, cgpu not capped, and capped."""
    enclosure = Enclosure()
    try:
        node = Node(enclosure.base / "one", T4)
        docker = Docker(enclosure, {"cgpu": node.daemon_entry(), "plain": PLAIN})
        docker.load("small", small())
        return _run_times(docker) | _exec_times(docker)
    finally:
        enclosure.stop()


def _docker(docker: Docker, *arguments: str) -> list[str]:
    return docker.enclosure.command(DOCKER, "--host", f"unix://{docker.socket}", *arguments)


def _options(runtime: str, cap: dict[str, str]) -> list[str]:
    env = [f"--env={name}={value}" for name, value in cap.items()]
    return [f"--runtime={runtime}", "--network=none", *ULIMITS, *env, "small"]


def _run_times(docker: Docker) -> dict[str, Timing]:
    cases = {"plain": ("plain", {}), "not capped": ("cgpu", {}), "capped": ("cgpu", share(6))}
    commands = {
        f"run {name}": _docker(docker, "run", "--rm", *_options(runtime, cap), "true")
        for name, (runtime, cap) in cases.items()
    }
    return in_turns(commands, CONTAINER_ROUNDS)


def _exec_times(docker: Docker) -> dict[str, Timing]:
    commands = {}
    for name, runtime, cap in (("plain", "plain", {}), ("capped", "cgpu", share(6))):
        arguments = ["--detach", *_options(runtime, cap), "sleep", "1000"]
        container = docker.docker("run", *arguments).stdout.strip()
        commands[f"exec {name}"] = _docker(docker, "exec", container, "true")
    return in_turns(commands, CONTAINER_ROUNDS)


def _installed() -> Path:
    """A virtual environment with cgpu installed as a user installs it, from a wheel."""
    venv = BUILD / "venv"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = BUILD / "wheels"
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", wheels, ROOT], check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    wheel = max(wheels.glob("cgpu-*.whl"), key=lambda path: path.stat().st_mtime)
    subprocess.run([*pip, "--python", venv / "bin" / "python", "install", wheel], check=True)
    return venv / "bin" / "cgpu-run"


def programs() -> dict[str, Timing]:
    """``/bin/true`` plainly and under ``cgpu-run``."""
    program = _installed()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        node = Node(Path(folder), T4)
        options = ["--driver-dir", str(node.driver), "--state-dir", str(node.state)]
        capped = [str(program), *options, "--mem", "6/15", "--", "/bin/true"]
        return in_turns({"true plain": ["/bin/true"], "true capped": capped}, PROGRAM_ROUNDS)
