"""cgpu-runtime with a stand-in for runc: what it forwards, what it changes, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hook_world import HOOK, LIBDIR, SIX, World, snapshot

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
    "arguments",
    [
        ["--version"],
        ["features"],
        ["--root", "/r", "--log=/dev/null", "--log-format", "json", "kill", "c1", "KILL"],
        ["--systemd-cgroup", "exec", "--process", "p.json", "c1"],
        ["delete", "--force", "c1"],
        ["--cgroup-manager=disabled", "state", "c1"],
        ["exec", "c1", "--cgpu-runtime", "x"],
        [],
    ],
)
def test_other_subcommands_are_handed_on_as_they_are(world: World, arguments: list[str]) -> None:
    world.write_config()
    before = snapshot(world.bundle)
    done = world.runtime(*arguments, lowlevel=world.stub(), env={"A": "1", "LD_X": "2"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "stub output\n", "")
    call = world.call()
    assert call is not None
    assert call["argv"][1:] == arguments
    assert {k: call["env"].get(k) for k in ("A", "LD_X")} == {"A": "1", "LD_X": "2"}
    assert call["cwd"] == str(world.bundle)
    assert snapshot(world.bundle) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "c1"],
        ["run", "-d", "c1"],
        ["--root", "create", "restore", "--image-path", "/x", "c1"],
        ["create", "--bundle", "BUNDLE", "--pid-file", "/p", "c1"],
        ["create", "-b", "BUNDLE", "c1"],
        ["create", "--bundle=BUNDLE", "c1"],
        ["create", "-bundle=BUNDLE", "c1"],
        ["create", "-bBUNDLE", "c1"],
        ["create", "c1", "--bundle", "BUNDLE"],
        ["create", "--config", "config.json", "c1"],
        ["create", "-f", "BUNDLE/config.json", "c1"],
        ["--debug", "create", "--no-pivot", "--", "c1"],
    ],
)
def test_a_container_that_names_a_share_gets_it(world: World, arguments: list[str]) -> None:
    """ENV-8: whichever way the engine says which bundle."""
    world.write_config()
    arguments = [a.replace("BUNDLE", str(world.bundle)) for a in arguments]
    elsewhere = "BUNDLE" in "".join(arguments)
    done = world.runtime(
        *arguments, lowlevel=world.stub(), cwd="/" if elsewhere else str(world.bundle)
    )
    assert (done.returncode, done.stdout) == (0, "stub output\n"), done
    call = world.call()
    assert call is not None
    assert call["argv"][1:] == arguments
    destinations = [mount["destination"] for mount in world.edited()["mounts"]]
    assert "/dev/cgpu/limits" in destinations
    assert f"{LIBDIR}/libcuda.so.1" in destinations
    hook = world.edited()["hooks"]["poststop"][0]
    assert hook["path"] == str(HOOK)
    assert hook["env"]


def test_the_low_level_runtime_keeps_the_callers_environment(world: World) -> None:
    world.write_config()
    world.runtime("create", "c1", lowlevel=world.stub(), env={"A": "1", "NOTIFY_SOCKET": "/n"})
    call = world.call()
    assert call is not None
    assert call["env"].get("NOTIFY_SOCKET") == "/n"


@pytest.mark.parametrize(
    "env",
    [
        [],
        ["ALIYUN_COM_GPU_MEM_CONTAINER=0"],
        ["ALIYUN_COM_GPU_MEM_CONTAINER="],
        ["ALIYUN_COM_GPU_MEM_CONTAINER=1,0,0", "ALIYUN_COM_GPU_MEM_DEV=15"],
        [*SIX, "CGPU_DISABLE=TRUE"],
        [*SIX, "NVIDIA_VISIBLE_DEVICES=none"],
        ["OTHER=ALIYUN_COM_GPU_MEM_CONTAINER"],
    ],
)
def test_env_1_and_4_a_container_with_cgpu_off_is_left_alone(world: World, env: list[str]) -> None:
    """To the byte, white space and all."""
    world.write_config(env)
    world.config.write_text(json.dumps(world.edited(), indent=3) + "\n\n")
    before = snapshot(world.bundle)
    assert world.runtime("create", "c1", lowlevel=world.stub()).returncode == 0
    assert snapshot(world.bundle) == before
    assert world.call() is not None


def test_a_container_with_cgpu_off_needs_neither_driver_nor_state(world: World) -> None:
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=0"])
    (world.driver / "libcuda.so.1").unlink()
    world.state.chmod(0o777)
    assert world.runtime("create", "c1", lowlevel=world.stub()).returncode == 0


def test_a_variable_that_json_hides_behind_escapes_is_found(world: World) -> None:
    world.write_config()
    hidden = world.config.read_text().replace("ALIYUN_COM", "\\u0041LIYUN\\u005FCOM")
    assert "ALIYUN_COM_GPU_" not in hidden
    world.config.write_text(hidden)
    world.runtime("create", "c1", lowlevel=world.stub())
    assert "/dev/cgpu/limits" in world.config.read_text()


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


def test_a_missing_bundle_is_the_low_level_runtimes_business(world: World) -> None:
    for arguments in (["create", "c1"], ["create", "-b", "/nowhere", "c1"]):
        assert world.runtime(*arguments, lowlevel=world.stub()).returncode == 0
        assert world.call() is not None


def test_a_missing_low_level_runtime_is_reported(world: World) -> None:
    for path in ("/nowhere/runc", "runc", "/etc/passwd", "/"):
        done = world.runtime("--version", lowlevel=path)
        assert done.returncode == 1
        assert "--cgpu-runtime" in done.stderr


def test_the_launcher_never_starts_itself(world: World) -> None:
    done = world.runtime("--version", lowlevel=HOOK.parent / "cgpu-runtime", timeout=5)
    assert done.returncode == 1


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


def test_the_server_is_told_of_an_admission_and_of_nothing_else(world: World) -> None:
    """REL-2."""
    for env, calls in ((SIX, 1), (["ALIYUN_COM_GPU_MEM_CONTAINER=0"], 0), (["CGPU_DISABLE=1"], 0)):
        world.write_config(env)
        assert world.runtime("create", "c1", lowlevel=world.stub()).returncode == 0
        assert world.server.calls() == calls, env
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=16", SIX[1]])
    assert world.runtime("create", "c2", lowlevel=world.stub()).returncode == 1
    assert world.server.calls() == 0


def with_interpreter(folder: Path, interpreter: str) -> Path:
    """A copy of the launcher with another interpreter named beside it."""
    package = folder / "cgpu_hook"
    (package / "_bin").mkdir(parents=True, exist_ok=True)
    (folder / "cgpu_node").mkdir(exist_ok=True)
    (folder / "cgpu_node" / "bootstrap.py").write_text("")
    (package / "_bin" / "interpreter").write_text(f"{interpreter}\n")
    runtime = package / "_bin" / "cgpu-runtime"
    shutil.copy(HOOK.parent / "cgpu-runtime", runtime)
    return runtime


def create_with(runtime: Path, world: World, lowlevel: Path) -> subprocess.CompletedProcess[str]:
    """``create`` by such a launcher."""
    return subprocess.run(
        [str(runtime), *world.options(lowlevel), "create", "c1"],
        cwd=world.bundle, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def script(path: Path, *lines: str) -> Path:
    """A program that is a shell script."""
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def test_a_python_that_does_not_work_refuses_creation(world: World, tmp_path: Path) -> None:
    """REL-1: only an answer lets the launcher go on, and not an end without an error."""
    world.write_config()
    half = script(tmp_path / "half", "printf 'ready /share'")
    warning = script(tmp_path / "warning", "echo '/ready /share: DeprecationWarning' >&2")
    paths = ("/bin/false", "/bin/true", "/nowhere/python3", "/etc/passwd", half, warning)
    for interpreter in paths:
        done = create_with(with_interpreter(tmp_path, str(interpreter)), world, world.stub())
        assert done.returncode == 1, done
        assert done.stderr.startswith("cgpu: ")
        assert world.call() is None


def test_the_low_level_runtime_starts_before_the_server_is_told(
    world: World, tmp_path: Path
) -> None:
    """The editor goes on behind its answer until the runtime has run; the launcher outlives it."""
    ran, shown = tmp_path / "ran", tmp_path / "shown"
    editor = script(
        tmp_path / "editor",
        f"echo 'ready {tmp_path}/share'",
        f"until [ -e {ran} ]; do sleep 0.01; done",
        f"touch {shown}",
    )
    lowlevel = script(tmp_path / "runtime", f"touch {ran}")
    world.write_config()
    done = create_with(with_interpreter(tmp_path, str(editor)), world, lowlevel)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown.exists()


def test_the_python_side_sees_none_of_the_callers_environment(world: World) -> None:
    """A caller's PYTHON*, LD_* or current directory must not steer it."""
    world.write_config()
    (world.bundle / "os.py").write_text("raise SystemExit(7)")
    env = {
        "PYTHONPATH": str(world.bundle),
        "PYTHONHOME": "/nowhere",
        "PYTHONSTARTUP": str(world.bundle / "os.py"),
        "LD_PRELOAD": "/proc/self/cwd/x.so",
    }
    done = world.runtime("create", "c1", lowlevel="/bin/true", env=env)
    assert "/dev/cgpu/limits" in world.config.read_text(), done


@pytest.mark.parametrize("kind", ["fifo", "link", "giant", "broken", "deep", "bytes"])
def test_rel_4_a_hostile_configuration_is_refused_at_once(world: World, kind: str) -> None:
    path = world.config
    name = b"ALIYUN_COM_GPU_"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
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


@pytest.mark.parametrize(
    ("options", "env", "directory"),
    [
        (["--root", "WORLD/runs"], {}, "WORLD/runs/c1"),
        (["--root=WORLD/missing"], {}, "WORLD/missing/c1"),
        (["--root", "missing"], {}, "WORLD/bundle/missing/c1"),
        ([], {}, "/run/stub-runc/c1"),
        ([], {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/stub-runc/c1"),
    ],
)
def test_a_share_lives_as_long_as_the_low_level_runtimes_directory(
    world: World, options: list[str], env: dict[str, str], directory: str
) -> None:
    world.write_config()
    options = [option.replace("WORLD", str(world.folder)) for option in options]
    world.runtime(*options, "create", "c1", lowlevel=world.stub(), env=env)
    call = world.call()
    assert call is not None
    assert call["records"]["c1"]["owner"][2] == directory.replace("WORLD", str(world.folder))
