"""The machine under test, and child processes on it: plain, or capped by cgpu-run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu.cage import PYTHONPATH, Ask, Cage, CgpuRun, Runc, Share
from gpu.check import CAPPED, HOST, PLAIN, Check, NotRunError, heard
from gpu.interface.nvml import Nvml

TIMEOUT, TIMEOUT_BRIEF = 300, 60  # seconds that a child may take
_TORCH = "import torch; print(torch.__version__, torch.cuda.is_available())"
PAUSE = 0.2
ORDINARY = Ask()
NOTHING: Mapping[str, str] = {}
HOLDS, FAILS, NOT_RUN = "holds", "does not hold", "not run"


class Outcome(NamedTuple):
    """What became of a check.

    Attributes:
        cage: what capped it; empty where nothing did.
        reason: why it failed without a finding, or was not run.
    """

    name: str
    part: str
    cage: str
    statement: str
    status: str
    measured: dict[str, Any]
    reason: str = ""


class Program(NamedTuple):
    """A child that ended."""

    code: int
    out: str
    log: str


class World:
    """One GPU of a driver, a state directory of its own, and a Python for the children.

    Attributes:
        index: of the GPU, in PCI order.
        cap: bytes that capped children get.
        quarter: of the memory, for children of which there are more than two.
        cage: what caps them; one of ``cages``.
        brief: whether the whole may take minutes only: fewer shares, shorter waits.
        timeout: seconds that a child may take.
        by_pid: for each figure of a child, whether NVML gave it for its pid.
    """

    def __init__(
        self,
        driver_dir: str | None,
        index: int,
        python: str,
        *,
        simulated: bool,
        brief: bool = False,
    ) -> None:
        self.driver_dir = driver_dir
        self.index, self.python = index, python
        self.simulated, self.brief = simulated, brief
        self.timeout = TIMEOUT_BRIEF if brief else TIMEOUT
        self._folder = tempfile.TemporaryDirectory(prefix="cgpu-check-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self.nvml = Nvml(f"{driver_dir}/libnvidia-ml.so.1" if driver_dir else "libnvidia-ml.so.1")
        self.gpu = self.nvml.gpu(index)
        self.total = self.nvml.memory(self.gpu).total
        whole = max(2, round(self.total / (1 << 30)))
        part = max(1, round(whole * 0.4))
        self.quarter = max(1, whole // 4)
        self.cap = self.total * part // whole
        state, uuid = self.folder / "state", self.nvml.uuid(self.gpu)
        share = Share(part, whole, index, uuid, state, driver_dir, python)
        self.cages: tuple[Cage, ...] = (CgpuRun(share), Runc(share, self.folder))
        self.cage: Cage = self.cages[0]
        self.torch, self.torch_obstacle = self._torch()
        self.by_pid: list[bool] = []
        self._obstacles: dict[str, str] = {}
        self._started: dict[str, str] = {}

    def _torch(self) -> tuple[str, str]:
        """Version of the children's PyTorch, or why it cannot be used without a cap either."""
        if self.simulated:
            return "", "PyTorch does not run on the simulated driver"
        words = [self.python, "-c", _TORCH]
        environment = self.environment(plain=True)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:]
            return "", "no torch" if done.returncode == 1 and "torch" in str(last) else str(last)
        version, available = done.stdout.split()
        return (version, "") if available == "True" else ("", f"torch {version} sees no GPU")

    def environment(self, *, plain: bool) -> dict[str, str]:
        """Of a child; a capped one sees the GPU under test only."""
        environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment["PYTHONPATH"] = PYTHONPATH
        environment["CGPU_CHECK_GPU"] = str(self.index if plain else 0)
        environment["CGPU_CHECK_CAP"] = str(self.cap)
        environment["CGPU_CHECK_SIMULATED"] = "1" if self.simulated else ""
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        if self.driver_dir:
            environment["LD_LIBRARY_PATH"] = self.driver_dir
        return environment

    def needs_capping(self) -> None:
        """See that a program can be started capped.

        Raises:
            NotRunError: the machine lacks what that takes.
            RuntimeError: it does not start for another reason.
        """
        name = self.cage.name
        if name not in self._obstacles:
            self._obstacles[name] = self.cage.obstacle()
        if self._obstacles[name]:
            raise NotRunError(self._obstacles[name])
        if name not in self._started:
            done = self.run(["true"], capped=True)
            self._started[name] = "" if done.code == 0 else done.log.strip()[-300:]
        if self._started[name]:
            raise RuntimeError(f"{name} does not start: {self._started[name]}")

    def start(
        self,
        command: list[str],
        *,
        capped: bool,
        ask: Ask = ORDINARY,
        more: Mapping[str, str] = NOTHING,
    ) -> subprocess.Popen[str]:
        """A child with pipes; its log is a temporary file, ``process.log``."""
        environment = {**self.environment(plain=not capped), **more}
        words = self.cage.command(command, environment, ask) if capped else command
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        process.log = log  # type: ignore[attr-defined]
        return process

    def run(
        self,
        command: list[str],
        *,
        capped: bool,
        ask: Ask = ORDINARY,
        more: Mapping[str, str] = NOTHING,
    ) -> Program:
        """A child to its end."""
        process = self.start(command, capped=capped, ask=ask, more=more)
        try:
            out, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            stop(process)
            out, _ = process.communicate()
        return Program(process.returncode, out, log_of(process))

    def child(self, name: str) -> list[str]:
        """The command that runs the check ``name``."""
        return [self.python, "-m", "gpu.child", name]

    def bytes_of(self, pid: int, before: int) -> int:
        """What NVML says of process ``pid``, else what the GPU took since ``before``."""
        time.sleep(PAUSE)
        own = self.nvml.processes(self.gpu).get(pid)
        self.by_pid.append(bool(own))
        return own or self.used() - before

    def close(self) -> None:
        """Remove what the cages and the children left."""
        for cage in self.cages:
            cage.clean()
        self._folder.cleanup()

    def used(self) -> int:
        """Bytes that NVML says are taken of this GPU."""
        return self.nvml.memory(self.gpu).used


def stop(process: subprocess.Popen[str]) -> None:
    """Kill a child that was started here, with its own children, if it runs still."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def log_of(process: subprocess.Popen[str]) -> str:
    """The standard error of a child that ended."""
    log = process.log  # type: ignore[attr-defined]
    log.seek(0)
    text: str = log.read()
    log.close()
    return text


def outcome(world: World, check: Check) -> Outcome:
    """Run one check: nothing that it does, or dies of, ends this process."""
    cage = "" if check.where == PLAIN else world.cage.name
    head = check.name, check.part, cage, check.statement
    try:
        _see_whether(world, check)
        message = _host(world, check) if check.where == HOST else _child(world, check)
    except NotRunError as error:
        return Outcome(*head, NOT_RUN, {}, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the report
        return Outcome(*head, FAILS, {}, f"{type(error).__name__}: {error}")
    if "not_run" in message:
        return Outcome(*head, NOT_RUN, {}, message["not_run"])
    return Outcome(*head, HOLDS if message["holds"] else FAILS, message["measured"])


def _see_whether(world: World, check: Check) -> None:
    if world.simulated and not check.simulated:
        raise NotRunError("the simulated driver does not have this")
    if check.torch and world.torch_obstacle:
        raise NotRunError(world.torch_obstacle)
    if check.where != PLAIN:
        world.needs_capping()


def _host(world: World, check: Check) -> dict[str, Any]:
    finding = check.run(world)
    return {"holds": bool(finding.holds), "measured": finding.measured}


def _child(world: World, check: Check) -> dict[str, Any]:
    before = world.used()
    capped = check.where == CAPPED
    process = world.start(world.child(check.name), capped=capped, more=dict(check.environment))
    timer = threading.Timer(world.timeout, stop, [process])
    timer.start()
    try:
        output = _converse(world, process, before)
        process.communicate()
    finally:
        timer.cancel()
        stop(process)
        log = log_of(process)
    if output is None:
        raise RuntimeError(f"ended with {process.returncode}: {log.strip()[-600:]}")
    return output


def _converse(world: World, process: subprocess.Popen[str], before: int) -> dict[str, Any] | None:
    """Answer what the child asks until it says what it found."""
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        message = heard(line)
        if message is None:
            continue
        if "sample" not in message:
            return message
        size = world.bytes_of(int(message["sample"]), before)
        process.stdin.write(json.dumps({"bytes": size}) + "\n")
        process.stdin.flush()
    return None
