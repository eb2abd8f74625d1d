"""cgpu-runtime with a stand-in for runc: what it forwards, and what it changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lab.worlds.hook import HOOK, LIBDIR, RUNTIME, SIX, World, snapshot, with_interpreter

pytestmark = pytest.mark.integration


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.mark.parametrize("closed", ["0<&- 1>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_a_container_gets_its_share_from_a_caller_with_closed_standard_files(
    world: World, closed: str
) -> None:
    """What the launcher opens gets their numbers."""
    script = f'exec "$@" {closed}'
    words = [RUNTIME, *world.options(world.stub()), "create", "c1"]
    for env, status in ((SIX, 0), (["ALIYUN_COM_GPU_MEM_CONTAINER=x"], 1)):
        world.write_config(env)
        log = world.folder / f"log-{status}"
        done = subprocess.run(
            ["sh", "-c", script, "sh", *words[:-2], "--log", log, *words[-2:]],
            cwd=world.bundle,
            timeout=60,
            check=False,
        )
        assert done.returncode == status
        assert log.exists() == (status == 1)
    assert "expected whole GiB" in log.read_text()


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
@pytest.mark.parametrize("manager", [{}, {"NOTIFY_SOCKET": "/n"}], ids=["", "of systemd"])
def test_other_subcommands_are_handed_on_as_they_are(
    world: World, arguments: list[str], manager: dict[str, str]
) -> None:
    world.write_config()
    before = snapshot(world.bundle)
    done = world.runtime(*arguments, lowlevel=world.stub(), env={"A": "1", "LD_X": "2", **manager})
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


def test_a_missing_bundle_is_the_low_level_runtimes_business(world: World) -> None:
    for arguments in (["create", "c1"], ["create", "-b", "/nowhere", "c1"]):
        assert world.runtime(*arguments, lowlevel=world.stub()).returncode == 0
        assert world.call() is not None


def test_the_launcher_never_starts_itself(world: World) -> None:
    done = world.runtime("--version", lowlevel=HOOK.parent / "cgpu-runtime", timeout=5)
    assert done.returncode == 1


def test_the_server_is_told_of_an_admission_and_of_nothing_else(world: World) -> None:
    """REL-2."""
    for env, calls in ((SIX, 1), (["ALIYUN_COM_GPU_MEM_CONTAINER=0"], 0), (["CGPU_DISABLE=1"], 0)):
        world.write_config(env)
        assert world.runtime("create", "c1", lowlevel=world.stub()).returncode == 0
        assert world.server.calls() == calls, env
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=16", SIX[1]])
    assert world.runtime("create", "c2", lowlevel=world.stub()).returncode == 1
    assert world.server.calls() == 0


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


@pytest.mark.parametrize(
    ("options", "env", "directory"),
    [
        (["--root", "WORLD/runs"], {}, "WORLD/runs/c1"),
        (["--root=WORLD/missing"], {}, "WORLD/missing/c1"),
        (["--root", "missing"], {}, "WORLD/bundle/missing/c1"),
        ([], {}, "/run/runc/c1"),
        ([], {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/runc/c1"),
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
