"""What ``cgpu demo`` says of a step that did not go as it must, and how it waits."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_cli.commands import demo
from cgpu_cli.demo import others
from cgpu_cli.demo import play as module
from cgpu_cli.demo.play import Tenant, play_demo
from cgpu_env import CgpuError, Gpu, GpuShare, Request
from cgpu_node.facts.driver import PROXIED
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

TOTAL = 15109 << 20
CAPS = {6: 6043, 9: 9065}
SECOND = 1_000_000_000


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module.time, "sleep", self._sleep)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


class Answering(Tenant):
    """Does at once what it is asked, as a program that has its share does."""

    def __init__(self, part: int, alive: list[int]) -> None:
        self.title = f"{part} of 15"
        self._part, self._alive = part, alive

    def send_order(self, order: str) -> str:
        if order == f"alloc {CAPS[6] // 2 + 1}":
            return "CUDA_ERROR_OUT_OF_MEMORY"
        return f"{CAPS[self._part]}MiB" if order in {"show", "use"} else "success"

    def kill(self) -> None:
        if self._part in self._alive:
            self._alive.remove(self._part)


class Stage:
    """Two programs on a GPU; ``shares`` of part 6, window by window, and what cgpu-smi lists."""

    kind = "program"

    def __init__(self, shares: Iterator[float], *, late: int = 0) -> None:
        self.alive: list[int] = []
        self._shares, self._late = shares, late
        self._had = {6: 0, 9: 0}

    def format_command(self, part: int) -> str:
        return f"cgpu-run --mem {part}/15 -- PROGRAM"

    def start(self, part: int) -> Tenant:
        self.alive.append(part)
        return Answering(part, self.alive)

    def try_start(self, part: int) -> str:
        return f"{part * 1007} MiB asked on GPU 0, where 0 of 15109 MiB are free"

    def show_usage(self) -> int:
        return self.count_tenants()

    def count_tenants(self) -> int:
        if self._late and len(self.alive) == 1:
            self._late -= 1
            return 2
        return len(self.alive)

    def gpu_times(self) -> dict[int, int]:
        had = dict(self._had)
        share = next(self._shares)
        self._had = {6: had[6] + int(share * SECOND), 9: had[9] + int((1 - share) * SECOND)}
        return had


def fair() -> Iterator[float]:
    return itertools.repeat(1 / 3)


def test_shares_that_are_late_on_a_busy_machine_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    assert play_demo(Stage(itertools.chain([0.6, 0.6, 0.6, 0.6], fair())), TOTAL)
    output = capsys.readouterr().out
    assert "own account 6 of 15 had 33.3 %" in output
    assert "] The smaller asks for more than is left of its share:\n" in output


def test_shares_that_never_come_are_named_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    assert not play_demo(Stage(itertools.repeat(0.6)), TOTAL)
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0] == "NOT all of it is as it must be:"
    assert last[1].startswith("  Both compute without a pause")
    assert "60.0 %" in last[1]
    assert "33.3 %" in last[1]
    assert clock.now < 300


def test_a_list_that_is_late_after_a_kill_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    assert play_demo(Stage(fair(), late=5), TOTAL)


def test_a_list_that_stays_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    assert not play_demo(Stage(fair(), late=1_000_000), TOTAL)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  The first program is killed by SIGKILL")
    assert "cgpu-smi lists 2, expected 1" in last


def test_a_step_that_cannot_be_done_is_named_and_everything_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch)
    stage = Stage(fair())

    def fail(_part: int) -> str:
        raise CgpuError("no answer")

    monkeypatch.setattr(stage, "try_start", fail)
    assert not play_demo(stage, TOTAL)
    assert capsys.readouterr().out.splitlines()[-1].endswith("is refused: no answer")
    assert stage.alive == []


def test_a_program_that_has_ended_is_named_and_leaves_nothing_to_write() -> None:
    """A pipe that nobody reads would be written to again when the interpreter ends."""
    process = subprocess.Popen(
        ["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    process.wait()
    with pytest.raises(CgpuError, match=r"^the one with 6 of 15 GiB died$"):
        Tenant(6, process, process.kill).send_order("show")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # a buffer that is not empty gives BrokenPipeError here
    process.stdout.close()


GPU = Gpu(0, "GPU-00000000-1111-2222-3333-444444444444", TOTAL)


def test_a_gpu_that_others_share_is_refused_with_who_they_are(tmp_path: Path) -> None:
    """CLI-9: all of it is promised, so a step would fail."""
    registry = Registry(str(tmp_path))
    node_gpu = NodeGpu(GPU.index, GPU.uuid, "Tesla T4", TOTAL, 0, ())
    node = Node("1", "/", {}, {}, (node_gpu,), ())
    others.refuse_shared(str(tmp_path), GPU)
    request = Request((GpuShare(0, GPU.uuid, CAPS[9] << 20),), 1, high_priority=False)
    owner = Owner(os.getpid(), start_time(os.getpid()) or 0, None)
    registry.admit("run-13a63079", "session", request, node, owner, ["/bin/sleep", "60"])
    with pytest.raises(CgpuError) as refusal:
        others.refuse_shared(str(tmp_path), GPU)
    assert str(refusal.value) == (
        "the demonstration needs all of GPU 0, which others share: session run-13a63079 (sleep 60,"
        f" pid {os.getpid()}) holds 0MiB of its {CAPS[9]}MiB"
    )
    assert "cgpu-smi" in refusal.value.hint
    others.refuse_shared(str(tmp_path), GPU._replace(uuid=GPU.uuid.replace("0", "9")))


def test_processes_that_hold_memory_are_named_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CLI-9: of another account, or without cgpu."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    held = {os.getpid(): 9065 << 20, ended.pid: 1 << 20}
    monkeypatch.setattr(others, "read_holders", lambda _: {GPU.uuid: held})
    name = Path("/proc/self/comm").read_text().strip()
    found = f"{name} (pid {os.getpid()}) holds 9065MiB"
    sentence = others.describe_holders("/driver", GPU)
    assert sentence.startswith(f"Others use GPU 0 too, which may be why: {found}.\nend them")
    monkeypatch.setattr(others, "read_holders", lambda _: {})
    assert others.describe_holders("/driver", GPU) == ""


def test_a_simulated_gpu_is_shown_whatever_gpus_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENV-13: the list of a job of Slurm is about real ones."""

    def find() -> str:
        raise CgpuError("no NVIDIA driver found on this machine")

    monkeypatch.setattr(demo, "find_driver_dir", find)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert demo.driver_directory(tmp_path / "driver") == str(tmp_path / "driver")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_the_driver_that_a_variable_names_is_no_reason_to_simulate_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-8: by `make demo` too, which has no option for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CGPU_DRIVER_DIR", "own")
    with pytest.raises(CgpuError, match=f"^driver directory {tmp_path}/own: there is no such dir"):
        demo.driver_directory(tmp_path / "driver")
    (tmp_path / "own").mkdir()
    for name in PROXIED:
        (tmp_path / "own" / name).touch()
    assert demo.driver_directory(tmp_path / "driver") == str(tmp_path / "own")
    assert not (tmp_path / "driver").exists()
