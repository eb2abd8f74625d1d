"""The logic of ``cgpu plan`` on real configurations: says what would happen, changes nothing."""

from __future__ import annotations

import syslog
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_env.request import MEANT
from cgpu_hook.bundle import Creation, edit_bundle
from cgpu_hook.plan import Setting
from cgpu_hook.preview import preview_plan
from lab.worlds.hook import LIBDIR, SIX, World, snapshot

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def test_cli_7_a_plan_shows_limits_mounts_and_hooks_and_changes_nothing(world: World) -> None:
    world.write_config([*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1,0"])
    before = snapshot(world.folder)
    form = preview_plan(str(world.config), str(world.state), str(world.driver)).as_json()
    assert snapshot(world.folder) == before
    assert [(gpu["index"], gpu["cap_bytes"]) for gpu in form["gpus"]] == [
        (1, 6337173913),
        (0, 6337173913),
    ]
    assert f"{LIBDIR}/libcuda.so.1" in [mount["destination"] for mount in form["mounts"]]
    assert form["hooks"]["poststop"][0]["args"][-1] == "CONTAINER"


def test_a_plan_is_refused_where_no_state_directory_can_be(world: World) -> None:
    """CLI-8."""
    world.write_config([])
    match = r"^state directory .*: there is no directory .*/nowhere/a$"
    with pytest.raises(CgpuError, match=match):
        preview_plan(str(world.config), f"{world.state}/nowhere/a/b", str(world.driver))


def test_cli_7_the_plan_of_a_container_without_cgpu_is_empty(world: World) -> None:
    world.write_config([])
    plan = preview_plan(str(world.config), str(world.state), str(world.driver))
    assert plan.as_json()["gpus"] == []
    assert (plan.mounts, plan.notes) == ((), ())


def test_env_4_the_administrator_is_warned_of_a_container_without_a_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the plan, which logs nothing, and at creation, of which engines show nothing."""
    logged: list[object] = []
    monkeypatch.setattr("cgpu_hook.systemlog.log", lambda *given: logged.append(given))
    world.write_config([SIX[1]])
    [note] = preview_plan(str(world.config), str(world.state), str(world.driver)).notes
    assert note.startswith("ALIYUN_COM_GPU_MEM_DEV=15 has no effect without ")
    assert logged == []
    creation = Creation(str(world.config), str(world.folder), "c1", 1, "/nowhere")
    answers: list[str] = []
    edit_bundle(creation, Setting(str(world.state), str(world.driver)), answers.append)
    assert answers == [""]
    fields = {"container": "c1", "note": note, "do": MEANT}
    assert logged == [(syslog.LOG_WARNING, "size_missing", fields)]


def test_cli_7_a_refusal_is_the_sentence_of_creation_with_status_2(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]])
    with pytest.raises(CgpuError, match="ALIYUN_COM_GPU_MEM_CONTAINER=abc: expected") as caught:
        preview_plan(str(world.config), str(world.state), str(world.driver))
    assert caught.value.exit_code == 2


def test_a_configuration_without_its_root_file_system_can_be_planned(world: World) -> None:
    world.write_config(root={"path": "/nowhere"})
    plan = preview_plan(str(world.config), str(world.state), str(world.driver))
    assert plan.gpus
    assert "/dev/cgpu/limits" in [mount.destination for mount in plan.mounts]


def test_the_plan_of_a_container_without_a_cap_is_refused_as_its_creation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-7: a pod that has whole GPUs has no cap, but its configuration is edited too."""
    error = CgpuError("device /dev/nvidia0: No such file or directory")

    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr("cgpu_hook.preview.edit_config", refuse)
    world.write_config([])
    with pytest.raises(CgpuError, match=str(error)):
        preview_plan(str(world.config), str(world.state), str(world.driver))
