"""What the launcher refuses, and that nothing is left of it (ENV-9, REL-1, REL-3, REL-4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab.worlds.hook import HOOK, SIX, World, snapshot

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def refused(world: World, *arguments: str, **options: Any) -> str:
    """The one line of a refusal; the low-level runtime must not have been started."""
    before = snapshot(world.bundle)
    done = world.runtime(*(arguments or ("create", "c1")), lowlevel=world.stub(), **options)
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert world.call() is None
    assert world.shares() == []
    assert snapshot(world.bundle) == before
    (line,) = done.stderr.splitlines()
    assert line.startswith("cgpu: ")
    return line.removeprefix("cgpu: ")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]], "ALIYUN_COM_GPU_MEM_CONTAINER=abc: expect"),
        (["ALIYUN_COM_GPU_MEM_CONTAINER=6"], "ALIYUN_COM_GPU_MEM_DEV is not set"),
        (["ALIYUN_COM_GPU_MEM_CONTAINER=16", SIX[1]], "16 GiB is more than the 15 GiB"),
        ([*SIX, "ALIYUN_COM_GPU_VISIBLE_DEVICES=7"], "no GPU 7 here; this node has GPUs 0, 1"),
        ([*SIX, "ALIYUN_COM_GPU_SCHD_WEIGHT=21"], "from 1 to 20, the max_inst of GPU 0"),
        ([*SIX, "CGPU_DISABLE=maybe"], "CGPU_DISABLE=maybe: expected true, false, 1 or 0"),
        (["ALIYUN_COM_GPU_MEM_CONTAINER=1\n\x1b[2J", SIX[1]], "expected whole GiB"),
    ],
)
def test_env_9_bad_input_refuses_creation(world: World, env: list[str], words: str) -> None:
    world.write_config(env)
    assert words in refused(world)


def test_env_9_the_sentence_reaches_the_log_that_the_engine_reads(world: World) -> None:
    world.write_config(['ALIYUN_COM_GPU_MEM_CONTAINER="a\\', SIX[1]])
    log = world.folder / "log.json"
    log.write_text('{"level":"info"}\n')
    line = refused(world, "--log", str(log), "--log-format=json", "create", "c1")
    entry = json.loads(log.read_text().splitlines()[-1])
    assert entry["level"] == "error"
    assert entry["msg"] == f"cgpu: {line}"
    assert entry["time"].endswith("Z")


def test_env_9_the_text_log_is_written_too(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]])
    log = world.folder / "log"
    refused(world, f"--log=file:{log}", "create", "c1")
    assert 'level=error msg="cgpu: ALIYUN_COM_GPU_MEM_CONTAINER=abc' in log.read_text()


def test_env_9_caps_that_do_not_fit_beside_others_are_refused(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=10", SIX[1]])
    owner = world.runs / "c0"
    owner.mkdir()
    done = world.runtime("--root", str(world.runs), "create", "c0", lowlevel=world.stub())
    assert done.returncode == 0
    world.write_config(SIX)
    (world.runs / "call.json").unlink()
    done = world.runtime("create", "c1", lowlevel=world.stub())
    assert done.returncode == 1
    assert "ALIYUN_COM_GPU_MEM_CONTAINER" in done.stderr
    assert world.shares() == ["c0"]
    assert world.call() is None


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "a" * 65, "a b", ""])
def test_rel_4_an_id_that_is_not_a_name_is_refused(world: World, name: str) -> None:
    world.write_config()
    assert "container id" in refused(world, "create", name)


@pytest.mark.parametrize(
    "arguments", [["create"], ["create", "a", "b"], ["create", "--new", "x", "a"]]
)
def test_a_command_line_that_does_not_tell_the_id_is_refused(
    world: World, arguments: list[str]
) -> None:
    world.write_config()
    assert "cannot tell the container's id" in refused(world, *arguments)


def test_rel_1_an_option_that_nobody_knows_cannot_hide_a_creation(world: World) -> None:
    """Its value would be taken for the subcommand, and the container would start without limits."""
    world.write_config(SIX)
    printed = refused(world, "--colour", "red", "create", "c1")
    assert printed == "an option before red is not known: write it as OPTION=VALUE"


def test_a_path_cannot_break_the_line_of_a_refusal(world: World) -> None:
    bundle = world.folder / "a\nlevel=info msg=\x1b[2Jb"
    bundle.mkdir()
    os.mkfifo(bundle / "config.json")
    sentence = refused(world, "create", "--bundle", str(bundle), "c1")
    assert "a level=info msg= [2Jb/config.json: " in sentence


def test_a_missing_low_level_runtime_is_reported(world: World) -> None:
    for path in ("/nowhere/runc", "runc", "/etc/passwd", "/"):
        done = world.runtime("--version", lowlevel=path)
        assert done.returncode == 1
        assert "--cgpu-runtime" in done.stderr


def test_rel_1_a_state_directory_that_cannot_be_used_refuses_creation(world: World) -> None:
    world.write_config()
    world.state.chmod(0o777)
    assert "other users can write to it" in refused(world)


def test_rel_1_a_full_disk_refuses_creation_and_leaves_nothing(world: World) -> None:
    """A tmpfs of one page holds neither limits nor ledger."""
    world.write_config()
    script = (
        f"mount -t tmpfs -o size=64k,mode=700 none {world.folder}/full && "
        f"cp {world.state}/node.json {world.folder}/full/ && "
        f"dd if=/dev/zero of={world.folder}/full/ballast bs=4k 2>/dev/null; "
        'status=0; "$@" || status=$?; '
        f"ls -A {world.folder}/full/containers; exit $status"
    )
    (world.folder / "full").mkdir()
    options = [
        o.replace(str(world.state), f"{world.folder}/full") for o in world.options(world.stub())
    ]
    before = snapshot(world.bundle)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(HOOK.parent / "cgpu-runtime"), *options,
         "create", "c1"],
        cwd=world.bundle, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "No space left" in done.stderr
    assert done.stdout == ""
    assert snapshot(world.bundle) == before


def test_rel_1_a_bundle_that_cannot_be_written_gives_the_share_back(world: World) -> None:
    world.write_config()
    script = f'mount --bind -o ro {world.bundle} {world.bundle} && cd {world.bundle} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(HOOK.parent / "cgpu-runtime"),
         *world.options(world.stub()), "create", "c1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written: Read-only file system" in done.stderr
    assert world.shares() == []


def test_rel_3_what_a_killed_creation_left_is_given_back_by_the_next(world: World) -> None:
    """The stub kills its parent, as when an engine is killed with all that it has started."""
    killer = world.folder / "killer"
    killer.write_text("#!/bin/sh\nkill -9 $PPID\n")
    killer.chmod(0o755)
    for name in ("c1", "c2", "c2"):
        world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=15", SIX[1]])
        assert world.runtime("create", name, lowlevel=killer).returncode == -signal.SIGKILL
        assert world.shares() == [name]


@pytest.mark.parametrize("kind", ["fifo", "link", "giant", "broken", "deep", "bytes"])
def test_rel_4_a_hostile_configuration_is_refused_at_once(world: World, kind: str) -> None:
    path = world.config
    name = b"ALIYUN_COM_GPU_"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        os.mkfifo(world.folder / "fifo")
        path.symlink_to(world.folder / "fifo")
    elif kind == "giant":
        with path.open("wb") as file:
            file.truncate((16 << 20) + 1)
    else:
        bodies = {"broken": b"{" + name, "deep": b'{"' + name + b'":' + b"[" * 10**6}
        path.write_bytes(bodies.get(kind, b'{"\xff\xfe' + name + b'": 1}'))
    started = time.monotonic()
    done = world.runtime("create", "c1", lowlevel=world.stub(), timeout=20)
    assert time.monotonic() - started < 15  # it does not hang; no figure
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("cgpu: ")
    assert str(path) in done.stderr
    assert world.call() is None


@pytest.mark.parametrize(
    "change",
    [
        ('"process"', '"Process"'),
        ('"env"', '"Env"'),
        ('"env": [', '"env": ["A=1"], "env": ['),
        ('"mounts"', '"mounts": [], "mounts"'),
    ],
)
def test_rel_4_names_that_two_readers_could_read_differently_are_refused(
    world: World, change: tuple[str, str]
) -> None:
    """runc accepts names in any case, and of duplicates the last."""
    world.write_config()
    world.config.write_text(world.config.read_text().replace(*change, 1))
    assert "expected it to be written" in (line := refused(world)) or "stands twice" in line
