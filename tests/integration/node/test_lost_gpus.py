"""A GPU that is lost stops nothing on the others, and is named (REL-10)."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from cgpu_env import CgpuError, Gpu
from cgpu_node.facts.node import load_node
from cgpu_node.settings.config import Config
from cgpu_server.audit import driver_probe
from cgpu_server.audit.driver_probe import DriverProbe
from cgpu_sim import Fault, inject, lose
from lab.machine.audited import until
from lab.worlds.audit import FAST, Audited
from lab.worlds.cgpu_run import CAP_SIX, MIB, World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SIX = ("--mem", "6/15")
WORDS = {
    15: "GPU is lost (error 15)",
    16: "GPU requires reset (error 16)",
    999: "Unknown Error (error 999)",
}
MISMATCH = "Driver/library version mismatch (error 18)"


def do(index: int) -> str:
    return f"nvidia-smi --gpu-reset -i {index}, or reboot"


@pytest.fixture
def world() -> World:
    return World(gpus=2)


@pytest.fixture
def audited() -> Iterator[Audited]:
    made = Audited(gpus=2)
    yield made
    made.close()


def uuids(world: World) -> list[str]:
    """Of the GPUs, while all answer."""
    node = load_node(str(world.folder), str(world.driver), config=Config(), keep=False)
    return [gpu.uuid for gpu in node.gpus]


def cgpu(world: World, name: str, *words: str) -> Any:
    """What a command prints as JSON."""
    where = ("--state-dir", str(world.state), "--driver-dir", str(world.driver))
    command = [sys.executable, "-m", "cgpu_cli.main", name, *where, *words, "--json"]
    return json.loads(world.run_command(command).stdout)


def shares(world: World) -> list[int]:
    """The GPUs of a session that names none."""
    child = world.start(*SIX, "--", "sleep", "60")
    try:
        until(lambda: len(world.smi()["containers"]) == 1, "it is admitted")
        (session,) = world.smi()["containers"]
    finally:
        child.kill()
        child.communicate()
    world.wait_until_empty()
    return [gpu["index"] for gpu in session["gpus"]]


@pytest.mark.parametrize("has_handle", [False, True])
@pytest.mark.parametrize("result", WORDS)
def test_one_that_is_lost_from_the_start_stops_no_other(
    world: World, result: int, *, has_handle: bool
) -> None:
    lose(world.driver, 0, result, has_handle=has_handle)
    answer = world.fill()
    assert answer["total"] == CAP_SIX
    assert shares(world) == [1]
    sentence = f"GPU 0 does not answer: {WORDS[result]}; {do(0)}"
    shown = world.smi()
    assert [(gpu["index"], bool(gpu["lost"])) for gpu in shown["gpus"]] == [(0, True), (1, False)]
    assert shown["notes"] == [sentence]
    done = world.run(*SIX, "--gpus", "0", "--", "true")
    assert (done.returncode, done.stderr) == (2, f"cgpu-run: --gpus 0: {sentence}\n")


def test_one_that_is_lost_later_is_known_by_its_uuid(world: World) -> None:
    """And what a context costs on the others stays known, which is measured once."""
    names = uuids(world)
    assert shares(world) == [0, 1]
    lose(world.driver, 1)
    found = [each["what"] for each in cgpu(world, "doctor")["findings"]]
    assert f"GPU 1 ({names[1]}) does not answer: {WORDS[15]}" in found
    load_node(str(world.state), str(world.driver), config=Config(), refresh=True)
    assert shares(world) == [0]
    for word in ("1", names[1]):
        done = world.run(*SIX, "--gpus", word, "--", "true")
        assert f"GPU 1 ({names[1]}) does not answer: GPU is lost" in done.stderr
    [good, lost] = load_node(str(world.state), str(world.driver), config=Config()).gpus
    assert (lost.name, lost.total_bytes >> 20) == ("Tesla T4", 15109)
    assert good.context_bytes == 105 * MIB
    lose(world.driver, 1, 0)
    assert world.run(*SIX, "--gpus", "1", "--", "true").returncode == 0
    assert shares(world) == [0, 1]


def test_none_that_answers_refuses_whatever_is_asked_for(world: World) -> None:
    for index in (0, 1):
        lose(world.driver, index)
    for words in ((), ("--gpus", "all")):
        done = world.run(*SIX, *words, "--", "true")
        assert done.returncode == 2
        assert "no GPU of this node can be used: GPU 0 does not answer" in done.stderr


def test_doctor_names_it_and_says_what_to_do(world: World) -> None:
    lose(world.driver, 1)
    found = [each for each in cgpu(world, "doctor")["findings"] if each["check"] == "driver"]
    levels = [(each["level"], each["value"]) for each in found]
    assert levels == [("ok", "550.163.01"), ("error", "1")]
    assert found[1]["what"] == f"GPU 1 does not answer: {WORDS[15]}"
    assert found[1]["mend"] == f"{do(1)}; then: cgpu probe"


def test_a_library_of_another_release_than_the_module_is_told_in_words(world: World) -> None:
    inject(world.driver, Fault("nvmlInit", result=18, repeat=True))
    found = [each for each in cgpu(world, "doctor")["findings"] if each["check"] == "driver"]
    [error] = found
    assert error["what"].endswith(f"does not answer: nvmlInit_v2: {MISMATCH}")
    assert error["mend"].startswith("reboot, or reload the kernel modules: modprobe -r")
    done = world.run(*SIX, "--", "true")
    assert MISMATCH in done.stderr
    with pytest.raises(CgpuError, match="version mismatch"):
        DriverProbe(str(world.driver)).read()


def test_the_servers_probe_reads_the_others_and_begins_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a driver that begins anew sees a GPU that is back."""
    names = uuids(world)
    lose(world.driver, 0, has_handle=True)
    probe = DriverProbe(str(world.driver))
    assert [*probe.read()] == [names[1]]
    assert probe.lost == (Gpu(0, "", 0, f"{WORDS[15]}; {do(0)}"),)
    first = probe._child  # noqa: SLF001
    probe.read()
    assert probe._child is first  # noqa: SLF001
    monkeypatch.setattr(driver_probe, "_RENEWAL_SECONDS", 0.0)
    probe.read()
    assert probe._child is None  # noqa: SLF001
    lose(world.driver, 0, 0)
    assert [*probe.read()] == names
    assert probe.lost == ()
    probe.close()


def test_the_server_sees_one_lost_and_back_while_containers_run(audited: Audited) -> None:
    """What a container takes past cgpu on another GPU is charged meanwhile."""
    audited.serve(FAST, "--metrics", "127.0.0.1:0")
    program = audited.program("--gpus", "0")
    assert program.ask("take 100") == 0
    names = [gpu["uuid"] for gpu in audited.smi()["gpus"]]
    lose(audited.driver, 1)
    until(lambda: names[1] in audited.logged("gpu_lost"), "it is logged")
    assert f'do="{do(1)}"' in audited.logged("gpu_lost")
    program.ask("past 1000")
    until(lambda: audited.outside() >= 1000, "it is charged")
    assert [bool(gpu["lost"]) for gpu in audited.smi()["gpus"]] == [False, True]
    assert lost_by_metrics(audited) == {"0": 0, "1": 1}
    done = audited.run(*SIX, "--gpus", "1", "--", "true")
    assert f"GPU 1 ({names[1]}) does not answer" in done.stderr
    program.close()
    audited.wait_until_empty()
    lose(audited.driver, 1, 0)
    until(lambda: f"gpu={names[1]}" in audited.logged("gpu_back"), "nobody had to ask for it")
    assert shares(audited) == [0, 1]
    assert not audited.logged("audit_fails")


def test_one_that_was_lost_while_no_container_ran_fails_few_programs(audited: Audited) -> None:
    """They end before the audit looks: it looks for them, too."""
    audited.serve("interval_seconds = 8")
    names = [gpu["uuid"] for gpu in audited.smi()["gpus"]]
    lose(audited.driver, 0)
    audited.run(*SIX, "--", "true")
    until(lambda: names[0] in audited.logged("gpu_lost"), "it is logged")
    assert shares(audited) == [1]


def lost_by_metrics(world: Audited) -> dict[str, float]:
    """Whether a GPU is lost, by index."""
    address = world.logged("metrics_served").split("address=")[1].split()[0]
    with urlopen(f"http://{address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("cgpu_gpu_lost{")]
    return {line.split('gpu="')[1][0]: float(line.split()[-1]) for line in found}
