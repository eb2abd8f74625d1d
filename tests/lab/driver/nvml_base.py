"""Simulated machines, their tenants, and a container's base directory with the NVML proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cgpu_native import LimitsGpu, create_ledger, pack_limits
from cgpu_shim.relocation import relocate
from cgpu_sim import machine
from cgpu_sim.directory import make_driver_dir
from lab.driver.attached import AttachedLedger
from lab.runs import counted

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests" / "programs"
MACHINE = ROOT / "tests" / "sim" / "machine"
SONAME = "libnvidia-ml.so.1"
SIMULATED = ROOT / "tests" / "sim" / "cgpu_sim" / "_lib" / SONAME
MIB = 1 << 20
T4_MIB = 15109


class Gpu(NamedTuple):
    """A GPU of a simulated machine."""

    name: str = "Tesla T4"
    mib: int = T4_MIB
    number: int = 0
    reserved_mib: int = 0
    mig: bool = False

    @property
    def uuid(self) -> str:
        return f"GPU-11111111-2222-3333-4444-{self.number:012d}"

    def limited(self, container: int, device: int) -> LimitsGpu:
        """This GPU in the limits of a container with ``container`` of ``device`` GiB."""
        total = self.mib * MIB
        return LimitsGpu(self.uuid, self.number, total * container // device, total)


def make_machine(path: Path, gpus: Sequence[Gpu]) -> Path:
    """A driver directory with the simulated NVML, the machine and its device nodes."""
    return make_driver_dir(
        path,
        [_describe(gpu) for gpu in gpus],
    )


def _describe(gpu: Gpu) -> machine.Gpu:
    found = machine.Gpu(gpu.name, gpu.mib, gpu.uuid, reserved_mib=gpu.reserved_mib)
    return found._replace(mig=True, capability=(8, 0)) if gpu.mig else found


def build_tenant(target: Path) -> Path:
    """Compile the program that uses a simulated GPU."""
    sources = [PROGRAMS / "tenant.c", *MACHINE.glob("*.c")]
    command = ["gcc", "-std=gnu11", "-O1", "-I", MACHINE, "-o", target, *sources, "-lm"]
    subprocess.run(command, check=True)
    return target


class Tenant(NamedTuple):
    """Starts processes that use a machine's GPUs."""

    program: Path
    machine: Path

    @contextmanager
    def running(self, mib: int, gpu: int = 0, kernel_ms: int = 0) -> Iterator[int]:
        """A process that holds ``mib`` MiB and may compute; its pid."""
        with subprocess.Popen(
            [self.program, str(gpu), str(mib), str(kernel_ms)],
            env=os.environ | {"CGPU_SIM_MACHINE": str(self.machine / "machine")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid


class View(NamedTuple):
    """What programs use: a folder with ``libnvidia-ml.so.1``, and the machine behind it."""

    libraries: Path
    machine: Path

    def run(self, *command: str | Path, **env: str) -> str:
        """Standard output of a program that must end well."""
        done = subprocess.run(
            [str(part) for part in command],
            env=os.environ
            | {
                "LD_LIBRARY_PATH": str(self.libraries),
                "CGPU_SIM_MACHINE": str(self.machine / "machine"),
                "TERM": "dumb",
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    def python(
        self, program: str, interpreter: str | Path = sys.executable, **env: str
    ) -> list[str]:
        """Lines that a Python program prints, with pynvml imported and initialised."""
        prelude = (
            "import pynvml as n, ctypes as c, os\n"
            "def code(f, *a):\n"
            "    try:\n        return f(*a)\n"
            "    except n.NVMLError as e:\n        return type(e).__name__\n"
            "n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(0)\n"
        )
        return self.run(interpreter, "-c", prelude + program, **env).splitlines()


class Base(NamedTuple):
    """The directory that stands for ``/dev/cgpu`` of one container, with the relocated proxy."""

    path: Path
    gpus: tuple[LimitsGpu, ...]
    machine: Path

    @property
    def view(self) -> View:
        return View(self.path / "lib", self.machine)

    def attach(self, pid: int) -> AttachedLedger:
        """A ledger slot for a process that calls itself ``pid``."""
        return AttachedLedger.attach(self.path / "ledger", pid)

    def set_cap(self, cap_bytes: int) -> None:
        """Change the first GPU's cap in place, as the host does."""
        page = pack_limits("test", [self.gpus[0]._replace(cap_bytes=cap_bytes), *self.gpus[1:]])
        with (self.path / "limits").open("r+b") as file:
            file.write(page)


def lay_out(path: Path, driver: Path, gpus: Sequence[LimitsGpu]) -> Base:
    """A base directory in front of the library in ``driver``."""
    for folder in ("real", "lib"):
        (path / folder).mkdir(parents=True)
    (path / "real" / SONAME).symlink_to(driver / SONAME)
    proxy = counted.proxy(SONAME).read_bytes()
    (path / "lib" / SONAME).write_bytes(relocate(proxy, str(path)))
    (path / "limits").write_bytes(pack_limits("test", gpus))
    create_ledger(path, "ledger")
    return Base(path, tuple(gpus), driver)
