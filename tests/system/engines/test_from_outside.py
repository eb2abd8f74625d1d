"""What the administrator of a machine sees of its docker containers (CLI-3, CLI-7)."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.machine.node import RUNC, share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.engines import Docker, Podman, Volume
    from lab.machine.node import Node

pytestmark = pytest.mark.system
CGPU = ["--runtime=cgpu"]
MIB = 1 << 20


def _cgpu_smi(engine: Docker | Podman, node: Node, *flags: str) -> str:
    path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
    where = ["--state-dir", str(node.state), "--driver-dir", str(node.driver)]
    smi = [sys.executable, "-m", "cgpu_cli.smi", *where, *flags]
    return engine.enclosure.run("env", path, *smi).stdout


def _wait_until_called(engine: Docker | Podman, node: Node, id_: str, name: str) -> None:
    """Wait for the only container to go by ``name``; the server remembers an old one for 5 s."""

    def is_called() -> bool:
        (shown,) = json.loads(_cgpu_smi(engine, node, "--json"))["containers"]
        return (shown["id"], shown["name"]) == (id_, name)

    wait_until(is_called, f"the container is called {name}")


def test_cgpu_smi_shows_the_containers_and_their_use(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str], node: Node
) -> None:
    """CLI-3: what the host says a container uses is what it sees; free are whole blocks there."""
    hold = contained.program("driver_api", "100", "hold")
    six = started(debian, *hold, options=CGPU, env=share(6), volumes=guests)
    nine = started("small", "sleep", "1000", options=CGPU, env=share(9))
    wait_until(lambda: "refusal" in docker.docker("logs", six).stdout, "the program holds memory")
    report = json.loads(docker.docker("logs", six).stdout)
    shown = json.loads(_cgpu_smi(docker, node, "--json"))["containers"]
    containers: dict[str, dict[str, Any]] = {each["id"]: each["gpus"][0] for each in shown}
    assert set(containers) == {six, nine}
    caps = {name: each["cap_bytes"] for name, each in containers.items()}
    assert caps == {six: 15109 * MIB * 6 // 15, nine: 15109 * MIB * 9 // 15}
    assert containers[nine]["used_bytes"] == 0
    free, block = caps[six] - containers[six]["used_bytes"], 2 * MIB
    assert report["free_after"] == free // block * block
    (process,) = containers[six]["processes"]
    top = docker.docker("top", six, "-o", "pid,args").stdout.splitlines()
    (pid,) = (line.split()[0] for line in top if "driver_api" in line)
    assert process["pid"] == int(pid), "on the host, as docker says"
    assert process["container_pid"] == 1


def test_cgpu_smi_shows_a_table_without_the_containers_that_have_ended(
    docker: Docker, node: Node, started: Callable[..., str]
) -> None:
    """CLI-3, REL-3."""
    name = started("small", "sleep", "1000", options=CGPU, env=share(6))
    assert name[:12] in _cgpu_smi(docker, node)
    docker.docker("rm", "--force", name)
    assert name[:12] not in _cgpu_smi(docker, node)


@pytest.mark.parametrize("runtime", ["cgpu", "cgpu-crun"])
def test_cgpu_smi_calls_a_container_as_docker_does(
    docker: Docker, node: Node, started: Callable[..., str], runtime: str
) -> None:
    """CLI-3."""
    options = [f"--runtime={runtime}", f"--name=by_{runtime}"]
    name = started("small", "sleep", "1000", options=options, env=share(6))
    _wait_until_called(docker, node, name, f"by_{runtime}")
    docker.docker("rename", name, "renamed")
    _wait_until_called(docker, node, name, "renamed")


def test_cgpu_smi_calls_a_container_as_podman_does(
    podman: Podman, node: Node, tmp_path: Path
) -> None:
    """CLI-3."""
    wrapper = tmp_path / "cgpu"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(node.command(RUNC))} "$@"\n')
    wrapper.chmod(0o755)
    options = ["--runtime", str(wrapper)]
    name = podman.run("small", "sleep", "1000", options=options, env=share(6), detach=True)
    id_ = name.stdout.strip()
    try:
        for called in ("by_podman", "renamed"):
            podman.podman("rename", id_, called, options=options)
            _wait_until_called(podman, node, id_, called)
    finally:
        podman.podman("rm", "--force", "--time=0", id_, options=options)
    wait_until(lambda: node.containers() == [], "the share is given back")
