"""The main case with runc, crun, ctr and podman themselves (SPEC CLI-1, ENV-9, REL-3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import contained
import pytest
from node import CRUN, HOOK, RUNC, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from engines import Bundle, Containerd, Overlay, Podman, Volume
    from node import Node

pytestmark = pytest.mark.system
MIB = 1 << 20
CAP = 15109 * MIB * 6 // 15
ENV = share(6)
FILL = contained.program("driver_api", "16")
LOW_LEVEL = [RUNC, CRUN]


def _is_at_the_cap(stdout: str) -> bool:
    report = json.loads(stdout)
    return bool((report["total"], report["refusal"]) == (CAP, "CUDA_ERROR_OUT_OF_MEMORY"))


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_a_bundle_gets_its_share(
    bundle: Callable[[Path], Bundle],
    debian_root: Path,
    node: Node,
    guests: list[Volume],
    runtime: str,
) -> None:
    made = bundle(debian_root)
    shown = made.run(node.command(runtime), "nvidia-smi", env=ENV, volumes=guests)
    assert contained.memory_shown(shown) == [(0, 6043)]
    assert node.containers() == []


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_a_program_in_a_bundle_is_refused_at_the_cap(
    bundle: Callable[[Path], Bundle],
    debian_root: Path,
    node: Node,
    guests: list[Volume],
    runtime: str,
) -> None:
    made = bundle(debian_root)
    assert _is_at_the_cap(made.run(node.command(runtime), *FILL, env=ENV, volumes=guests).stdout)


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_a_bundle_with_bad_input_is_refused(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node, runtime: str
) -> None:
    done = bundle(small_root).run(node.command(runtime), "true", env=share("six"), check=False)
    assert done.returncode != 0
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=six" in done.stderr


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_the_configuration_of_an_uncapped_bundle_is_not_touched(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node, runtime: str
) -> None:
    """ENV-1."""
    made = bundle(small_root)
    made.prepare(["true"], env={})
    before = (made.path / "config.json").read_bytes()
    made.start(node.command(runtime))
    assert (made.path / "config.json").read_bytes() == before


@pytest.fixture
def wrapper(node: Node, tmp_path: Path) -> Callable[[str], Path]:
    """``cgpu-runtime`` with this node's flags as one program."""

    def write(runtime: str) -> Path:
        file = tmp_path / f"cgpu-{runtime.rsplit('/', 1)[-1]}"
        file.write_text(f'#!/bin/sh\nexec {" ".join(node.command(runtime))} "$@"\n')
        file.chmod(0o755)
        return file

    return write


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_ctr_gives_a_container_its_share(
    containerd: Containerd,
    overlay: Callable[[Path], Overlay],
    debian_root: Path,
    guests: list[Volume],
    wrapper: Callable[[str], Path],
    runtime: str,
) -> None:
    done = containerd.run(
        overlay(debian_root), *FILL, runtime=wrapper(runtime), env=ENV, volumes=guests
    )
    assert _is_at_the_cap(done.stdout)


def test_ctr_shows_why_a_container_is_refused(
    containerd: Containerd,
    overlay: Callable[[Path], Overlay],
    small_root: Path,
    wrapper: Callable[[str], Path],
) -> None:
    done = containerd.run(
        overlay(small_root), "true", runtime=wrapper(RUNC), env=share("six"), check=False
    )
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=six" in done.stderr


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_podman_with_our_runtime_gives_a_container_its_share(
    podman: Podman,
    podman_debian: str,
    guests: list[Volume],
    wrapper: Callable[[str], Path],
    runtime: str,
) -> None:
    options = ["--runtime", str(wrapper(runtime))]
    done = podman.run(podman_debian, *FILL, options=options, env=ENV, volumes=guests)
    assert _is_at_the_cap(done.stdout)


@pytest.fixture
def hooked(podman: Podman, node: Node) -> Iterator[Podman]:
    """podman with our hooks in its hooks directory, and no other change."""
    flags = {
        "prestart": ["--state-dir", str(node.state), "--driver-dir", str(node.driver)],
        "poststop": ["--state-dir", str(node.state)],
    }
    files = [podman.hooks / f"cgpu-{stage}.json" for stage in flags]
    for file, stage in zip(files, flags, strict=True):
        entry = {
            "version": "1.0.0",
            "hook": {"path": str(HOOK), "args": ["cgpu-hook", stage, *flags[stage]]},
            "when": {"always": True},
            "stages": [stage],
        }
        file.write_text(json.dumps(entry))
    yield podman
    for file in files:
        file.unlink()


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_with_our_hook_gives_a_container_its_share(
    hooked: Podman, podman_debian: str, guests: list[Volume], node: Node, runtime: str
) -> None:
    """CLI-1, REL-3."""
    options = ["--runtime", runtime]
    done = hooked.run(podman_debian, *FILL, options=options, env=ENV, volumes=guests)
    assert _is_at_the_cap(done.stdout)
    assert node.containers() == []


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_with_our_hook_refuses_bad_input(hooked: Podman, runtime: str) -> None:
    """ENV-9: crun shows no more of a hook than that it failed."""
    options = ["--runtime", runtime]
    done = hooked.run("small", "echo", "ran", options=options, env=share("six"), check=False)
    assert done.returncode != 0
    assert "ran" not in done.stdout
    assert runtime == "crun" or "ALIYUN_COM_GPU_MEM_CONTAINER=six" in done.stderr


def test_podman_with_our_hook_leaves_other_containers_alone(hooked: Podman) -> None:
    """ENV-1."""
    look = ["sh", "-c", "ls /dev; env"]
    assert "cgpu" not in hooked.run("small", *look).stdout
