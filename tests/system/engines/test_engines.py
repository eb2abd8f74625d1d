"""Each engine runs an ordinary container here, before anything of ours is asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle, Containerd, Docker, Overlay, Podman, Volume

pytestmark = pytest.mark.system
HELLO = ["sh", "-c", "echo $GREETING from $(id -u)"]
ENV = {"GREETING": "hello"}
OUTPUT = "hello from 0\n"


def test_docker_runs_a_container(docker: Docker) -> None:
    assert docker.run("small", *HELLO, env=ENV).stdout == OUTPUT


def test_docker_returns_the_exit_status_of_the_container(docker: Docker) -> None:
    assert docker.run("small", "sh", "-c", "exit 7", check=False).returncode == 7


@pytest.mark.parametrize("runtime", ["/usr/sbin/runc", "/usr/bin/crun"])
def test_ctr_runs_a_container(
    containerd: Containerd, overlay: Callable[[Path], Overlay], small_root: Path, runtime: str
) -> None:
    output = containerd.run(overlay(small_root), *HELLO, env=ENV, runtime=runtime).stdout
    assert output == OUTPUT


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_runs_a_container(podman: Podman, runtime: str) -> None:
    output = podman.run("small", *HELLO, env=ENV, options=["--runtime", runtime]).stdout
    assert output == OUTPUT


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_low_level_runtime_runs_a_bundle(
    bundle: Callable[[Path], Bundle], small_root: Path, runtime: str
) -> None:
    assert bundle(small_root).run([runtime], *HELLO, env=ENV).stdout == OUTPUT


def test_the_guest_programs_import_in_the_debian_image(
    docker: Docker, debian: str, guests: list[Volume]
) -> None:
    modules = "nvitop, gpustat, pynvml, cuda.bindings.driver, numba.cuda"
    run = ["python3", "-c", f"import {modules}; print('imported')"]
    assert docker.run(debian, *run, volumes=guests).stdout == "imported\n"


@pytest.mark.parametrize("program", ["musl-static", "musl-dynamic"])
def test_a_musl_program_runs(docker: Docker, program: str) -> None:
    assert docker.run("small", program).stdout == "plain x\n"


def test_containers_leave_no_mount_behind(docker: Docker, enclosure: Enclosure) -> None:
    before = enclosure.mounts()
    docker.run("small", "true")
    assert enclosure.mounts() == before
