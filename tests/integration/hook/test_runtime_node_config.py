"""cgpu-runtime and the node's configuration under /etc/cgpu, in a private view of /etc."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cgpu_node.shares.registry import Registry
from lab.shares.changing import change_default
from lab.worlds import cgpu_run as cgpu_run_world
from lab.worlds.hook import LIBDIR, RUNTIME, SIX, World

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    world = World(tmp_path / "world")
    (world.folder / "etc" / "cgpu").mkdir(parents=True)
    return world


def create(world: World, *options: str) -> subprocess.CompletedProcess[str]:
    """Create a container on a machine whose /etc holds what the test put there."""
    script = f'mount --bind {world.folder}/etc /etc && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(RUNTIME), *options, "create", "c1"],
        cwd=world.bundle, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def configure(world: World, text: str) -> None:
    (world.folder / "etc" / "cgpu" / "config.toml").write_text(text)


@pytest.mark.parametrize("size", ["1048576", '"6/15"'])
def test_env_4_the_default_size_caps_a_container_that_names_none(world: World, size: str) -> None:
    configure(world, f"[node]\ndefault_memsize = {size}\n")
    world.write_config([])
    done = create(world, *world.options(world.stub()))
    assert done.returncode == 0, done
    assert "/dev/cgpu/limits" in [mount["destination"] for mount in world.edited()["mounts"]]


@pytest.mark.parametrize("written", ["CGPU_DISABLE=true", "ALIYUN_COM_GPU_MEM_CONTAINER=0"])
def test_env_12_a_node_can_forbid_what_an_image_says(world: World, written: str) -> None:
    """ENV-12: otherwise it overrides the node's default size."""
    node = "[node]\ndefault_memsize = 1048576\n"
    world.write_config([written])
    before = world.config.read_bytes()
    configure(world, node)
    assert create(world, *world.options(world.stub())).returncode == 0
    assert world.config.read_bytes() == before
    configure(world, f"{node}allow_off = false\n")
    done = create(world, *world.options(world.stub()))
    sentence = f"cgpu: {written}: this node lets no container switch cgpu off (allow_off)\n"
    assert (done.returncode, done.stderr) == (1, sentence)
    assert world.config.read_bytes() == before


@pytest.mark.parametrize("size", [1 << 20, "40%"])
def test_env_4_a_default_size_that_was_changed_caps_the_next_container(
    world: World, size: int | str
) -> None:
    """TREE: the launcher looks for it without Python, where the server keeps it."""
    world.write_config([])
    before = world.config.read_bytes()
    assert create(world, *world.options(world.stub())).returncode == 0
    assert world.config.read_bytes() == before
    change_default(Registry(str(world.state)), size)
    assert create(world, *world.options(world.stub())).returncode == 0
    assert "/dev/cgpu/limits" in [mount["destination"] for mount in world.edited()["mounts"]]


@pytest.mark.parametrize(
    "content", ['{"default_memsize": 1', '{"version": 9, "default_memsize": 1}']
)
def test_env_4_a_default_size_that_cannot_be_read_refuses_creation(
    world: World, content: str
) -> None:
    """The file is damaged, or of a later release: the container would start without its cap."""
    (world.state / "rules.json").write_text(content)
    world.write_config([])
    done = create(world, *world.options(world.stub()))
    assert done.returncode == 1
    assert done.stderr.startswith(f"cgpu: {world.state}/rules.json: default_memsize cannot be read")
    assert world.call() is None
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=0"])
    assert create(world, *world.options(world.stub())).returncode == 0


def test_env_4_a_container_can_leave_the_default_size(world: World) -> None:
    configure(world, "[node]\ndefault_memsize = 1048576\n")
    for env in (["ALIYUN_COM_GPU_MEM_CONTAINER=0"], ["CGPU_DISABLE=true"]):
        world.write_config(env)
        before = world.config.read_bytes()
        assert create(world, *world.options(world.stub())).returncode == 0
        assert world.config.read_bytes() == before


@pytest.mark.parametrize("text", ["default_memsize", "[node]\ndefault_memsize = -1\n", "[x]\n"])
def test_rel_1_a_wrong_configuration_refuses_creation(world: World, text: str) -> None:
    configure(world, text)
    world.write_config(SIX)
    done = create(world, *world.options(world.stub()))
    assert done.returncode == 1
    assert done.stderr.startswith("cgpu: /etc/cgpu/config.toml: ")
    assert world.call() is None


def test_rel_1_a_configuration_that_is_no_file_refuses_creation(world: World) -> None:
    (world.folder / "etc" / "cgpu" / "config.toml").mkdir()
    world.write_config([])
    done = create(world, *world.options(world.stub()))
    assert done.returncode == 1
    assert "/etc/cgpu/config.toml" in done.stderr


def test_the_low_level_runtime_is_the_one_that_etc_names(world: World) -> None:
    link = world.folder / "etc" / "cgpu" / "runtime"
    link.symlink_to(world.stub())
    world.write_config([])
    options = world.options("unused")[1:]
    assert create(world, *options).stdout == "stub output\n"
    link.unlink()
    link.symlink_to("/etc/cgpu")
    assert "does not lead to a runtime" in create(world, *options).stderr
    link.unlink()
    link.symlink_to(RUNTIME)
    assert "does not lead to a runtime" in create(world, *options).stderr


@pytest.mark.parametrize(
    ("default", "owner"),
    [
        (0, cgpu_run_world.NOBODY),
        (1 << 20, cgpu_run_world.NOBODY),
        (1 << 20, cgpu_run_world.NOBODY - 1),
    ],
)
def test_env_4_a_users_own_default_size_caps_the_users_containers(default: int, owner: int) -> None:
    """TREE: without root and without an option, as `cgpu set node` of the same user keeps it.

    What another user has put where the user's state would be concerns no container.
    """
    user = cgpu_run_world.World(root=False)
    bundle = user.folder / "bundle"
    (bundle / "rootfs" / LIBDIR[1:]).mkdir(parents=True)
    (bundle / "rootfs" / LIBDIR[1:] / "libc.so.6").write_text("")
    dev = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []}
    config = {"process": {"env": []}, "root": {"path": "rootfs"}, "mounts": [dev]}
    (bundle / "config.json").write_text(json.dumps(config))
    user.state.mkdir(mode=0o700)
    if default:
        change_default(Registry(str(user.state)), default)
    for path in (bundle, bundle / "config.json"):
        os.chown(path, cgpu_run_world.NOBODY, cgpu_run_world.NOBODY)
    for path in (user.state, *user.state.iterdir()):
        os.chown(path, owner, owner)
        path.chmod(path.stat().st_mode | (0o5 if owner != cgpu_run_world.NOBODY else 0))
    words = [RUNTIME, "--cgpu-runtime", "/bin/true", "--cgpu-driver-dir", user.driver]
    create = [*words, "create", "--bundle", bundle, "c1"]
    done = user.run_command(user.as_user([str(word) for word in create]))
    assert done.returncode == 0, done
    mounts = json.loads((bundle / "config.json").read_text())["mounts"]
    assert ("/dev/cgpu/limits" in [each["destination"] for each in mounts]) == (
        bool(default) and owner == cgpu_run_world.NOBODY
    )
