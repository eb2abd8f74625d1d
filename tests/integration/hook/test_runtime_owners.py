"""REL-3: a share stays while its container lives, whatever the low-level runtime's file is called.

The folder of a container's state depends on which runtime it is, and engines such as podman do not
name it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.worlds.hook import World, low_level

pytestmark = pytest.mark.integration
TEN = ["ALIYUN_COM_GPU_MEM_CONTAINER=10", "ALIYUN_COM_GPU_MEM_DEV=15"]
Create = Callable[..., str]


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


NAMES = [
    ("runc", "runc-1.1.5-linux"),
    ("crun", "crun-1.14-linux-amd64"),
    ("runc", "low"),
    ("crun", "low"),
]


@pytest.fixture(params=NAMES, ids="-as-".join)
def renamed(request: pytest.FixtureRequest, world: World) -> Path:
    """The real runtime in a file of another name."""
    original, name = request.param
    path = world.folder / name
    shutil.copy(low_level(original, world.folder), path)
    return path


@pytest.fixture
def create(world: World, renamed: Path) -> Iterator[Create]:
    """Creates containers, and removes them when the test ends."""
    made = []

    def do(*, status: int = 0, **more: object) -> str:
        world.write_config(TEN, "sleep 1000")
        name = f"cgpu-test-{secrets.token_hex(4)}"
        made.append(name)
        done = world.runtime("create", name, lowlevel=renamed, **more)
        assert (done.returncode != 0) == (status != 0), done
        return name

    yield do
    for name in made:
        world.runtime("delete", "--force", name, lowlevel=renamed)


def test_rel_3_a_share_is_kept_while_its_container_lives(world: World, create: Create) -> None:
    """20 of 15 GiB were promised: each launcher gave back the share of its living container."""
    first = create()
    assert world.shares() == [first]
    create(status=1)
    assert world.shares() == [first]


def test_rel_3_it_is_given_back_when_the_container_is_deleted(
    world: World, renamed: Path, create: Create
) -> None:
    first = create()
    done = world.runtime("delete", "--force", first, lowlevel=renamed)
    assert done.returncode == 0, done
    second = create()
    assert world.shares() == [second]


def test_rel_3_it_is_given_back_after_a_run_in_the_foreground(world: World, renamed: Path) -> None:
    world.write_config(TEN)
    done = world.runtime("run", f"cgpu-test-{secrets.token_hex(4)}", lowlevel=renamed)
    assert done.returncode == 0, done
    assert world.shares() == []


def test_rel_3_the_folder_that_a_user_has_for_it_makes_no_difference(
    world: World, renamed: Path, create: Create, tmp_path: Path
) -> None:
    """crun looks there, for root too; runc does not."""
    runs = {"env": {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}}
    first = create(**runs)
    create(status=1)
    assert world.shares() == [first]
    world.runtime("delete", "--force", first, lowlevel=renamed, **runs)


def test_rel_3_a_share_that_cannot_be_kept_takes_its_container_with_it(world: World) -> None:
    """The runtime has it in no folder that is known, and the state directory cannot be locked."""
    world.write_config(TEN)
    stub = world.folder / "low"
    lock, deleted, log = world.state / "lock", world.folder / "deleted", world.folder / "log"
    stub.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in\n'
        f'state) rm {lock}; mkdir {lock}; echo \'{{"id": "c1", "pid": {os.getpid()}}}\';;\n'
        f'delete) echo "$@" > {deleted};;\n'
        "esac; done\n"
    )
    stub.chmod(0o755)
    done = world.runtime("--log", str(log), "create", "c1", lowlevel=stub)
    assert done.returncode == 1, done
    assert deleted.read_text() == f"--log {log} delete --force c1\n"
    assert "Is a directory" in log.read_text()
