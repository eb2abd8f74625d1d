"""The commands that people type: cgpu, cgpu-smi and the demonstration."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cgpu_env.version import VERSION
from lab.worlds.cgpu_run import CAP_NINE, CAP_SIX, MIB, PROGRAMS, World
from lab.worlds.server import wait_until

HOLD = PROGRAMS / "hold.py"
pytestmark = pytest.mark.integration


@pytest.fixture
def world() -> World:
    return World(gpus=2)


def cgpu(world: World, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    flags = ["--driver-dir", str(world.driver), "--state-dir", str(world.state)]
    name, *rest = map(str, arguments)
    return world.run_command([sys.executable, "-m", "cgpu_cli.main", name, *flags, *rest])


def configuration(world: World, **variables: str) -> Path:
    """An OCI configuration whose container asks for a share."""
    rootfs = world.folder / "rootfs"
    (rootfs / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (rootfs / "usr/lib/x86_64-linux-gnu/libc.so.6").touch()
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "args": ["true"],
            "cwd": "/",
            "env": [f"{k}={v}" for k, v in variables.items()],
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
        "linux": {},
    }
    path = world.folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_probe_shows_the_node_and_keeps_it(world: World) -> None:
    done = cgpu(world, "probe")
    assert done.returncode == 0, done.stderr
    assert "15109 MiB, 105.0 MiB for each CUDA context" in done.stdout
    facts = json.loads((world.state / "node.json").read_text())
    assert [gpu["context_bytes"] for gpu in facts["gpus"]] == [105 * MIB] * 2
    assert [gpu["index"] for gpu in facts["gpus"]] == [0, 1]
    assert facts["notes"] == []


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["version"], "cgpu {}"),
        (["smi", "--version"], "cgpu-smi {}"),
        (["run", "--version"], "cgpu-run {}"),
        (["--state-dir", "/nowhere", "smi", "--version"], "cgpu-smi {}"),
        (["--state-dir=/nowhere", "run", "--version"], "cgpu-run {}"),
    ],
)
def test_words_that_people_type_for_other_programs_mean_these(
    world: World, words: list[str], output: str
) -> None:
    done = world.run_command([sys.executable, "-m", "cgpu_cli.main", *words])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{output.format(VERSION)}\n"


def test_plan_shows_the_limits_in_the_order_of_the_visible_list(world: World) -> None:
    """CLI-7."""
    path = configuration(
        world,
        ALIYUN_COM_GPU_MEM_CONTAINER="6,9",
        ALIYUN_COM_GPU_MEM_DEV="15",
        ALIYUN_COM_GPU_VISIBLE_DEVICES="1,0",
    )
    done = cgpu(world, "plan", path, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [(gpu["index"], gpu["cap_bytes"] // MIB) for gpu in plan["gpus"]] == [
        (1, CAP_SIX),
        (0, CAP_NINE),
    ]
    assert "GPU 1" in cgpu(world, "plan", path).stdout
    assert not world.state.exists(), "it changes nothing"


def test_plan_refuses_with_the_sentence_that_creation_would_give(world: World) -> None:
    """CLI-7."""
    path = configuration(world, ALIYUN_COM_GPU_MEM_CONTAINER="1gb", ALIYUN_COM_GPU_MEM_DEV="15")
    done = cgpu(world, "plan", path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cgpu: ALIYUN_COM_GPU_MEM_CONTAINER=1gb: expected whole GiB")
    assert len(done.stderr.splitlines()) == 1


def test_plan_knows_the_weights_that_a_gpu_allows_now(world: World) -> None:
    """CLI-7, ENV-6."""
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
    path = configuration(world, **share, ALIYUN_COM_GPU_SCHD_WEIGHT="22")
    refused = cgpu(world, "plan", path)
    assert refused.returncode == 2
    assert refused.stderr == (
        "cgpu: ALIYUN_COM_GPU_SCHD_WEIGHT=22: expected a whole number from 1 to 20,"
        " the max_inst of GPU 0\n"
    )
    for gpu in ("0", "1"):
        assert cgpu(world, "set", gpu, "max_inst=25").returncode == 0
    assert "weight 22" in cgpu(world, "plan", path).stdout


def test_plan_says_that_the_stated_whole_is_far_off(world: World) -> None:
    """CLI-7, ENV-2."""
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "80"}
    path = configuration(world, **share)
    sentence = (
        "GPUs 0,1 have 15109 MiB, not the 80 GiB of ALIYUN_COM_GPU_MEM_DEV: 6 of 80 is 1133 MiB"
    )
    assert f"\nnote    {sentence}\n" in cgpu(world, "plan", path).stdout
    assert json.loads(cgpu(world, "plan", path, "--json").stdout)["notes"] == [sentence]


def test_the_program_the_log_and_doctor_hear_of_it_too(world: World) -> None:
    """CLI-2, ENV-2."""
    process = world.start(
        "--mem", "6/80", "--gpus", "1", "--", "sh", "-c", "echo up; exec sleep 60"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    cgpu(world, "get")
    sentence = "GPU 1 has 15109 MiB, not the 80 GiB of --mem 6/80: 6 of 80 is 1133 MiB"
    log = world.state / "cgpud.log"
    wait_until(lambda: "whole_misstated" in log.read_text(), "the log says it")
    (line,) = [line for line in log.read_text().splitlines() if "whole_misstated" in line]
    assert sentence in line
    (session,) = world.sessions()
    found = json.loads(cgpu(world, "doctor", "--json").stdout)["findings"]
    (finding,) = [each for each in found if each["check"] == "shares"]
    assert (finding["level"], finding["value"]) == ("warning", session)
    assert sentence in finding["what"]
    process.kill()
    assert process.stderr is not None
    assert process.stderr.read() == f"cgpu-run: note: {sentence}\n"


def test_plan_says_when_cgpu_is_off(world: World) -> None:
    """CLI-7, ENV-4."""
    done = cgpu(world, "plan", configuration(world))
    assert done.returncode == 0
    assert done.stdout.startswith("cgpu is off for this container: ALIYUN_COM_GPU_MEM_CONTAINER")
    assert len(done.stdout.splitlines()) == 1


def test_a_sessions_memory_is_seen_from_outside(world: World) -> None:
    """CLI-3."""
    process = world.start("--mem", "6/15", "--gpus", "1", "--", sys.executable, "-I", HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    (session,) = world.smi()["containers"]
    (gpu,) = session["gpus"]
    assert gpu["index"] == 1
    assert gpu["cap_bytes"] // MIB == CAP_SIX
    assert gpu["used_bytes"] == (105 + 100) * MIB
    (holder,) = gpu["processes"]
    assert (holder["pid"], holder["used_bytes"]) == (process.pid, 205 * MIB)
    process.communicate("\n")
    world.wait_until_empty()
    assert world.smi()["containers"] == []


def test_top_draws_what_sessions_hold(world: World) -> None:
    """CLI-3: as the picture in the README."""
    process = world.start("--mem", "6/15", "--gpus", "1", "--", sys.executable, "-I", HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    picture = world.folder / "top.svg"
    done = cgpu(world, "top", "-d", "0.1", "--looks", "2", "--svg", picture)
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(html.unescape(picture.read_text()).replace("\xa0", " ").split())
    (session,) = world.smi()["containers"]
    assert session["id"] in text
    assert "205 / 6043 MiB" in text
    process.communicate("\n")


def test_the_demonstration_shows_both_shares_and_succeeds() -> None:
    """ENV-8, MEM-2, MEM-4."""
    world = World()
    words = [sys.executable, "-m", "cgpu_cli.main", "demo", "--nvidia-smi", ""]
    done = world.run_command([*words, "--driver-dir", str(world.driver)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"0MiB / {CAP_SIX}MiB" in done.stdout
    assert f"0MiB / {CAP_NINE}MiB" in done.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    assert done.stdout.endswith("All of it as it must be.\n")
