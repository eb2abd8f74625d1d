"""cgpu-hook claim: what a container gets that has a claim, and when it does not start.

DRA-2, DRA-5, DRA-7, DRA-9.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_native import read_limits
from cgpu_node.shares.claimants import list_containers
from cgpu_node.shares.record import PodContainer
from lab.worlds.hook import LIBDIR, MIB, UID, Part, World, claim_hooks, hold, hook, low_level

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.integration

OTHER = "6a1d5e0e-0000-4000-8000-00000000000b"
FIRST: Part = (UID, (0,))
SHOW = "busybox cat /proc/self/mountinfo; busybox od -c /dev/cgpu/limits"


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def start(
    world: World,
    parts: Iterable[Part] = (FIRST,),
    command: str = SHOW,
    runtime: str = "runc",
    env: tuple[str, ...] = (),
    **config: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a container as an engine does that has the CDI devices of these parts of claims."""
    world.write_config([*env], command, hooks=claim_hooks(world, parts), **config)
    return subprocess.run(
        [str(low_level(runtime, world.folder)), "run", f"cgpu-test-{secrets.token_hex(4)}"],
        cwd=world.bundle, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def mounts_of(printed: str) -> list[str]:
    return [line.split()[4] for line in printed.splitlines() if " - " in line]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_dra_2_a_container_gets_the_libraries_and_the_share_of_its_claim(
    world: World, runtime: str
) -> None:
    hold(world)
    done = start(world, runtime=runtime)
    assert done.returncode == 0, done.stderr
    mounts = mounts_of(done.stdout)
    for path in ("/dev/cgpu", "/dev/cgpu/limits", "/dev/cgpu/ledger", f"{LIBDIR}/libcuda.so.1"):
        assert mounts.count(path) == 1
    assert "/dev/cgpu-sim/gpu0" in mounts
    assert "/dev/cgpu-sim/gpu1" not in mounts
    assert f"containers/{UID}/limits" in done.stdout
    assert world.shares() == [UID], "the share is the claim's, not the container's"
    assert world.server.calls() == 1


def test_dra_2_a_container_whose_claim_has_no_cores_starts_where_all_are_claimed(
    world: World,
) -> None:
    hold(world, uid=OTHER, weight=20)
    hold(world, weight=0)
    done = start(world)
    assert done.returncode == 0, done.stderr
    assert f"containers/{UID}/limits" in done.stdout
    limits = read_limits(world.state / "containers" / UID / "limits")
    assert (limits.weight, limits.gpus[0].cap_bytes) == (0, 2500 * MIB)
    assert 0 < limits.gpus[0].share_ppm < 10_000


def test_dra_7_the_claim_has_the_names_of_its_containers(world: World) -> None:
    """As the engine gives them; without any of them a container starts all the same."""
    hold(world)
    directory = str(world.state / "containers" / UID)
    assert start(world).returncode == 0
    assert list_containers(directory) == ()
    keys = "container-type", "sandbox-uid", "sandbox-namespace", "sandbox-name", "container-name"
    names = "container", "uid-one", "ml", "one", "main"
    notes = {f"io.kubernetes.cri.{key}": name for key, name in zip(keys, names, strict=True)}
    assert start(world, annotations=notes).returncode == 0
    assert list_containers(directory) == (PodContainer(*names[1:]),)
    both = {**notes, "io.kubernetes.cri-o.ContainerType": "container"}
    done = start(world, annotations={**both, "io.kubernetes.pod.name": "forged"})
    assert done.returncode == 0, done.stderr
    assert list_containers(directory) == (PodContainer(*names[1:]),)


def test_a_claim_that_is_named_twice_is_given_once(world: World) -> None:
    hold(world)
    done = start(world, [FIRST, FIRST])
    assert done.returncode == 0, done.stderr
    assert mounts_of(done.stdout).count("/dev/cgpu/limits") == 1


@pytest.mark.parametrize(("parts", "seen"), [
    ([(UID, (1,))], {1}), ([(UID, (0,)), (UID, (1,))], {0, 1}), ([(UID, (0, 1))], {0, 1}),
])  # fmt: skip
def test_dra_2_a_container_sees_the_gpus_of_the_requests_that_it_names(
    world: World, parts: list[Part], seen: set[int]
) -> None:
    hold(world, 0, 1)
    done = start(world, parts)
    assert done.returncode == 0, done.stderr
    mounts = mounts_of(done.stdout)
    assert {number for number in range(2) if f"/dev/cgpu-sim/gpu{number}" in mounts} == seen
    assert mounts.count("/dev/cgpu/limits") == 1


def test_dra_5_gpus_that_the_claim_does_not_hold_are_refused(world: World) -> None:
    hold(world, 0)
    done = start(world, [(UID, (0, 1))], "echo started")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert f"cgpu: claim {UID}: the container is to have GPU-" in done.stderr


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_dra_5_a_container_with_two_claims_does_not_start(world: World, runtime: str) -> None:
    hold(world)
    hold(world, 1, uid=OTHER)
    done = start(world, [FIRST, (OTHER, (1,))], "echo started", runtime)
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "cgpu: the container has several claims of cgpu's: expected one" in done.stderr


def test_dra_5_a_container_that_has_another_gpu_besides_does_not_start(world: World) -> None:
    """A privileged one has all of the host's devices; another driver's claim may give one."""
    hold(world)
    hold(world, 1, uid=OTHER)
    for part, other in ((FIRST, 1), ((OTHER, (1,)), 0)):
        path = f"/dev/cgpu-sim/gpu{other}"
        linux: dict[str, Any] = {"devices": [{"path": path, "type": "c", "major": 1, "minor": 3}]}
        linux["namespaces"] = [{"type": each} for each in ("pid", "ipc", "uts", "mount")]
        done = start(world, [part], "echo started", linux=linux)
        assert done.returncode != 0
        assert "started" not in done.stdout
        assert f"the engine gives the container {path}, which is not among its" in done.stderr


@pytest.mark.parametrize("held", [None, "container", "session"])
def test_dra_5_without_a_share_of_the_claim_nothing_starts(world: World, held: str | None) -> None:
    if held:
        hold(world, kind=held)
    done = start(world, command="echo started")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert f"cgpu: claim {UID}: nothing is held for it on this node" in done.stderr


def test_dra_9_the_claim_is_in_the_hooks_arguments_alone(world: World) -> None:
    """Neither a path that leads elsewhere counts, nor a variable or annotation."""
    hold(world, 1, uid=OTHER)
    state = json.dumps({"id": "c1", "pid": 2, "bundle": str(world.bundle)}).encode()
    world.write_config([f"CGPU_CLAIM={OTHER}"], annotations={"cgpu/claim": OTHER})
    for uid in (UID, f"../containers/{OTHER}"):
        done = hook("claim", "--claim", uid, "--state-dir", str(world.state), data=state)
        assert done.returncode == 1
        assert b"nothing is held for it" in done.stderr


@pytest.mark.parametrize(
    "variable",
    ["CGPU_DISABLE=true", "ALIYUN_COM_GPU_MEM_CONTAINER=9", "NVIDIA_VISIBLE_DEVICES=all"],
)
def test_dra_9_no_variable_changes_what_a_claim_gives(world: World, variable: str) -> None:
    hold(world)
    done = start(world, env=(variable,))
    assert done.returncode == 0, done.stderr
    mounts = mounts_of(done.stdout)
    assert f"containers/{UID}/limits" in done.stdout
    assert {"/dev/cgpu/limits", f"{LIBDIR}/libcuda.so.1", "/dev/cgpu-sim/gpu0"} <= {*mounts}
    assert "/dev/cgpu-sim/gpu1" not in mounts


@pytest.mark.parametrize("path", ["/dev/cgpu", "/dev/cgpu/limits", "/dev"])
@pytest.mark.parametrize("parts", [[FIRST], [FIRST, FIRST]])
def test_dra_5_a_mount_of_the_users_at_our_place_is_refused(
    world: World, path: str, parts: list[Part]
) -> None:
    hold(world)
    (world.folder / "theirs").mkdir()
    (world.folder / "theirs" / "limits").write_text("mine")
    mine = world.folder / "theirs" / ("limits" if path.endswith("limits") else "")
    device = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
    theirs = {"destination": path, "type": "bind", "source": str(mine), "options": ["rbind"]}
    done = start(world, parts, "echo started", mounts=[device, theirs])
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "covers /dev/cgpu, where the container's limits belong: not allowed" in done.stderr


def test_dra_5_a_gpu_that_was_lost_since_is_named(world: World) -> None:
    hold(world)
    path = world.state / "node.json"
    facts = json.loads(path.read_text())
    facts["lost"] = [{**facts["gpus"].pop(0), "lost": "it fell off the bus; reboot"}]
    path.write_text(json.dumps(facts))
    done = start(world, command="echo started")
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "cgpu: " in done.stderr


def test_a_state_that_is_none_is_refused(world: World) -> None:
    done = hook("claim", "--claim", UID, "--state-dir", str(world.state), data=b"{}")
    assert done.returncode == 1
    assert b"cgpu-hook claim belongs to the prestart or createRuntime stage" in done.stderr
