"""``cgpu demo``: two programs share one GPU, one with 6 of 15 GiB and one with 9 of 15."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_cli import smi, tenant
from cgpu_cli.usage import read_usage
from cgpu_env import CgpuError
from cgpu_hook.driver import find_driver_dir
from cgpu_hook.node import load_node
from cgpu_hook.paths import open_state

if TYPE_CHECKING:
    import argparse

_MIB = 1 << 20
_WHOLE = 15
_SIMULATED = "Tesla T4:15109"


class Tenant:
    """A program under ``cgpu-run`` that does what it is told."""

    def __init__(self, part: int, flags: list[str], nvidia_smi: str) -> None:
        self.title = f"{part} of {_WHOLE}"
        command = [*_cgpu_run(part, flags), sys.executable, "-I", tenant.__file__, nvidia_smi]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: str) -> str:
        """Have ``order`` done, print what the program says, and return it."""
        if self.process.stdin is None or self.process.stdout is None:
            raise CgpuError("the program's pipes are closed")
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        lines = []
        while line := self.process.stdout.readline().rstrip("\n"):
            lines.append(line)
            print(f"  [{self.title}]  {line}")
        if not lines:
            raise CgpuError(f"the program with {self.title} GiB died", exit_code=1)
        return "\n".join(lines)

    def kill(self) -> None:
        """End it as the kernel would: by SIGKILL."""
        self.process.kill()
        self.process.wait()


class Demo:
    """Let two programs share one GPU, simulated if there is none, and show what each sees."""

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which nvidia-smi to run in each."""
        parser.add_argument(
            "--nvidia-smi",
            metavar="PROGRAM",
            default=shutil.which("nvidia-smi") or "",
            help="run this in each program, instead of a reader of our own",
        )

    def run(self, given: argparse.Namespace) -> int:
        """Run the demonstration; 0 where everything went as it must."""
        with tempfile.TemporaryDirectory(prefix="cgpu-demo-") as folder:
            state = given.state_dir or f"{folder}/state"
            driver = given.driver_dir or _driver(Path(folder, "driver"))
            flags = ["--driver-dir", driver, "--state-dir", state, "--gpus", "0"]
            tenants: list[Tenant] = []
            try:
                good = _play(flags, state, driver, given.nvidia_smi, tenants)
            finally:
                for program in tenants:
                    program.kill()
        print("\nAll of it as it must be." if good else "\nNot all of it is as it must be.")
        return 0 if good else 1


def _driver(folder: Path) -> str:
    """The directory of the real driver, or of a simulated one made in ``folder``."""
    try:
        return find_driver_dir()
    except CgpuError:
        from cgpu_sim import make_driver_dir

        print(f"No NVIDIA driver here: simulating one GPU, {_SIMULATED} MiB.\n")
        make_driver_dir(folder, [_SIMULATED])
        return str(folder)


def _cgpu_run(part: int, flags: list[str]) -> list[str]:
    return [sys.executable, "-m", "cgpu_cli.run", *flags, "--mem", f"{part}/{_WHOLE}", "--"]


def _play(
    flags: list[str], state: str, driver: str, nvidia_smi: str, tenants: list[Tenant]
) -> bool:
    total = load_node(open_state(state), driver).gpus[0].memory_bytes
    caps = [total * part // _WHOLE // _MIB for part in (6, 9)]
    _say("Two programs start, each with its share of GPU 0:")
    for part in (6, 9):
        print(f"  $ cgpu-run --mem {part}/{_WHOLE} -- PROGRAM")
        tenants.append(Tenant(part, flags, nvidia_smi))
    six, nine = tenants

    _say("What each sees:")
    good = [f"{caps[0]}MiB" in six.tell("show"), f"{caps[1]}MiB" in nine.tell("show")]

    _say("Each allocates half of its share:")
    good += [
        "success" in program.tell(f"alloc {cap // 2}")
        for program, cap in zip(tenants, caps, strict=True)
    ]
    _say("The smaller one asks for more than it has left, though the GPU has plenty:")
    good.append("OUT_OF_MEMORY" in six.tell(f"alloc {caps[0] // 2 + 1}"))
    _say("The other goes on undisturbed:")
    good.append("success" in nine.tell(f"alloc {caps[1] // 4}"))
    nine.tell("show")

    _say("From outside:\n  $ cgpu-smi")
    smi.show(read_usage(state, driver))
    _say("The GPU is promised to the last GiB, so a third program is refused:")
    good.append(_refused(1, flags))
    _say("The first is killed by SIGKILL; what it had is free again:\n  $ cgpu-smi")
    six.kill()
    usage = read_usage(state, driver)
    smi.show(usage)
    good.append(len(usage.uses) == 1)
    return all(good)


def _refused(part: int, flags: list[str]) -> bool:
    print(f"  $ cgpu-run --mem {part}/{_WHOLE} -- true")
    done = subprocess.run(
        [*_cgpu_run(part, flags), "true"], capture_output=True, text=True, check=False
    )
    print(f"  {done.stderr.strip()}")
    return done.returncode != 0


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)
