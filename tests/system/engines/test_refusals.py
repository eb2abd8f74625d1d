"""Bad input never starts a container, and the terminal shows why (ENV-9, ENV-11, REL-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.machine.node import share

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.containers.engines import Docker
    from lab.machine.node import Node

pytestmark = pytest.mark.system
MEM = "ALIYUN_COM_GPU_MEM_CONTAINER"
DEV = "ALIYUN_COM_GPU_MEM_DEV"
VISIBLE = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
PRIO = "ALIYUN_COM_GPU_HIGH_PRIO"
WHOLE = "expected whole GiB"

# id: (environment, what the sentence must name)
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "not a number": (share("six"), [f"{MEM}=six", WHOLE]),
    "negative": (share("-6"), [f"{MEM}=-6", WHOLE]),
    "fraction": (share("1.5"), [f"{MEM}=1.5", WHOLE]),
    "overflow": (share("99999999999999999999"), [f"{MEM}=99999999999999999999", WHOLE]),
    "unit": (share("1gb"), [f"{MEM}=1gb", WHOLE]),
    "hexadecimal": (share("0x10"), [f"{MEM}=0x10", WHOLE]),
    "underscore": (share("1_0"), [f"{MEM}=1_0", WHOLE]),
    "full-width digit": (share("\uff11"), [f"{MEM}=\uff11", WHOLE]),
    "exponent": (share("1e1"), [f"{MEM}=1e1", WHOLE]),
    "empty item": (share("3,,1"), [f"{MEM}=3,,1", WHOLE]),
    "more values than GPUs": (share("3,1"), [f"{MEM}=3,1", "2 values, but 1 GPU"]),
    "more than the GPU": (share("16"), [f"{MEM}=16", DEV, "15"]),
    "share without whole": ({MEM: "6"}, [DEV, "not set", f"{MEM}=6"]),
    "misspelt": ({"ALIYUN_COM_GPU_MEM_CONTAINR": "6"}, ["MEM_CONTAINR=6", f"did you mean {MEM}"]),
    "misspelt beside others": (
        {"ALIYUN_COM_GPU_MEM_CONTAINR": "6", DEV: "15"},
        ["MEM_CONTAINR=6", f"did you mean {MEM}"],
    ),
    "whole not a number": (share(6, "x"), [f"{DEV}=x", WHOLE]),
    "whole zero": (share(6, "0"), [f"{DEV}=0", WHOLE]),
    "unknown index": (share(6, **{VISIBLE: "7"}), [f"{VISIBLE}=7", "no GPU 7"]),
    "unknown UUID": (share(6, **{VISIBLE: "GPU-ffff"}), [f"{VISIBLE}=GPU-ffff", "no GPU"]),
    "duplicate GPU": (share(6, **{VISIBLE: "0,0"}), [f"{VISIBLE}=0,0", "second time"]),
    "weight zero": (share(6, **{WEIGHT: "0"}), [f"{WEIGHT}=0", "from 1 to"]),
    "weight too large": (share(6, **{WEIGHT: "21"}), [f"{WEIGHT}=21", "from 1 to 20"]),
    "priority": (share(6, **{PRIO: "2"}), [f"{PRIO}=2", "from 0 to 1"]),
    "disable": (share(6, CGPU_DISABLE="maybe"), ["CGPU_DISABLE=maybe", "true, false"]),
}


def _refusal(docker: Docker, env: dict[str, str], runtime: str = "cgpu") -> str:
    options = [f"--runtime={runtime}"]
    done = docker.run("small", "echo", "started", options=options, env=env, check=False)
    assert done.returncode not in {0, 1}
    assert "started" not in done.stdout
    return done.stderr


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_sentence_at_the_terminal(
    docker: Docker, node: Node, case: str
) -> None:
    """ENV-9, ENV-10, REL-1."""
    env, named = CASES[case]
    output = _refusal(docker, env)
    sentence = [line for line in output.splitlines() if all(part in line for part in named)]
    assert len(sentence) == 1, output
    assert node.containers() == []


def test_a_refusal_before_crun_reaches_the_terminal_too(docker: Docker) -> None:
    """ENV-9."""
    assert f"{MEM}=six: {WHOLE}" in _refusal(docker, share("six"), "cgpu-crun")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (share(9), share(7), [f"{MEM}=7", "7050 MiB asked on GPU 0", "6043 of 15109 MiB are free"]),
        (
            share(1, **{WEIGHT: "15"}),
            share(1, **{WEIGHT: "6"}),
            [f"{WEIGHT}=6", "GPU 0 has 5 of 20 free"],
        ),
    ],
    ids=["memory", "weight"],
)
def test_what_does_not_fit_beside_a_running_container_is_refused(
    docker: Docker,
    started: Callable[..., str],
    first: dict[str, str],
    second: dict[str, str],
    named: list[str],
) -> None:
    """ENV-9, SCH-10: and it fits once the first one has gone."""
    running = started("small", "sleep", "1000", options=["--runtime=cgpu"], env=first)
    output = _refusal(docker, second)
    assert all(part in output for part in named), output
    docker.docker("rm", "--force", running)
    docker.run("small", "true", options=["--runtime=cgpu"], env=second)


@pytest.mark.parametrize(
    ("runtime", "words"),
    [("cgpu-full", "No space left on device"), ("cgpu-read-only", "Read-only file system")],
)
def test_a_state_directory_that_cannot_be_written_refuses(
    docker: Docker, runtime: str, words: str
) -> None:
    """REL-1, REL-3: nothing starts without limits, and nothing is left half-made."""
    done = docker.run(
        "small", "echo", "started", options=[f"--runtime={runtime}"], env=share(6), check=False
    )
    assert done.returncode not in {0, 1}
    assert "started" not in done.stdout
    assert words in done.stderr
    assert docker.docker("ps", "--all", "--quiet").stdout == ""
    state = docker.enclosure.base / runtime.removeprefix("cgpu-")
    assert docker.enclosure.run("find", state, "-path", "*/containers/*").stdout == ""


@pytest.mark.parametrize(
    "options",
    [["--volume=/dev:/dev"], ["--volume=/tmp:/dev/cgpu"], ["--tmpfs=/dev/cgpu/real"]],
    ids=["the host's /dev", "a folder on our base", "a file system in our base"],
)
def test_a_mount_over_the_limits_is_refused(docker: Docker, options: list[str]) -> None:
    """REL-4, ENV-9: what the user mounts must not hide the limits or reach the host's /dev."""
    options = ["--runtime=cgpu", *options]
    done = docker.run("small", "echo", "started", options=options, env=share(6), check=False)
    assert done.returncode not in {0, 1}
    assert "started" not in done.stdout
    assert "/dev/cgpu" in done.stderr
