"""A machine with simulated GPUs: its driver directory, its state directory and cgpu-runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / "hook" / "cgpu_hook" / "_bin"
RUNTIME = BIN / "cgpu-runtime"
HOOK = BIN / "cgpu-hook"
RUNC = "/usr/sbin/runc"
CRUN = "/usr/bin/crun"
T4 = "Tesla T4:15109"


class Node:
    """Simulated GPUs (``NAME:MIB`` each) in ``base/driver``; cgpu keeps its state in ``state``."""

    def __init__(self, base: Path, *gpus: str, state: Path | None = None) -> None:
        self.driver = base / "driver"
        self.state = state or base / "state"
        flags = [flag for gpu in gpus for flag in ("--gpu", gpu)]
        subprocess.run(
            [sys.executable, "-m", "cgpu_sim", self.driver, *flags],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "sim")},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def flags(self, runtime: str = RUNC) -> list[str]:
        """What ``cgpu-runtime`` is given so that it works on this node."""
        return [
            "--cgpu-driver-dir", str(self.driver),
            "--cgpu-state-dir", str(self.state),
            "--cgpu-runtime", runtime,
        ]  # fmt: skip

    def command(self, runtime: str = RUNC) -> list[str]:
        """``cgpu-runtime`` with its flags."""
        return [str(RUNTIME), *self.flags(runtime)]

    def daemon_entry(self, runtime: str = RUNC) -> dict[str, Any]:
        """The runtime as ``daemon.json`` lists it."""
        return {"path": str(RUNTIME), "runtimeArgs": self.flags(runtime)}

    def containers(self) -> list[str]:
        """What the state directory holds of containers, half-made ones included."""
        folder = self.state / "containers"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def share(container: int | str, dev: int | str = 15, **more: str) -> dict[str, str]:
    """The variables of a container that asks for ``container`` of ``dev`` GiB."""
    asked = {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(container),
        "ALIYUN_COM_GPU_MEM_DEV": str(dev),
    }
    return asked | more
