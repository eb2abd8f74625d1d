"""What caps a child: cgpu-run, or a container of runc on an overlay of this machine's root."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("", "native", "shim", "node", "hook", "server", "cli", "tests", "tests/sim")
_INHERITED = filter(None, [os.environ.get("PYTHONPATH")])
PYTHONPATH = os.pathsep.join([*(str(ROOT / folder) for folder in _SOURCES), *_INHERITED])
RUNTIME = ROOT / "hook" / "cgpu_hook" / "_bin" / "cgpu-runtime"
_PREFIX = "cgpu-check-container-"
_STOP = (
    "import sys; from cgpu_node.client import send_request;"
    " send_request(sys.argv[1], {'request': 'stop'})"
)


class Share(NamedTuple):
    """What a child gets, of which GPU (number and UUID), and where cgpu keeps its state."""

    part: int
    whole: int
    number: int
    uuid: str
    state: Path
    driver_dir: str | None
    python: str


class Ask(NamedTuple):
    """What one child asks for beyond memory; ``part`` in place of the usual part of it.

    Attributes:
        policy: of the GPU; None: as it is.
    """

    weight: int = 1
    policy: int | None = None
    high_priority: bool = False
    part: int | None = None


class Cage(Protocol):
    """Turns a command into one that runs capped."""

    name: str

    def obstacle(self) -> str:
        """Why it cannot be used here; empty if it can."""

    def command(self, command: list[str], environment: Mapping[str, str], ask: Ask) -> list[str]:
        """``command`` with its cap."""

    def clean(self) -> None:
        """Remove what killed children left."""


def compute_options(ask: Ask) -> list[str]:
    """Those of ``cgpu-run``; none where nothing is asked for."""
    words = ["--weight", str(ask.weight)] if ask.weight != 1 else []
    words += ["--high-prio"] if ask.high_priority else []
    return words + (["--policy", str(ask.policy)] if ask.policy is not None else [])


def _binding() -> str:
    """Why the ledger's Python binding cannot be used; empty if it can."""
    words = [sys.executable, "-c", "import cgpu_native"]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1:]
    return f"no cgpu_native: {' '.join(last)}" if done.returncode else ""


class CgpuRun:
    """``cgpu-run``."""

    name = "cgpu-run"

    def __init__(self, share: Share) -> None:
        self.share = share

    def obstacle(self) -> str:
        """It takes the Python binding of the ledger."""
        return _binding()

    def command(self, command: list[str], environment: Mapping[str, str], ask: Ask) -> list[str]:
        """The environment is inherited."""
        del environment
        share = self.share
        part = ask.part or share.part
        words = [sys.executable, "-m", "cgpu_cli.run", "--mem", f"{part}/{share.whole}"]
        words += ["--gpus", str(share.number), "--state-dir", str(share.state)]
        words += compute_options(ask)
        if share.driver_dir:
            words += ["--driver-dir", share.driver_dir]
        return [*words, "--", *command]

    def clean(self) -> None:
        """Sessions end with their programs; the server would wait a while for more."""
        words = [sys.executable, "-c", _STOP, str(self.share.state)]
        environment = os.environ | {"PYTHONPATH": PYTHONPATH}
        subprocess.run(words, env=environment, capture_output=True, check=False)


class Runc:
    """``cgpu-runtime`` with runc: a container with this machine's files, and its own ``/dev``."""

    name = "runc"

    def __init__(self, share: Share, folder: Path) -> None:
        self.share, self.folder = share, folder

    def obstacle(self) -> str:
        """It takes root, runc and unshare."""
        if os.geteuid() != 0:
            return "not root"
        missing = [name for name in ("runc", "unshare", "mount") if shutil.which(name) is None]
        if missing:
            return f"no {missing[0]}"
        if _binding():
            return _binding()
        words = self._command([self.share.python, "-c", ""], {"PATH": os.defpath}, ["runc"])
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return f"runc without cgpu fails: {done.stderr.strip()[-200:]}" if done.returncode else ""

    def command(self, command: list[str], environment: Mapping[str, str], ask: Ask) -> list[str]:
        """A new container each time; the policy is the node's."""
        runtime = [str(RUNTIME), f"--cgpu-runtime={shutil.which('runc')}"]
        runtime.append(f"--cgpu-state-dir={self.share.state}")
        if self.share.driver_dir:
            runtime.append(f"--cgpu-driver-dir={self.share.driver_dir}")
        return self._command(command, self._environment(environment, ask), runtime)

    def _command(
        self, command: list[str], environment: Mapping[str, str], runtime: list[str]
    ) -> list[str]:
        """Write a bundle, whose root filesystem is mounted in a namespace of its own."""
        identity = f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        base = self.folder / identity
        bundle, scratch = base / "bundle", base / "scratch"
        bundle.mkdir(parents=True)
        scratch.mkdir()
        configuration = self._configuration(command, environment, scratch / "root")
        (bundle / "config.json").write_text(json.dumps(configuration))
        runc = ["--root", str(base / "runc"), "run", "--bundle", str(bundle), identity]
        where = shlex.quote(str(scratch))
        script = (
            f"mount -t tmpfs tmpfs {where} && cd {where} && mkdir upper work root &&"
            f" mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root &&"
            f" exec {shlex.join([*runtime, *runc])}"
        )
        return ["unshare", "-m", "sh", "-c", script]

    def clean(self) -> None:
        """Of a container whose runc was killed the control groups stay."""
        for base in self.folder.glob(f"{_PREFIX}*"):
            words = ["runc", "--root", str(base / "runc"), "delete", "--force", base.name]
            subprocess.run(words, capture_output=True, check=False)

    def _environment(self, environment: Mapping[str, str], ask: Ask) -> dict[str, str]:
        share = self.share
        kept = {k: v for k, v in environment.items() if k != "LD_LIBRARY_PATH"}
        return kept | {
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(ask.part or share.part),
            "ALIYUN_COM_GPU_MEM_DEV": str(share.whole),
            "ALIYUN_COM_GPU_SCHD_WEIGHT": str(ask.weight),
            "ALIYUN_COM_GPU_HIGH_PRIO": str(int(ask.high_priority)),
            "NVIDIA_VISIBLE_DEVICES": share.uuid,
        }

    def _configuration(
        self, command: list[str], environment: Mapping[str, str], root: Path
    ) -> dict[str, Any]:
        """No namespace of pids, so that NVML and the container speak of the same ones."""
        words = [f"{name}={value}" for name, value in environment.items()]
        none: dict[str, list[str]] = {k: [] for k in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": command,
                "env": words,
                "cwd": "/",
                "capabilities": none,
            },
            "root": {"path": str(root)},
            "hostname": "cgpu-check",
            "mounts": self._mounts(),
            "linux": {
                "namespaces": [{"type": kind} for kind in ("ipc", "uts", "mount")],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            },
        }

    def _mounts(self) -> list[dict[str, Any]]:
        """Fresh ``/dev`` and ``/tmp``; what the children need that may be a mount by itself."""
        python = Path(self.share.python)
        prefixes = {python.parent.parent, python.resolve().parent.parent}
        seen = {ROOT, Path(sys.prefix), Path(sys.base_prefix), *prefixes}
        folders = sorted(p for p in seen if not p.is_relative_to("/usr") and p != Path("/"))
        options = ["nosuid", "mode=755"]
        mounts: list[dict[str, Any]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": options},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ]
        return mounts + [
            {"destination": str(p), "type": "bind", "source": str(p), "options": ["rbind", "ro"]}
            for p in folders
        ]
