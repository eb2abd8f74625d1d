"""cgpu-runtime is transparent: random argument vectors, compared with the low-level runtime."""

from __future__ import annotations

import random
import secrets
import subprocess
from pathlib import Path

import pytest

from lab.worlds.hook import RUNTIME, SIX, World, low_level

pytestmark = pytest.mark.integration

SEED = 20240518
RECORDED, REAL = 1200, 60
CREATING = {"create", "run", "restore"}
WORDS = [
    "create", "run", "restore", "state", "list", "kill", "delete", "info", "help", "h", "ps",
    "features", "update", "mounts", "c1", "c2", "red", "9", "json", "", "-", "--", "config.json",
    "--help", "-h", "--version", "-v", "-V", "--usage", "-?", "--debug", "--systemd-cgroup",
    "--colour", "--colour=red", "-x", "--root", "--root=ROOT", "--log", "--log=/dev/null", "-b",
    "--bundle", "--bundle=BUNDLE", "-bBUNDLE", "-f", "--config", "--pid-file", "--no-pivot",
    "--new", "--rootless", "--criu=x", "--detach", "-d", "--force", "-help", "-version", "--=",
    "---", "--root=", "=", "--cgpu", "-cgpu-x",
]  # fmt: skip
# What would wait, write into the current directory, or look at the containers of the machine.
REAL_WORDS = [w for w in WORDS if w not in {"spec", "init", "--root=", "--log"}]


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


@pytest.fixture(name="recorder")
def _recorder(world: World) -> Path:
    """A low-level runtime that prints its arguments and ends with a status of its own."""
    path = world.folder / "recorder"
    path.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 17\n")
    path.chmod(0o755)
    return path


def vectors(count: int, words: list[str], world: World, seed: int = SEED) -> list[list[str]]:
    """Argument vectors, the same for the same seed."""
    chance = random.Random(seed)
    found = [chance.choices(words, k=chance.randint(0, 6)) for _ in range(count)]
    names = {"ROOT": str(world.runs), "BUNDLE": str(world.bundle)}
    for short, path in names.items():
        found = [[word.replace(short, path) for word in vector] for vector in found]
    return found


def called(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=30,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_any_argument_vector_is_handed_on_where_no_container_of_ours_is_made(
    world: World, recorder: Path
) -> None:
    """The bundle in the current directory asks for nothing; options may be any runtime's."""
    world.write_config(["OTHER=1"])
    for vector in vectors(RECORDED, WORDS, world):
        done = called([str(RUNTIME), f"--cgpu-runtime={recorder}", *vector], world.bundle)
        sentence = "".join(f"{word}\n" for word in vector) or "\n"
        assert (done.returncode, done.stdout, done.stderr) == (17, sentence, ""), vector


def test_of_a_bundle_of_ours_only_what_makes_a_container_is_refused(
    world: World, recorder: Path
) -> None:
    """Its request cannot be met, so a creation that reaches the editor is refused."""
    world.write_config(["ALIYUN_COM_GPU_MEM_CONTAINER=abc", SIX[1]])
    refusals = 0
    for vector in vectors(RECORDED // 4, WORDS, world, SEED + 1):
        done = called([str(RUNTIME), *world.options(recorder), *vector], world.bundle)
        if done.returncode == 17:
            continue
        refusals += 1
        assert CREATING & set(vector), vector
        assert done.returncode == 1, done
        assert done.stdout == ""
        assert done.stderr.startswith("cgpu: "), done
    assert refusals


@pytest.mark.parametrize("options", [["--config", ""], ["--config", "."], ["-b", "config.json"]])
def test_a_folder_for_a_file_or_a_file_for_a_folder_is_for_the_runtime_to_refuse(
    world: World, recorder: Path, options: list[str]
) -> None:
    world.write_config()
    done = world.runtime("create", *options, "c1", lowlevel=recorder)
    assert (done.returncode, done.stderr) == (17, "")


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_runc_and_crun_answer_as_without_us(world: World, name: str) -> None:
    lowlevel = low_level(name, world.folder)
    world.write_config(["OTHER=1"], root={"path": "missing"})
    root = ["--root", str(world.runs)]
    for vector in vectors(REAL, REAL_WORDS, world, SEED + 2):
        alone = called([str(lowlevel), *root, *vector], world.bundle)
        ours = called([str(RUNTIME), f"--cgpu-runtime={lowlevel}", *root, *vector], world.bundle)
        assert (ours.returncode, ours.stdout) == (alone.returncode, alone.stdout), vector


@pytest.mark.parametrize(
    "options",
    [
        ["--bund=BUNDLE"],
        ["--b", "BUNDLE"],
        ["-db", "BUNDLE"],
        ["-dbBUNDLE"],
        ["--pid-f", "RUNS/pid", "--bun", "BUNDLE"],
        ["--bundle=BUNDLE", "--conf", "config.json"],
        ["--program-name", "c2", "--b", "BUNDLE"],
    ],
    ids=" ".join,
)
def test_rel_1_crun_finds_no_bundle_that_we_do_not(world: World, options: list[str]) -> None:
    """It accepts every beginning of a long option that is no other's too."""
    world.write_config()
    bundle, runs = str(world.bundle), str(world.runs)
    words = [word.replace("BUNDLE", bundle).replace("RUNS", runs) for word in options]
    root, name = ["--root", runs], f"cgpu-test-{secrets.token_hex(4)}"
    crun = low_level("crun", world.folder)
    done = world.runtime(*root, "run", *words, name, lowlevel=crun, cwd="/")
    assert done.returncode == 0, done
    assert "/dev/cgpu/limits" in world.config.read_text()
    world.runtime(*root, "delete", "--force", name, lowlevel=crun)  # if it was detached


@pytest.mark.parametrize("options", [["--bundle="], ["--bundle", ""], ["-b", ""]], ids=" ".join)
def test_rel_1_a_bundle_without_a_name_is_the_current_directory(
    world: World, options: list[str]
) -> None:
    """To runc; crun refuses it."""
    world.write_config()
    root, runc = ["--root", str(world.runs)], low_level("runc", world.folder)
    name = f"cgpu-test-{secrets.token_hex(4)}"
    done = world.runtime(*root, "run", *options, name, lowlevel=runc, cwd=world.bundle)
    assert done.returncode == 0, done
    assert "/dev/cgpu/limits" in world.config.read_text()


@pytest.mark.parametrize(
    "options",
    [["--new", "--bund=BUNDLE"], ["--bund", "BUNDLE", "--new"], ["--cons", "SOCKET", "--b=BUNDLE"]],
    ids=" ".join,
)
def test_rel_1_an_option_that_nobody_knows_hides_no_bundle(
    world: World, recorder: Path, options: list[str]
) -> None:
    world.write_config()
    words = [word.replace("BUNDLE", str(world.bundle)) for word in options]
    done = world.runtime("create", *words, "c1", lowlevel=recorder, cwd="/")
    assert done.returncode == 17
    assert done.stdout.splitlines() == ["create", *words, "c1"]
    assert "/dev/cgpu/limits" in world.config.read_text()


@pytest.mark.parametrize("switch", ["--s", "--e", "--f", "--t", "--d"])
def test_rel_1_an_abbreviated_switch_of_crun_has_no_value(
    world: World, recorder: Path, switch: str
) -> None:
    """Of its `restore`: no option with a value begins so there."""
    world.write_config()
    words = ["restore", switch, "--bundle", str(world.bundle), "c1"]
    assert world.runtime(*words, lowlevel=recorder, cwd="/").returncode == 17
    assert "/dev/cgpu/limits" in world.config.read_text()


@pytest.mark.parametrize(
    "options", [["--pidfd-socket", "SOCKET"], ["--program-name", "c2"], ["--prog", "c2"]]
)
def test_rel_1_the_value_of_an_option_is_no_containers_id(world: World, options: list[str]) -> None:
    world.write_config()
    world.runtime("create", *options, "c1", lowlevel=world.stub())
    call = world.call()
    assert call is not None
    assert [*call["records"]] == ["c1"]


def test_a_global_option_that_argp_hides_is_known(world: World, recorder: Path) -> None:
    world.write_config()
    done = world.runtime("--program-name", "c2", "create", "c1", lowlevel=recorder)
    assert (done.returncode, done.stderr) == (17, "")


@pytest.mark.parametrize(
    "arguments",
    [["--help", "create", "c1"], ["--version", "run", "c1"], ["create", "--help"], ["run", "-h"]],
)
def test_a_question_changes_no_bundle_and_admits_nothing(
    world: World, recorder: Path, arguments: list[str]
) -> None:
    world.write_config()
    before = world.config.read_bytes()
    done = world.runtime(*arguments, lowlevel=recorder)
    assert done.returncode == 17
    assert world.config.read_bytes() == before
    assert world.shares() == []


def test_a_question_behind_an_unknown_option_may_be_its_value(world: World, recorder: Path) -> None:
    world.write_config()
    done = world.runtime("--colour", "--help", "create", "c1", lowlevel=recorder)
    assert done.returncode == 17
    assert "/dev/cgpu/limits" in world.config.read_text()


@pytest.mark.parametrize(
    "arguments", [["create", "c1"], ["x", "run", "c1"], ["create", "--bundle", "BUNDLE", "c1"]]
)
def test_rel_1_an_unknown_option_hides_no_creation_of_a_container_of_ours(
    world: World, recorder: Path, arguments: list[str]
) -> None:
    world.write_config()
    arguments = [a.replace("BUNDLE", str(world.bundle)) for a in arguments]
    folder = "/" if "--bundle" in arguments else str(world.bundle)
    done = world.runtime("--colour", "red", *arguments, lowlevel=recorder, cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "cgpu: an option before red is not known: write it as OPTION=VALUE\n"
