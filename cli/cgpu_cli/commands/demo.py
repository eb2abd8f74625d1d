"""``cgpu demo``: two programs share one GPU, one with 6 of 15 GiB and one with 9 of 15.

The second program has twice the weight of the first, and so two thirds of the GPU's time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cgpu_cli.demo import offspring, others, tenant
from cgpu_cli.demo.play import WEIGHTS, WHOLE, Tenant, play_demo
from cgpu_cli.running import named_driver
from cgpu_cli.show import table
from cgpu_cli.show.look import query_usage
from cgpu_env import CgpuError, program
from cgpu_env.devices import select_gpus
from cgpu_node.facts.driver import check_driver_dir, find_driver_dir
from cgpu_node.facts.node import load_node
from cgpu_node.paths import DRIVER_VARIABLE, open_state, read_variable

TAG = "CGPU_SIM_TAG"  # a simulated GPU distinguishes programs by it


class Demo:
    """Let two programs share one GPU, simulated if there is none, and show what each sees."""

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the nvidia-smi to run in each."""
        parser.add_argument(
            "--nvidia-smi",
            metavar="PROGRAM",
            type=str,
            default=shutil.which("nvidia-smi") or "",
            help="run this in each program instead of a built-in reader",
        )

    def run(self, given: argparse.Namespace) -> int:
        """Run the demonstration; 0 if everything went as it must."""
        program.undo_when_terminated()
        with tempfile.TemporaryDirectory(prefix="cgpu-demo-") as folder, _end_server_at_exit(given):
            driver = given.driver_dir or driver_directory(Path(folder, "driver"))
            state = open_state(given.state_dir or f"{folder}/state")
            named_driver.check_conflict(state, driver)
            stage = Programs(state, driver, given.nvidia_smi)
            [gpu] = select_gpus(
                "--gpus", "0", [gpu.as_gpu for gpu in load_node(state, driver).gpus]
            )
            others.refuse_shared(state, gpu)
            good = play_demo(stage, gpu.total_bytes)
            if not good:
                print(others.describe_holders(driver, gpu))
        return 0 if good else 1


def _end_server_at_exit(given: argparse.Namespace) -> AbstractContextManager[None]:
    """End the server of our own folder, to which it would keep writing. Other servers stay."""
    return nullcontext() if given.state_dir else offspring.end_at_exit()


class Programs:
    """The stage of two programs under ``cgpu-run``."""

    kind = "program"

    def __init__(self, state: str, driver: str, nvidia_smi: str) -> None:
        self._state, self._driver, self._nvidia_smi = state, driver, nvidia_smi

    def format_command(self, part: int) -> str:
        """Return the command that a user types."""
        return f"cgpu-run {' '.join(_build_options(part))} -- PROGRAM"

    def start(self, part: int) -> Tenant:
        """Start the program with its share."""
        words = [*self._cgpu_run(part), sys.executable, "-I", tenant.__file__, self._nvidia_smi]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, TAG: str(part)},
            start_new_session=True,  # an interrupt from the terminal is for the demonstration
        )
        return Tenant(part, process, process.kill)

    def try_start(self, part: int) -> str:
        """Try to start one more program. Return the sentence that refuses it, or ""."""
        words = [*self._cgpu_run(part), "true"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()

    def show_usage(self) -> None:
        """Print the output of cgpu-smi."""
        table.print_tables(query_usage(self._state, self._driver))

    def count_tenants(self) -> int:
        """Return how many programs cgpu-smi lists."""
        return len(query_usage(self._state, self._driver).uses)

    def gpu_times(self) -> dict[int, int]:
        """Return the GPU time in ns that each program has had, by the program's part."""
        return true_times(self._driver)

    def _cgpu_run(self, part: int) -> list[str]:
        flags = ["--driver-dir", self._driver, "--state-dir", self._state, "--gpus", "0"]
        words = [sys.executable, "-m", "cgpu_cli.run"]
        return [*words, *flags, *_build_options(part), "--"]


def _build_options(part: int) -> list[str]:
    weight = WEIGHTS.get(part, 1)
    return ["--mem", f"{part}/{WHOLE}", *(["--weight", str(weight)] if weight > 1 else [])]


def true_times(driver: str) -> dict[int, int]:
    """Return each program's GPU time in ns, by the part that is its tag; nothing on a real GPU."""
    if not Path(driver, "machine").exists():
        return {}
    from cgpu_sim import gpu_times

    times = gpu_times(Path(driver))
    return {int(process.tag): process.busy_ns for process in times if process.tag}


def driver_directory(folder: Path) -> str:
    """Return the directory of the driver that is named or found, else of a simulated one.

    Args:
        folder: where to make a simulated driver.

    Raises:
        CgpuError: there is no driver in the directory that the user names.
    """
    own = read_variable(DRIVER_VARIABLE)
    try:
        found = os.path.abspath(own) if own else find_driver_dir()
    except CgpuError:
        from cgpu_sim import make_driver_dir

        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it is for other GPUs
        print("No NVIDIA driver on this machine: simulating a Tesla T4 of 15109 MiB.")
        return os.fspath(make_driver_dir(folder))
    check_driver_dir(found)
    print(f"NVIDIA driver in {found}.")
    return found
