"""cgpu-hook at its stages: poststop, prestart and precreate, without cgpu-runtime."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cgpu_node.shares import record
from lab.worlds.hook import HOOK, LIBDIR, SIX, World, hook, low_level

pytestmark = pytest.mark.integration
SHOW_MOUNTS = "busybox cat /proc/self/mountinfo"


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def fill(world: World, name: str) -> Path:
    folder = world.state / "containers" / name
    folder.mkdir(parents=True)
    for file in record.FILES:
        (folder / file).write_text("x")
    return folder


def test_rel_3_poststop_removes_the_containers_directory(world: World) -> None:
    fill(world, "c1")
    fill(world, "c2")
    done = hook("poststop", "--state-dir", str(world.state), "c1", data=b'{"id": "c2"}')
    assert (done.returncode, done.stderr) == (0, b"")
    assert world.shares() == ["c2"]
    assert world.server.calls() == 1, "the server gets a message"


def test_poststop_is_content_where_another_removes_the_directory_meanwhile(world: World) -> None:
    """As the server and the next admission do; here it goes and comes back all the time."""
    folder, gone = world.state / "containers" / "c1", world.state / "gone"
    for _ in range(50):
        fill(world, "c1")
        words = [str(HOOK), "poststop", "--state-dir", str(world.state), "c1"]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with suppress(FileNotFoundError):  # the hook has removed it
            while process.poll() is None:
                folder.rename(gone)
                gone.rename(folder)
        assert process.communicate(timeout=30)[1] == b""
        assert process.returncode == 0
        for each in (folder, gone):
            shutil.rmtree(each, ignore_errors=True)


def test_poststop_takes_the_id_from_the_state_where_it_is_not_given(world: World) -> None:
    fill(world, "c1")
    state = {"annotations": {"id": "c2", "x": '"id":"c3"'}, "id": "c1", "pid": 0}
    done = hook("poststop", "--state-dir", str(world.state), data=json.dumps(state).encode())
    assert done.returncode == 0
    assert world.shares() == []


def test_poststop_of_a_container_without_a_share_is_no_error(world: World) -> None:
    assert hook("poststop", "--state-dir", str(world.state), "c1").returncode == 0
    assert hook("poststop", "--state-dir", "/nowhere", "c1").returncode == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"id": 3}',
        b'{"id": "a", "id": "b"}',
        b'{"id": "\\u0063"}',
        b'{"x": {"id": "c1"}}',
        b'["id", "c1"]',
        b'{"id": "../c1"}',
        b'{"id": "c1',
        b'{"id": "c1\\',
        b'{"id":',
        b'{"id"',
        b'"id": "c1"',
        b'{"id": "' + b"a" * 300 + b'"}',
        b"\0" * 100,
        b'{"' * 100000,
    ],
)
def test_rel_4_an_odd_state_names_no_container(world: World, data: bytes) -> None:
    fill(world, "c1")
    done = hook("poststop", "--state-dir", str(world.state), data=data)
    assert done.returncode == 1
    assert b"no id of a container" in done.stderr
    assert world.shares() == ["c1"]


def test_rel_4_poststop_follows_no_link_and_removes_nothing_unknown(world: World) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (outside / "limits").write_text("precious")
    (world.state / "containers").mkdir()
    (world.state / "containers" / "c1").symlink_to(outside)
    assert hook("poststop", "--state-dir", str(world.state), "c1").returncode == 1
    assert (outside / "limits").read_text() == "precious"
    stranger = fill(world, "c2") / "stranger"
    stranger.write_text("x")
    assert hook("poststop", "--state-dir", str(world.state), "c2").returncode == 1
    assert stranger.exists()


def test_rel_4_hooks_use_neither_environment_nor_directory_of_the_caller(world: World) -> None:
    fill(world, "c1")
    (world.folder / "json.py").write_text("raise SystemExit(7)")
    env = {"LD_PRELOAD": "/proc/self/cwd/x.so", "PYTHONPATH": ".", "LD_LIBRARY_PATH": "."}
    done = hook("poststop", "--state-dir", str(world.state), "c1", env=env, cwd=world.folder)
    assert (done.returncode, done.stderr) == (0, b"")


def stages(world: World, stage: str) -> dict[str, Any]:
    places = ["--state-dir", str(world.state)]
    prestart = ["cgpu-hook", "prestart", *places, "--driver-dir", str(world.driver)]
    return {
        stage: [{"path": str(HOOK), "args": prestart}],
        "poststop": [{"path": str(HOOK), "args": ["cgpu-hook", "poststop", *places]}],
    }


def run_with_hooks(
    world: World, runtime: Path, stage: str = "prestart"
) -> subprocess.CompletedProcess[str]:
    config = world.edited()
    world.write_config(
        config["process"]["env"], config["process"]["args"][2], hooks=stages(world, stage)
    )
    return subprocess.run(
        [str(runtime), "run", f"cgpu-test-{secrets.token_hex(4)}"],
        cwd=world.bundle, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("name", ["runc", "crun"])
def test_prestart_caps_a_container_of_a_plain_runtime(world: World, name: str, stage: str) -> None:
    (world.rootfs / LIBDIR[1:] / "libnvidia-opencl.so.535.1").write_text("bypass")
    compat = world.rootfs / "usr/local/cuda-12.2/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.535.1").write_text("bypass")
    world.write_config(
        command=f"{SHOW_MOUNTS}; busybox ls {compat.relative_to(world.rootfs)}; "
        f"busybox cat {LIBDIR}/libnvidia-opencl.so.535.1; busybox ls /dev/cgpu"
    )
    done = run_with_hooks(world, low_level(name, world.folder), stage)
    lines = done.stdout.splitlines()
    mounts = {line.split()[4]: line.split()[5] for line in lines if len(line.split()) > 6}
    assert mounts["/dev/cgpu"].startswith("ro,nosuid,nodev,noexec"), done
    assert mounts["/dev/cgpu/limits"].startswith("ro,nosuid,nodev")
    assert mounts["/dev/cgpu/ledger"].startswith("rw,nosuid,nodev,noexec")
    assert mounts[f"{LIBDIR}/libcuda.so.1"] == "ro,nosuid,nodev,relatime"
    assert lines[-3:] == ["ledger", "limits", "real"]
    assert "bypass" not in done.stdout
    assert world.shares() == []


def test_prestart_leaves_the_hosts_mounts_alone(world: World) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    world.write_config()
    assert run_with_hooks(world, low_level("runc", world.folder)).returncode == 0
    assert Path("/proc/self/mountinfo").read_text() == before


def test_prestart_lets_a_container_pass_that_does_not_concern_it(world: World) -> None:
    world.write_config([], SHOW_MOUNTS)
    done = run_with_hooks(world, low_level("runc", world.folder))
    assert done.returncode == 0
    assert "cgpu" not in done.stdout


def test_prestart_succeeds_where_its_standard_output_is_closed(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=0"])
    state = json.dumps({"id": "c1", "pid": 2, "bundle": str(world.bundle)})
    words = ["sh", "-c", 'exec "$@" >&-', "sh", HOOK, "prestart", "--state-dir", world.state]
    done = subprocess.run(words, input=state, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_rel_1_prestart_refuses_bad_input_and_the_container_does_not_start(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]], "echo started")
    done = run_with_hooks(world, low_level("runc", world.folder))
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=abc: expected whole GiB" in done.stderr
    assert world.shares() == []


def test_env_9_a_users_mount_in_place_of_the_limits_does_not_keep_prestart_away(
    world: World,
) -> None:
    """ENV-9: whoever chooses the mounts could else start a container without limits."""
    world.write_config(command="echo started", hooks=stages(world, "prestart"))
    config = world.edited()
    places = ["/dev/cgpu/limits", "/dev/cgpu/ledger"]
    config["mounts"] += [
        {"destination": place, "type": "bind", "source": str(world.runs), "options": ["bind"]}
        for place in places
    ]
    world.config.write_text(json.dumps(config))
    done = subprocess.run(
        [str(low_level("runc", world.folder)), "run", f"cgpu-test-{secrets.token_hex(4)}"],
        cwd=world.bundle, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "covers /dev/cgpu" in done.stderr
    assert world.shares() == []


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_rel_4_prestart_refuses_a_link_where_it_would_mount(world: World, name: str) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (world.rootfs / LIBDIR[1:] / name).symlink_to(outside / "new")
    world.write_config(command="echo started")
    done = run_with_hooks(world, low_level("runc", world.folder))
    assert done.returncode != 0
    assert "started" not in done.stdout
    assert "symbolic link" in done.stderr
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_nvidias_legacy_hook_comes_first_and_its_files_are_covered(world: World, name: str) -> None:
    """A stand-in for the vendor's hook puts a driver into the container, as a prestart hook."""
    vendor = world.folder / "nvidia-container-runtime-hook"
    libraries = world.rootfs / LIBDIR[1:]
    vendor.write_text(
        f"#!/bin/sh\ncat > {world.folder}/state\necho bypass > {libraries}/libcuda.so.535.9\n"
        f"ln -sf libcuda.so.535.9 {libraries}/libcuda.so.1\n"
    )
    vendor.chmod(0o755)
    world.write_config(
        [*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES=all"],
        f"busybox head -c 4 {LIBDIR}/libcuda.so.1; busybox env | busybox grep NVIDIA",
        hooks={"prestart": [{"path": str(vendor), "args": [vendor.name, "prestart"]}]},
    )
    container = f"cgpu-test-{secrets.token_hex(4)}"
    done = world.runtime("run", container, lowlevel=low_level(name, world.folder))
    assert done.returncode == 0, done
    assert done.stdout == (
        "\x7fELFNVIDIA_VISIBLE_DEVICES=GPU-10000000-0000-4000-8000-000000000000\n"
    )
    assert (libraries / "libcuda.so.535.9").read_text() == "bypass\n"
    assert world.shares() == []


@pytest.mark.parametrize(
    "state",
    [b"", b"{}", b"[]", b'{"id": "c", "pid": 0, "bundle": "/"}', b'{"id": "c", "bundle": "/x"}'],
)
def test_rel_1_prestart_without_a_usable_state_refuses(world: World, state: bytes) -> None:
    done = hook("prestart", "--state-dir", str(world.state), data=state)
    assert done.returncode == 1
    assert done.stderr.startswith(b"cgpu: the state on stdin has no id, pid and bundle")


def test_rel_1_prestart_at_a_stage_that_hides_the_pid_refuses(world: World) -> None:
    """In createContainer runc says pid 1, crun 0."""
    world.write_config()
    state = {"id": "c1", "pid": 1, "bundle": str(world.bundle), "annotations": {"bundle": "/x"}}
    done = hook("prestart", data=json.dumps(state).encode())
    assert done.returncode == 1
    assert b"belongs to the prestart or createRuntime stage" in done.stderr


def precreate(world: World, **extra: Any) -> subprocess.CompletedProcess[bytes]:
    config = world.edited()
    config["root"]["path"] = str(world.rootfs)
    config.update(extra)
    places = ["--state-dir", str(world.state), "--driver-dir", str(world.driver)]
    return hook("precreate", *places, data=json.dumps(config).encode(), cwd=world.bundle)


def test_precreate_changes_podmans_configuration_on_its_way(world: World) -> None:
    world.write_config()
    userdata = world.folder / "overlay-containers" / "abc123" / "userdata"
    userdata.mkdir(parents=True)
    mark = {
        "destination": "/run/.containerenv",
        "type": "bind",
        "source": str(userdata / ".containerenv"),
    }
    done = precreate(world, mounts=[*world.edited()["mounts"], mark])
    assert done.returncode == 0, done
    new = json.loads(done.stdout)
    assert "/dev/cgpu/limits" in [m["destination"] for m in new["mounts"]]
    assert world.shares() == ["abc123"]
    assert new["hooks"]["poststop"][0]["args"][-1] == "abc123"


def test_precreate_hands_others_through_to_the_byte() -> None:
    data = b'{ "process": {"env": []},\n "x": 1.50 }\n'
    done = hook("precreate", data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_rel_1_precreate_refuses_what_it_cannot_tell(world: World) -> None:
    world.write_config()
    done = precreate(world)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"/run/.containerenv" in done.stderr
    bad = hook("precreate", data=b'{"ALIYUN_COM_GPU_": ')
    assert (bad.returncode, bad.stdout) == (1, b"")


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["mount"], ["mount", "1"]])
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    assert hook(*arguments).returncode == 1
