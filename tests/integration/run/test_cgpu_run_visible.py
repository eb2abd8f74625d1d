"""What the user restricts by ``CUDA_VISIBLE_DEVICES`` stays restricted (ENV-13)."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_node.facts.node import load_node
from cgpu_node.settings.config import Config
from cgpu_sim import lose, make_driver_dir
from cgpu_sim.machine import TESLA_T4, gpu_uuid
from lab.driver.real_driver import real_nvidia_smi
from lab.worlds.cgpu_run import CAP_NINE, CAP_SIX, PROGRAMS, Node, World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

LIST = (sys.executable, "-I", str(PROGRAMS / "list_gpus.py"))
SIX = ("--mem", "6/15")
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
OUT_OF_MEMORY, NO_DEVICE = 2, 100
NONE = ["", "-1", "NoDevFiles", "7", "1,1", "GPU-none"]


@pytest.fixture
def world() -> World:
    """Four GPUs, which CUDA numbers as NVML does."""
    return World(gpus=4)


@pytest.fixture
def unlike() -> World:
    """Four GPUs, which CUDA numbers 2, 1, 0, 3 by default, because it takes the fastest first."""
    world = World()
    counts = (72, 142, 200, 40)
    make_driver_dir(world.driver, [TESLA_T4._replace(sm_count=count) for count in counts])
    return world


def environment(world: World, visible: str | None, **more: str) -> dict[str, str]:
    given = world.environment(**more)
    given.pop(VISIBLE, None)
    return given if visible is None else {**given, VISIBLE: visible}


def answer(world: World, visible: str | None, *words: str, **more: str) -> Any:
    """What a program prints as JSON; ``words`` are those of ``cgpu-run`` and its own."""
    done = world.run(*words, env=environment(world, visible, **more))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_driver(world: World, visible: str | None, **more: str) -> list[int]:
    """The GPUs of a program without ``cgpu-run``."""
    given = environment(world, visible, LD_LIBRARY_PATH=str(world.driver), **more)
    shown = json.loads(world.run_command([*LIST], env=given).stdout)
    return indices(world, shown["gpus"])


def indices(world: World, gpus: list[list[Any]]) -> list[int]:
    names = [gpu_uuid(world.driver / "machine", index) for index in range(4)]
    known = [name.removeprefix("GPU-").replace("-", "") for name in names]
    return [known.index(uuid) for uuid, _ in gpus]


@pytest.mark.parametrize("visible", [None, "1", "2,3", "3,0", "0,7,1", " 2 , 1", "0,-1,1", *NONE])
def test_a_program_has_the_gpus_that_it_has_without_cgpu(world: World, visible: str | None) -> None:
    """ENV-13: Slurm sets 2,3 or 1, and NoDevFiles for a job without a GPU."""
    shown = answer(world, visible, *SIX, "--", *LIST)
    expected = by_driver(world, visible)
    assert indices(world, shown["gpus"]) == expected
    assert [mib for _, mib in shown["gpus"]] == [CAP_SIX] * len(expected)
    assert shown["status"] == (0 if expected else NO_DEVICE)
    assert (visible in NONE) == (expected == [])


def test_gpus_may_be_named_by_the_beginning_of_a_uuid(world: World) -> None:
    """ENV-13."""
    uuid = gpu_uuid(world.driver / "machine", 2)
    for visible in (uuid, f"{uuid[:12].lower()},0"):
        shown = answer(world, visible, *SIX, "--", *LIST)
        assert indices(world, shown["gpus"]) == by_driver(world, visible) != []


@pytest.mark.parametrize("order", ["", "FASTEST_FIRST", "PCI_BUS_ID"])
@pytest.mark.parametrize("visible", [None, "0,3", "1"])
def test_numbers_mean_what_they_mean_to_the_driver(
    unlike: World, visible: str | None, order: str
) -> None:
    """ENV-13: a list in numbers, on GPUs of different models."""
    more = {ORDER: order} if order else {}
    shown = answer(unlike, visible, *SIX, "--", *LIST, **more)
    expected = by_driver(unlike, visible, **more)
    if visible is None:
        expected.sort()
    assert indices(unlike, shown["gpus"]) == expected


@pytest.mark.parametrize("machine", ["world", "unlike"])
@pytest.mark.parametrize("tool", ["vllm", "deepspeed", "ray"])
@pytest.mark.parametrize("visible", [None, "3,1", "2"])
def test_what_tools_read_and_set_leads_to_the_same_gpus(
    request: pytest.FixtureRequest, machine: str, tool: str, visible: str | None
) -> None:
    """ENV-13: vLLM and DeepSpeed read whole numbers; NVML and workers know them as CUDA does."""
    world: World = request.getfixturevalue(machine)
    shown = answer(world, visible, *SIX, "--", *LIST)["gpus"]
    found = answer(world, visible, *SIX, "--", *LIST, tool)
    assert sorted(found) == sorted(shown)
    assert found == shown or tool == "deepspeed"


def test_caps_follow_the_list(world: World) -> None:
    """ENV-3, ENV-13: the first size is that of the first GPU that the program sees."""
    shown = answer(world, "3,1", "--mem", "6,9/15", "--", *LIST)["gpus"]
    assert [mib for _, mib in shown] == [CAP_SIX, CAP_NINE]
    assert indices(world, shown) == [3, 1]


@pytest.mark.parametrize(("gpus", "expected"), [("3", [3]), ("3,2", [3, 2]), ("all", [2, 3])])
def test_the_option_chooses_among_the_gpus_of_the_list(
    world: World, gpus: str, expected: list[int]
) -> None:
    """ENV-13: also in another order."""
    shown = answer(world, "2,3", *SIX, "--gpus", gpus, "--", *LIST)
    assert indices(world, shown["gpus"]) == expected


@pytest.mark.parametrize(
    ("visible", "gpus", "named", "allowed"),
    [("2,3", "0", 0, "2, 3"), ("2,3", "3,1", 1, "2, 3"), ("-1", "0", 0, "none")],
)
def test_the_option_is_refused_where_it_names_another_gpu(
    world: World, visible: str, gpus: str, named: int, allowed: str
) -> None:
    """ENV-9, ENV-13."""
    words = [*SIX, "--gpus", gpus, "--", "true"]
    done = world.run(*words, env=environment(world, visible))
    assert done.returncode == 2
    assert done.stderr == (
        f"cgpu-run: --gpus {gpus}: CUDA_VISIBLE_DEVICES={visible} leaves out GPU {named}: expected"
        f" GPUs that it names ({allowed}), or another CUDA_VISIBLE_DEVICES\n"
    )


def test_an_instance_of_mig_is_refused(world: World) -> None:
    """ENV-13: the GPU that it is part of would be more than the user has."""
    done = world.run(*SIX, "--", "true", env=environment(world, "MIG-8f3a"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "CUDA_VISIBLE_DEVICES=MIG-8f3a: cgpu-run shares whole GPUs" in done.stderr


@pytest.mark.parametrize("root", [True, False], ids=["root", "user"])
@pytest.mark.parametrize("words", ["env -i", "env -u CUDA_VISIBLE_DEVICES", "env {}=0,1"])
@pytest.mark.parametrize(("visible", "own"), [("1", [1]), ("", [])])
def test_a_gpu_outside_of_the_session_gives_nothing(
    visible: str, own: list[int], words: str, *, root: bool
) -> None:
    """ENV-13, REL-6: a program may change the variable; another GPU stays out of its reach."""
    world = World(root=root, gpus=2)
    library = f"LD_LIBRARY_PATH={world.driver}"
    program = [*words.format(VISIBLE).split(), library, *LIST, "context"]
    answers = answer(world, visible, *SIX, "--", *program)
    assert answers == [0 if index in own else OUT_OF_MEMORY for index in range(2)]


def test_a_session_without_a_gpu_has_no_account(world: World) -> None:
    """ENV-13: nothing is promised to it, and a note says why."""
    script = "ls $0/containers; echo $CUDA_VISIBLE_DEVICES"
    words = [*SIX, "--", "sh", "-c", script, str(world.state)]
    done = world.run(*words, env=environment(world, "-1"))
    assert (done.returncode, done.stdout) == (0, "-1\n")
    assert done.stderr.startswith("cgpu-run: note: CUDA_VISIBLE_DEVICES=-1 leaves no GPU\n")
    assert world.sessions() == []


@pytest.mark.parametrize("visible", ["-1", ""])
@pytest.mark.parametrize(
    ("mem", "sentence"),
    [
        ("99/15", "--mem 99/15: 99 GiB is more than the 15 GiB given as the whole"),
        ("6,3/15", "--mem 6,3/15: 2 values, but no GPU is visible"),
        ("0/15", "--mem 0/15: expected shares of at least 1 GiB"),
    ],
)
def test_a_session_without_a_gpu_asks_for_what_a_gpu_could_give(
    world: World, visible: str, mem: str, sentence: str
) -> None:
    """ENV-9, ENV-13: bytes cannot be compared with any GPU, and a note says so."""
    given = environment(world, visible)
    done = world.run("--mem", mem, "--", "true", env=given)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cgpu-run: {sentence}\n")
    done = world.run("--mem", "500GiB", "--", "true", env=given)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"cgpu-run: note: CUDA_VISIBLE_DEVICES={visible} leaves no GPU",
        "cgpu-run: note: --mem 500GiB is not compared with the memory of any GPU",
    ]


@pytest.mark.parametrize("version", ["535", "550"])
@pytest.mark.parametrize("visible", ["1", "-1", ""])
def test_nvidia_smi_shows_no_gpu_with_errors(version: str, visible: str) -> None:
    """ENV-13: those outside of the session without what is used of them, and none where none is."""
    world = World(gpus=2)
    for words in ("", "-q", "-L", "pmon -c 1", "dmon -c 1"):
        program = [real_nvidia_smi(version), *words.split()]
        done = world.run(*SIX, "--", *program, env=environment(world, visible))
        assert not re.search(r"ERR|Insufficient|Unknown Error", done.stdout), done.stdout
        assert ("No devices" in done.stdout) == (visible != "1"), done.stdout
        assert ("Tesla T4" in done.stdout) == (visible == "1" and "mon" not in words), done.stdout


def test_a_session_without_a_gpu_has_none_for_nvml(world: World) -> None:
    """ENV-13: by its number, too."""
    program = (
        "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); found = ctypes.c_uint64(7)\n"
        "n.nvmlInit_v2()\n"
        "for name in 'nvmlDeviceGetCount', 'nvmlDeviceGetCount_v2':\n"
        "    print(n[name](ctypes.byref(found)), found.value)\n"
        "for name in 'nvmlDeviceGetHandleByIndex', 'nvmlDeviceGetHandleByIndex_v2':\n"
        "    print(n[name](0, ctypes.byref(found)))\n"
    )
    for visible, expected in (("-1", ["0 0", "0 0", "2", "2"]), ("1", ["0 4", "0 4", "0", "0"])):
        words = [*SIX, "--", sys.executable, "-I", "-c", program]
        done = world.run(*words, env=environment(world, visible))
        assert done.stdout.splitlines() == expected


def test_without_namespaces_nothing_would_keep_a_program_from_the_gpus(world: World) -> None:
    """ENV-13."""
    words = ["--no-namespaces", *SIX, "--", "true"]
    done = world.run(*words, env=environment(world, ""))
    assert done.returncode == 2
    sentence = "cgpu-run: CUDA_VISIBLE_DEVICES= leaves no GPU, and cgpu-run cannot hold a program"
    assert done.stderr.startswith(f"{sentence} to that: without namespaces\n")


@pytest.fixture(params=["own", "server"])
def user(request: pytest.FixtureRequest) -> Iterator[World]:
    """A user with four GPUs, in an account of their own or in that of root's server."""
    if request.param == "own":
        yield World(root=False, gpus=4)
        return
    node = Node(gpus=4)
    yield node.user
    node.end()


def test_a_job_that_may_open_some_gpus_only_has_these(user: World) -> None:
    """ENV-13: Slurm withholds the others, and numbers those of the job from 0."""
    for own in ([2], [1, 3], [0, 1, 2, 3]):
        for index in range(4):
            (user.driver / f"gpu{index}").chmod(0o666 if index in own else 0)
        for visible in (None, ",".join(map(str, range(len(own))))):
            shown = answer(user, visible, *SIX, "--", *LIST)["gpus"]
            assert indices(user, shown) == own
            assert answer(user, visible, *SIX, "--", *LIST, "vllm") == shown
        first = answer(user, None, *SIX, "--gpus", "0", "--", *LIST)["gpus"]
        assert indices(user, first) == own[:1]


def test_a_gpu_that_is_lost_since_the_user_looked_is_left_out() -> None:
    """REL-10: root's server knows it, and the user's facts are older."""
    node = Node(gpus=4)
    user = node.user
    assert indices(user, answer(user, None, *SIX, "--", *LIST)["gpus"]) == [0, 1, 2, 3]
    lose(user.driver, 1)
    load_node(str(node.root.state), str(user.driver), config=Config(), refresh=True)
    done = user.run(*SIX, "--gpus", "1", "--", "true")
    assert done.returncode == 2
    assert "does not answer: GPU is lost (error 15)" in done.stderr
    assert indices(user, answer(user, None, *SIX, "--", *LIST)["gpus"]) == [0, 2, 3]
    node.end()
