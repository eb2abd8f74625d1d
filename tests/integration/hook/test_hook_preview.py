"""The logic of ``cgpu plan`` on real configurations: says what would happen, changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_hook.preview import preview
from lab.worlds.hook import LIBDIR, SIX, World, snapshot

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def test_cli_7_a_plan_shows_limits_mounts_and_hooks_and_changes_nothing(world: World) -> None:
    world.write_config([*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1,0"])
    before = snapshot(world.folder)
    form = preview(str(world.config), str(world.state), str(world.driver)).as_json()
    assert snapshot(world.folder) == before
    assert [(gpu["index"], gpu["cap_bytes"]) for gpu in form["gpus"]] == [
        (1, 6337173913),
        (0, 6337173913),
    ]
    assert f"{LIBDIR}/libcuda.so.1" in [mount["destination"] for mount in form["mounts"]]
    assert form["hooks"]["poststop"][0]["args"][-1] == "CONTAINER"


def test_cli_7_the_plan_of_a_container_without_cgpu_is_empty(world: World) -> None:
    world.write_config([])
    plan = preview(str(world.config), str(world.state), str(world.driver))
    assert plan.as_json()["gpus"] == []
    assert plan.mounts == ()


def test_cli_7_a_refusal_is_the_sentence_of_creation_with_status_2(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]])
    with pytest.raises(CgpuError, match="ALIYUN_COM_GPU_MEM_CONTAINER=abc: expected") as caught:
        preview(str(world.config), str(world.state), str(world.driver))
    assert caught.value.exit_code == 2


def test_a_configuration_without_its_root_file_system_can_be_planned(world: World) -> None:
    world.write_config(root={"path": "/nowhere"})
    plan = preview(str(world.config), str(world.state), str(world.driver))
    assert plan.gpus
    assert "/dev/cgpu/limits" in [mount.destination for mount in plan.mounts]
