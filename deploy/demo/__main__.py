"""``make demo``: two containers share one GPU, or two programs where Docker cannot run.

The real GPU if there is one, else a simulated Tesla T4. Docker is started privately, with its data
in a temporary directory; nothing of the machine's own engine or configuration is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from cgpu_env import program

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "deploy" / "setup.sh"
sys.path.insert(0, str(ROOT / "tests"))  # its engines and real nvidia-smi


def main() -> NoReturn:
    """Run the demonstration, and exit."""
    program.run("demo", _work)


def _work() -> int:
    """Run the demonstration with Docker, else become ``cgpu demo``; return 0 if all went well."""
    program.undo_when_terminated()
    nvidia_smi = _nvidia_smi()
    reason = _why_no_docker()
    if not reason:
        import containers

        try:
            stage = containers.Containers(nvidia_smi)
        except containers.NO_ENGINE as error:
            lines = str(error).strip().splitlines()
            reason = f"Docker does not run here ({lines[-1] if lines else error})"
        else:
            with stage:
                return 0 if stage.play() else 1
    print(f"{reason}; showing cgpu-run instead.\n", flush=True)
    flags = ["--nvidia-smi", str(nvidia_smi)] if nvidia_smi else []
    return os.execv(sys.executable, [sys.executable, "-m", "cgpu_cli.main", "demo", *flags])  # noqa: S606


def _why_no_docker() -> str:
    """Install what containers need; return what is in the way, or nothing."""
    if os.geteuid() != 0:
        return "Not root, so no container engine can be started"
    if subprocess.run(["sh", SETUP, "demo"], check=False).returncode != 0:
        return "Docker cannot be installed"
    return "" if shutil.which("dockerd") else "No dockerd on this machine"


def _nvidia_smi() -> Path | None:
    """Return the machine's own, else that of driver 535 from Debian; None if it cannot be had."""
    if own := shutil.which("nvidia-smi"):
        return Path(own)
    from step import step

    from lab.driver import real_driver

    try:
        with step("Fetching nvidia-smi of driver 535"):
            return real_driver.real_nvidia_smi("535")
    except (OSError, LookupError, RuntimeError, subprocess.SubprocessError):
        print("It cannot be had: a reader of our own shows the same.", flush=True)
        return None


if __name__ == "__main__":
    main()
