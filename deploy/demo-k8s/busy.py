"""Programs in pods that keep a simulated GPU busy, and what of its time each has had."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgpu_cli.commands.demo import TAG
from cgpu_cli.demo import tenant
from cgpu_sim import gpu_times
from lab.containers.enclosure import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

    from lab.kubernetes.kubectl import Kubectl

SECONDS = 4
_KERNEL_US = 1000
_STARTS = 60  # seconds
_LOOP = f'(echo compute {_KERNEL_US}; sleep 600) | exec python3 -ISc "$0"'


class Busy:
    """Programs in pods; they end with the block, and in any case with their pods."""

    def __init__(self, kubectl: Kubectl, gpu: int) -> None:
        self._kubectl, self._gpu, self._programs = kubectl, gpu, ExitStack()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the programs."""
        self._programs.close()

    def start(self, pod: dict[str, Any]) -> None:
        """Start a program in a pod, and return when it uses the GPU."""
        name, source = pod["metadata"]["name"], Path(tenant.__file__).read_text(encoding="utf-8")
        words = ["env", f"{TAG}={name}", "sh", "-c", _LOOP, source]
        command = self._kubectl.node.executing(pod, "main", *words, called=name)
        process = self._programs.enter_context(
            subprocess.Popen(
                self._kubectl.node.installed.enclosure.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        self._programs.callback(process.kill)
        wait_until(lambda: self._times().get(name), f"{name} uses the GPU", _STARTS)

    def shares(self) -> dict[str, float]:
        """The percent of the GPU's time that each has during some seconds, by its pod's name."""
        before, began = self._times(), time.monotonic()
        time.sleep(SECONDS)
        after, took = self._times(), time.monotonic() - began
        return {name: (after[name] - before[name]) / took / 1e7 for name in before}

    def _times(self) -> dict[str, int]:
        """Return the GPU time in ns that each has had, as the simulated GPU counts it."""
        found = gpu_times(self._kubectl.node.installed.node.driver, self._gpu)
        return {each.tag: each.busy_ns for each in found if each.tag}
