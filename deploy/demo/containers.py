"""The demonstration's stage of two Docker containers under the runtime cgpu."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import image
from step import step

from cgpu_cli.commands.demo import TAG, driver_directory, true_times
from cgpu_cli.demo import others, tenant
from cgpu_cli.demo.play import WEIGHTS, WHOLE, Tenant, play_demo
from cgpu_env import Gpu
from cgpu_node.facts.driver import PROXIED
from lab.containers.enclosure import Enclosure
from lab.containers.engines import DOCKER, Docker, Volume

if TYPE_CHECKING:
    from typing_extensions import Self

NO_ENGINE = (AssertionError, OSError, RuntimeError, ValueError, subprocess.SubprocessError)
ROOT = Path(__file__).resolve().parents[2]
# Of cgpu: what an engine starts.
_PACKAGES = (
    *("cgpu_env", "native/cgpu_native", "shim/cgpu_shim", "node/cgpu_node"),
    *("hook/cgpu_hook", "server/cgpu_server"),
)
_IMAGE = "python"
_TENANT = "/opt/tenant.py"
_SMI = "/usr/bin/nvidia-smi"


def _install(folder: Path) -> Path:
    """Copy the files that engines start into ``folder``, where root alone can write.

    Containers get nothing that another user could change, and the repository may be a user's.

    Returns:
        The runtime there.
    """
    folder.mkdir(mode=0o755)
    words = ["cp", "-r", *(ROOT / package for package in _PACKAGES), folder]
    subprocess.run(words, check=True, umask=0o022)
    for module in Path(sysconfig.get_path("purelib")).iterdir():  # libraries that these import
        if not (folder / module.name).exists():
            (folder / module.name).symlink_to(module)
    programs = folder / "cgpu_hook" / "_bin"
    (programs / "interpreter").write_text(f"{sys.executable}\n")
    return programs / "cgpu-runtime"


class Containers:
    """Two containers of an image with this machine's Python, on a dockerd of our own."""

    kind = "container"

    def __init__(self, nvidia_smi: Path | None) -> None:
        self._enclosure = Enclosure()
        base = self._enclosure.base
        try:
            driver = driver_directory(base / "driver")
            self._driver = driver
            self._flags = ["--driver-dir", driver, "--state-dir", str(base / "state")]
            cgpu = [flag.replace("--", "--cgpu-") for flag in self._flags]
            runtime = {"path": str(_install(base / "cgpu")), "runtimeArgs": cgpu}
            with step("Starting a dockerd of its own"):
                self._docker = Docker(self._enclosure, {"cgpu": runtime})
            with step("Making an image of this machine's Python"):
                used = [Path(driver, name) for name in PROXIED]
                used += [nvidia_smi] if nvidia_smi else []
                image.make(base / "image", Path(tenant.__file__), used)
                self._docker.load(_IMAGE, base / "image")
            gpus = self._usage()["gpus"]
        except BaseException:
            self._enclosure.stop()
            raise
        self._gpu = Gpu(0, gpus[0]["uuid"], gpus[0]["total_bytes"])
        self._visible = {"ALIYUN_COM_GPU_VISIBLE_DEVICES": "0"} if len(gpus) > 1 else {}
        self._volumes = [Volume(Path(tenant.__file__), _TENANT)]
        self._smi = ""
        if nvidia_smi is not None:
            self._smi = _SMI
            self._volumes.append(Volume(nvidia_smi, _SMI))

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the engine and all that it runs."""
        try:
            self._enclosure.stop()
        except OSError as error:
            print(f"note: not all of {self._enclosure.base} could be removed: {error}")

    def play(self) -> bool:
        """Run the demonstration; return whether all was as it must be."""
        good = play_demo(self, self._gpu.total_bytes)
        if not good:
            print(others.describe_holders(self._driver, self._gpu))
        return good

    def format_command(self, part: int) -> str:
        """Return the command that a user types."""
        variables = " ".join(f"-e {name}={value}" for name, value in self._variables(part).items())
        return f"docker run --runtime=cgpu {variables} IMAGE PROGRAM"

    def start(self, part: int) -> Tenant:
        """Start the container with its share."""
        name = f"demo-{part}"
        options = ["--interactive", "--rm", "--name", name, "--runtime=cgpu"]
        program = [image.PYTHON, "-IS", _TENANT, self._smi]
        variables = {**self._variables(part), TAG: str(part)}
        words = self._docker.arguments(_IMAGE, program, variables, self._volumes)
        socket = f"unix://{self._docker.socket}"
        process = subprocess.Popen(
            self._enclosure.command(DOCKER, "--host", socket, "run", *options, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the terminal is for the demonstration
        )
        return Tenant(part, process, lambda: self._docker.docker("kill", name, check=False))

    def try_start(self, part: int) -> str:
        """Return the sentence with which one more is refused; nothing if it is not."""
        done = self._docker.run(
            _IMAGE, "true", options=["--runtime=cgpu"], env=self._variables(part), check=False
        )
        return done.stderr.partition("\n")[0]

    def show_usage(self) -> None:
        """Print the output of cgpu-smi."""
        smi = [sys.executable, "-m", "cgpu_cli.smi", *self._flags]
        print(self._enclosure.run(*smi).stdout, end="", flush=True)

    def count_tenants(self) -> int:
        """Return how many programs cgpu-smi lists."""
        return len(self._usage()["containers"])

    def gpu_times(self) -> dict[int, int]:
        """Return the GPU time in ns that each has had, by its part."""
        return true_times(self._driver)

    def _usage(self) -> dict[str, Any]:
        smi = [sys.executable, "-m", "cgpu_cli.smi", "--json", *self._flags]
        usage: dict[str, Any] = json.loads(self._enclosure.run(*smi).stdout)
        return usage

    def _variables(self, part: int) -> dict[str, str]:
        share = {"ALIYUN_COM_GPU_MEM_CONTAINER": part, "ALIYUN_COM_GPU_MEM_DEV": WHOLE}
        if part in WEIGHTS and WEIGHTS[part] > 1:
            share["ALIYUN_COM_GPU_SCHD_WEIGHT"] = WEIGHTS[part]
        return {name: str(value) for name, value in share.items()} | self._visible
