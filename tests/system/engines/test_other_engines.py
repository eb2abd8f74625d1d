"""The main case with runc, crun, ctr and podman themselves (CLI-1, ENV-9, REL-3, REL-9)."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.machine.node import CRUN, HOOK, ROOT, RUNC, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab.containers.engines import Bundle, Containerd, Overlay, Podman, Volume
    from lab.machine.node import Node

pytestmark = pytest.mark.system
MIB = 1 << 20
CAP = 15109 * MIB * 6 // 15
ENV = share(6)
FILL = contained.program("driver_api", "16")
LOW_LEVEL = [RUNC, CRUN]


def _is_at_the_cap(stdout: str) -> bool:
    # among the lines of ctr there is also what the program wrote to its other output
    report = json.loads(next(line for line in stdout.splitlines() if line.startswith("{")))
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


ROUTES = ["podman-hooks.d", "crio-hooks.d"]  # precreate; prestart and poststop


@pytest.fixture(params=ROUTES)
def hooked(request: pytest.FixtureRequest, podman: Podman, node: Node) -> Iterator[Podman]:
    """podman with the hooks that ``deploy`` offers in its hooks directory, and no other change."""
    with hooks(podman, request.param, node, str(node.state)):
        yield podman


@contextmanager
def hooks(podman: Podman, route: str, node: Node, state: str) -> Iterator[None]:
    """Those of this folder."""
    copies = []
    for source in sorted((ROOT / "deploy" / route).glob("*.json")):
        entry = json.loads(source.read_text().replace("/run/cgpu", state))
        entry["hook"]["path"] = str(HOOK)
        if entry["stages"] != ["poststop"]:
            entry["hook"]["args"] += ["--driver-dir", str(node.driver)]
        copies.append(podman.hooks / source.name)
        copies[-1].write_text(json.dumps(entry))
    yield
    for copy in copies:
        copy.unlink()


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_with_our_hooks_gives_a_container_its_share(
    hooked: Podman, podman_debian: str, guests: list[Volume], node: Node, runtime: str
) -> None:
    """CLI-1, REL-3."""
    options = ["--runtime", runtime]
    done = hooked.run(podman_debian, *FILL, options=options, env=ENV, volumes=guests)
    assert _is_at_the_cap(done.stdout)
    assert node.containers() == []


@pytest.mark.parametrize("route", ROUTES)
def test_podman_with_our_hooks_mounts_the_proxies_from_an_overlay(
    podman: Podman, podman_debian: str, node: Node, route: str
) -> None:
    """In root's own state directory."""
    look = ["grep", "libcuda.so.1 ", "/proc/self/mountinfo"]
    with hooks(podman, route, node, "/run/cgpu"):
        done = podman.run(podman_debian, *look, env=ENV)
    found = {line.split()[4]: " - overlay " in line for line in done.stdout.splitlines()}
    assert found.pop("/dev/cgpu/real/libcuda.so.1") is False
    assert set(found.values()) == {True}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_podman_with_our_hooks_refuses_bad_input(hooked: Podman, runtime: str) -> None:
    """ENV-9: podman and crun keep what a hook says to themselves; the container does not start."""
    options = ["--runtime", runtime]
    done = hooked.run("small", "echo", "ran", options=options, env=share("six"), check=False)
    assert done.returncode != 0
    assert "ran" not in done.stdout
    assert "hook" in done.stderr


def test_podman_with_our_hooks_needs_no_control_group(
    hooked: Podman, podman_debian: str, guests: list[Volume], node: Node
) -> None:
    """``--cgroups=disabled``, which crun can."""
    answer: dict[str, Any] = {"options": ["--runtime", "crun"], "is_grouped": False}
    done = hooked.run(podman_debian, *FILL, env=ENV, volumes=guests, **answer)
    assert _is_at_the_cap(done.stdout)
    assert node.containers() == []


@pytest.mark.parametrize("is_set", [True, False])
def test_podman_has_to_be_told_that_our_runtime_needs_no_control_group(
    podman: Podman,
    guests: list[Volume],
    wrapper: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    *,
    is_set: bool,
) -> None:
    """It knows by their names which runtimes can do without; ours can if crun is behind it."""
    names = 'runtime_supports_nocgroup = ["cgpu"]\n' if is_set else ""
    configuration = tmp_path / "containers.conf"
    program = wrapper(CRUN)
    configuration.write_text(f'[engine]\n{names}[engine.runtimes]\ncgpu = ["{program}"]\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(configuration))
    answer: dict[str, Any] = {"options": ["--runtime", "cgpu"], "is_grouped": False}
    image = request.getfixturevalue("podman_debian")
    done = podman.run(image, *FILL, env=ENV, volumes=guests, check=False, **answer)
    if is_set:
        assert _is_at_the_cap(done.stdout)
    else:
        assert "OCI runtime cgpu is not compatible with NoCgroups" in done.stderr


def test_podman_with_our_hooks_leaves_other_containers_alone(hooked: Podman) -> None:
    """ENV-1."""
    look = ["sh", "-c", "ls /dev; env"]
    assert "cgpu" not in hooked.run("small", *look).stdout


def test_a_podman_container_killed_with_9_leaves_nothing(
    podman: Podman, node: Node, wrapper: Callable[[str], Path]
) -> None:
    """REL-3."""
    options = ["--runtime", str(wrapper(RUNC))]
    before = podman.enclosure.mounts()
    made = podman.run("small", "sleep", "1000", options=options, env=ENV, detach=True)
    assert node.containers() == [made.stdout.strip()]
    podman.podman("kill", "--signal=KILL", made.stdout.strip(), options=options)
    wait_until(lambda: node.containers() == [], "the share is given back")
    wait_until(lambda: podman.enclosure.mounts() == before, "every mount is gone")


@pytest.mark.parametrize("name", ["crun-1.14-linux-amd64", "low"])
def test_podman_keeps_to_the_memory_there_is_whatever_its_runtime_is_called(
    podman: Podman, node: Node, wrapper: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """REL-3: 20 of 15 GiB were promised, because nobody knew where crun keeps its state."""
    options = ["--runtime", str(wrapper(str(shutil.copy(CRUN, tmp_path / name))))]

    def sleeper(*, check: bool = True) -> str:
        answer: dict[str, Any] = {"options": options, "env": share(10), "detach": True}
        return podman.run("small", "sleep", "1000", check=check, **answer).stdout.strip()

    first = sleeper()
    sleeper(check=False)
    assert node.containers() == [first]
    podman.podman("kill", "--signal=KILL", first, options=options)
    wait_until(lambda: node.containers() == [], "the share is given back")


@pytest.mark.parametrize("runtime", LOW_LEVEL)
def test_a_bundle_with_a_user_namespace_gets_its_share(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node, runtime: str
) -> None:
    """CLI-1: root of the container is nobody on the host."""
    made = bundle(small_root)
    made.enclosure.run("chown", "--recursive", "--no-dereference", "300000:300000", made.root)

    def change(config: dict[str, Any]) -> None:
        mapping = [{"containerID": 0, "hostID": 300000, "size": 65536}]
        config["linux"]["namespaces"].append({"type": "user"})
        config["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}

    made.configure(change)
    script = "id -u && cat /dev/cgpu/limits > /dev/null && : >> /dev/cgpu/ledger && echo capped"
    assert made.run(node.command(runtime), "sh", "-c", script, env=ENV).stdout == "0\ncapped\n"
