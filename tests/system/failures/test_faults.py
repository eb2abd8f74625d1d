"""What killed containers and killed creations leave behind: nothing (REL-3, REL-5)."""

from __future__ import annotations

import json
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.machine.node import T4, Node, share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle, Docker, Volume

pytestmark = pytest.mark.system
CGPU = ["--runtime=cgpu"]
CAPPED = ["ls", "/dev/cgpu/limits"]  # fails in a container without limits


def _pid(docker: Docker, name: str) -> str:
    return docker.docker("inspect", "--format={{.State.Pid}}", name).stdout.strip()


def test_a_container_killed_with_9_leaves_nothing(
    docker: Docker, enclosure: Enclosure, node: Node, started: Callable[..., str]
) -> None:
    """REL-3."""
    before = enclosure.mounts()
    name = started("small", "sleep", "1000", options=CGPU, env=share(6))
    assert node.containers() == [name]
    enclosure.run("kill", "-9", _pid(docker, name))
    wait_until(lambda: node.containers() == [], "the share is given back")
    wait_until(lambda: enclosure.mounts() == before, "every mount is gone")


def test_a_container_that_docker_restarts_gets_its_share_again(
    docker: Docker, enclosure: Enclosure, node: Node, started: Callable[..., str]
) -> None:
    """REL-3: it asks for the whole GPU each time, under the same id."""
    options = [*CGPU, "--restart=always"]
    name = started("small", "sleep", "1000", options=options, env=share(15))
    before = _pid(docker, name)
    enclosure.run("kill", "-9", before)
    wait_until(lambda: _pid(docker, name) not in {"0", before}, "docker has restarted it")
    docker.docker("exec", name, *CAPPED)
    assert node.containers() == [name]


def test_a_container_whose_shim_is_killed_gives_its_share_to_the_next(
    docker: Docker, enclosure: Enclosure, node: Node, started: Callable[..., str]
) -> None:
    """REL-3: nobody runs the poststop hook then; the next admission finds the share free."""
    name = started("small", "sleep", "1000", options=CGPU, env=share(15))
    pid = _pid(docker, name)
    parent = enclosure.run("ps", "-o", "ppid=", "-p", pid).stdout.strip()
    enclosure.run("kill", "-9", parent)
    enclosure.run("kill", "-9", pid, check=False)
    # Until the engine has deleted what the low-level runtime had of it, it may live.
    wait_until(lambda: _pid(docker, name) == "0", "docker has seen its end")
    docker.run("small", *CAPPED, options=CGPU, env=share(15))
    assert name not in node.containers()


def test_containers_that_start_at_once_get_no_more_than_there_is(
    docker: Docker, enclosure: Enclosure, node: Node
) -> None:
    """ENV-9, REL-3: eight ask for 2 of 15 GiB each; seven fit."""
    arguments = docker.arguments("small", ["sleep", "1000"], share(2), [])
    command = [*docker.client(), "run", "--detach", *CGPU, *arguments]
    starts = [enclosure.start(*command, stdout=PIPE, stderr=PIPE) for _ in range(8)]
    output = [start.communicate() for start in starts]
    try:
        refused = [err for (_, err), start in zip(output, starts, strict=True) if start.returncode]
        assert len(refused) == 1, refused
        assert "ALIYUN_COM_GPU_MEM_CONTAINER=2" in refused[0]
        assert len(node.containers()) == 7
    finally:
        docker.docker("rm", "--force", *docker.docker("ps", "-aq").stdout.split())
    assert node.containers() == []


def test_the_first_containers_of_a_machine_may_start_at_once(
    bundle: Callable[[Path], Bundle], small_root: Path, enclosure: Enclosure
) -> None:
    """ENV-9: the facts about the node are found out once, and everyone waits for them."""
    fresh = Node(enclosure.base / "fresh", T4)
    made = [bundle(small_root) for _ in range(6)]
    for each in made:
        each.prepare(CAPPED, share(2))
    starts = [
        enclosure.start(*each.start_command(fresh.command()), stdout=PIPE, stderr=PIPE)
        for each in made
    ]
    assert [start.communicate() for start in starts] == [("/dev/cgpu/limits\n", "")] * 6
    assert fresh.containers() == []


@pytest.mark.parametrize("milliseconds", range(0, 100, 10))
def test_a_creation_killed_at_any_point_leaves_its_share_to_the_next(
    bundle: Callable[[Path], Bundle], small_root: Path, node: Node, milliseconds: int
) -> None:
    """REL-3: the killed container asked for all memory, and so does the one after it."""
    killed, after = bundle(small_root), bundle(small_root)
    killed.prepare(["sleep", "1000"], env=share(15))
    command = [*node.command(), "create", "--bundle", str(killed.path), killed.id]
    enclosure = killed.enclosure
    script = f'"$@" <&- >&- 2>&- & pid=$!; usleep {milliseconds * 1000}; kill -9 $pid; wait $pid'
    enclosure.run("busybox", "sh", "-c", script, "sh", *command, check=False)
    enclosure.run("runc", "delete", "--force", killed.id, check=False)
    after.run(node.command(), *CAPPED, env=share(15))
    assert node.containers() == []


def test_a_container_does_not_reach_the_state_of_another(
    docker: Docker, started: Callable[..., str]
) -> None:
    """REL-5: what one container has of ours is its own, and nothing leads to the other's."""
    first = started("small", "sleep", "1000", options=CGPU, env=share(6))
    second = started("small", "sleep", "1000", options=CGPU, env=share(9))
    inode = ["stat", "-c", "%i", "/dev/cgpu/limits", "/dev/cgpu/ledger"]
    seen = [set(docker.docker("exec", c, *inode).stdout.split()) for c in (first, second)]
    assert len(seen[0] | seen[1]) == 4
    mounts = docker.docker("exec", first, "cat", "/proc/self/mountinfo").stdout
    assert first in mounts
    assert second not in mounts
    listing = docker.docker("exec", first, "find", "/dev/cgpu").stdout.split()
    assert sorted(listing) == [
        "/dev/cgpu",
        "/dev/cgpu/ledger",
        "/dev/cgpu/limits",
        "/dev/cgpu/real",
        "/dev/cgpu/real/libcuda.so.1",
        "/dev/cgpu/real/libnvidia-ml.so.1",
    ]


@pytest.mark.parametrize(
    "attack",
    [
        "echo x > /dev/cgpu/limits",
        "rm -f /dev/cgpu/limits",
        "mv /dev/cgpu/limits /dev/cgpu/other",
        "mount -o remount,rw /dev/cgpu/limits",
        "umount /dev/cgpu/limits",
        "echo x > /dev/cgpu/real/libcuda.so.1",
        "chmod 666 /dev/cgpu/limits",
    ],
)
def test_root_of_a_container_cannot_change_its_limits(
    docker: Docker, node: Node, attack: str, started: Callable[..., str]
) -> None:
    """REL-5, REL-6: with docker's default capabilities; only the arbiter's own fields move."""
    name = started("small", "sleep", "1000", options=CGPU, env=share(6))
    look = "md5sum /dev/cgpu/real/libcuda.so.1; stat -c '%i %a %s' /dev/cgpu/limits"

    def seen() -> tuple[object, ...]:
        page = cgpu_native.read_limits(node.state / "containers" / name / "limits")
        caps = [(gpu.uuid, gpu.index, gpu.cap_bytes, gpu.total_bytes) for gpu in page.gpus]
        return docker.docker("exec", name, "sh", "-c", look).stdout, page._replace(gpus=()), caps

    before = seen()
    done = docker.docker("exec", name, "sh", "-c", attack, check=False)
    assert done.returncode != 0
    assert seen() == before


def test_a_ledger_that_its_container_ruins_hurts_nobody_else(
    docker: Docker, debian: str, guests: list[Volume], started: Callable[..., str]
) -> None:
    """REL-5: a hostile container can only ruin its own ledger."""
    env = share(6)
    first = started(debian, "sleep", "1000", options=CGPU, env=env, volumes=guests)
    docker.docker(
        "exec", first, "sh", "-c", "head -c 4096 /dev/urandom > /dev/cgpu/ledger", check=False
    )
    env = share(9)
    program = contained.program("driver_api", "64")
    second = docker.run(debian, *program, options=CGPU, env=env, volumes=guests)
    assert json.loads(second.stdout)["refusal"] == "CUDA_ERROR_OUT_OF_MEMORY"
