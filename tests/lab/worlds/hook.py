"""A host for the hook's tests: a driver directory, node facts, and bundles of a tiny image.

The driver's libraries are empty files: what is tested here is where they are mounted. No server
runs, for it would give back the shares of containers that exist only in a test.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgpu_env import GpuShare, Request
from cgpu_node.facts import node
from cgpu_node.shares.record import Owner
from cgpu_node.shares.registry import Registry
from lab.machine.servers import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[3]
BIN = ROOT / "hook" / "cgpu_hook" / "_bin"
RUNTIME = BIN / "cgpu-runtime"
HOOK = BIN / "cgpu-hook"
LIBDIR = "/usr/lib/x86_64-linux-gnu"
MIB = 1 << 20
SIX = ["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"]
NODE_FILES = ("machine", "gpu0", "gpu1")
UID = "6a1d5e0e-0000-4000-8000-00000000000a"
Part = tuple[str, tuple[int, ...]]  # a claim, and the GPUs that it has for a request


class World:
    """Directories of one test: ``driver``, ``state`` and ``bundle`` with its ``rootfs``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = folder / "driver"
        self.state = folder / "state"
        self.bundle = folder / "bundle"
        self.rootfs = self.bundle / "rootfs"
        self.runs = folder / "runs"
        for path in (self.driver / "bin", self.state, self.runs):
            path.mkdir(parents=True, mode=0o700)
        self.server = StandIn(self.state)
        self._fill_driver()
        self.write_facts()
        self._fill_rootfs()

    def _fill_driver(self) -> None:
        for name in (*node.driver.PROXIED, *NODE_FILES, "libnvidia-ptxjitcompiler.so.1"):
            (self.driver / name).write_text(f"driver {name}")
        smi = self.driver / "bin" / "nvidia-smi"
        smi.write_text("#!/bin/sh\necho smi\n")
        smi.chmod(0o755)

    def write_facts(self) -> None:
        """Facts as a probe of a node with two GPUs would leave them."""
        gpus = [
            {
                "index": i,
                "uuid": f"GPU-{i}0000000-0000-4000-8000-000000000000",
                "name": "T4",
                "memory_bytes": 15109 * MIB,
                "context_bytes": 100 * MIB,
                "device_nodes": [[str(self.driver / f"gpu{i}"), f"/dev/cgpu-sim/gpu{i}"]],
            }
            for i in range(2)
        ]
        companion = "libnvidia-ptxjitcompiler.so.1"
        facts = {
            "identity": node._read_identity(str(self.driver)),  # noqa: SLF001
            "cuda_order": [],
            "driver_version": "535.1",
            "libraries": {name: str(self.driver / name) for name in node.driver.PROXIED},
            "companions": {companion: str(self.driver / companion)},
            "gpus": gpus,
            "device_nodes": [[str(self.driver / "machine"), "/dev/cgpu-sim/machine"]],
            "notes": [],
        }
        (self.state / "node.json").write_text(json.dumps(facts))

    def _fill_rootfs(self) -> None:
        for folder in ("bin", "dev", "proc", "usr/bin", "tmp", LIBDIR[1:]):
            (self.rootfs / folder).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.rootfs / "bin" / "busybox")
        (self.rootfs / "bin" / "sh").symlink_to("busybox")
        (self.rootfs / LIBDIR[1:] / "libc.so.6").write_text("")

    @property
    def config(self) -> Path:
        """The bundle's configuration."""
        return self.bundle / "config.json"

    def write_config(self, env: list[str] = SIX, command: str = "true", **extra: Any) -> None:
        """A configuration in the form that engines write."""
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", command],
                "env": ["PATH=/bin:/usr/bin", *env],
                "cwd": "/",
                "capabilities": {k: [] for k in ("bounding", "effective", "permitted")},
            },
            "root": {"path": "rootfs"},
            "hostname": "test",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
                },
            ],
            "linux": {
                "namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount")],
                "resources": {"devices": [{"allow": False, "access": "rwm"}]},
                "maskedPaths": ["/proc/kcore"],
            },
        }
        config.update(extra)
        self.config.write_text(json.dumps(config))

    def options(self, lowlevel: str | Path) -> list[str]:
        """Our own options of the runtime."""
        return [
            f"--cgpu-runtime={lowlevel}",
            "--cgpu-state-dir",
            str(self.state),
            f"--cgpu-driver-dir={self.driver}",
        ]

    def runtime(
        self, *arguments: str, lowlevel: str | Path, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``cgpu-runtime`` in the bundle; what a created container holds open is no pipe."""
        command = [str(RUNTIME), *self.options(lowlevel), *arguments]
        cwd = options.pop("cwd", self.bundle)
        out, err = self.runs / "stdout", self.runs / "stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=timeout,
                check=False,
                cwd=cwd,
                **options,
            )
        done.stdout, done.stderr = out.read_text(), err.read_text()
        return done

    def stub(self) -> Path:
        """A low-level runtime that records its arguments, its environment and existing shares.

        It knows no container when it is asked for one that has a share.
        """
        path = self.folder / "stub-runc"
        path.write_text(
            f"#!{sys.executable} -IS\n"
            "import glob, json, os, sys\n"
            f"out = {str(self.runs)!r}\n"
            f"records = glob.glob({str(self.state)!r} + '/containers/*/record.json')\n"
            "records = {json.load(open(r))['id']: json.load(open(r)) for r in records}\n"
            "if records and sys.argv[-2] == 'state': sys.exit(1)\n"
            "json.dump({'argv': sys.argv, 'env': dict(os.environ), 'cwd': os.getcwd(),"
            " 'records': records},"
            " open(out + '/call.json', 'w'))\n"
            "print('stub output')\n"
        )
        path.chmod(0o755)
        return path

    def call(self) -> dict[str, Any] | None:
        """What the stub was called with, or None if it was not."""
        path = self.runs / "call.json"
        return json.loads(path.read_text()) if path.exists() else None

    def edited(self) -> dict[str, Any]:
        """The configuration as it is now."""
        config: dict[str, Any] = json.loads(self.config.read_text())
        return config

    def shares(self) -> list[str]:
        """The containers that have a share."""
        folder = self.state / "containers"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def hook(*arguments: str, data: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """``cgpu-hook`` with ``data`` on its stdin."""
    return subprocess.run(
        [str(HOOK), *arguments],
        input=data,
        capture_output=True,
        timeout=30,
        check=False,
        **options,
    )


def with_interpreter(folder: Path, interpreter: str) -> Path:
    """A copy of the launcher with another interpreter named beside it."""
    package = folder / "cgpu_hook"
    (package / "_bin").mkdir(parents=True, exist_ok=True)
    (folder / "cgpu_node").mkdir(exist_ok=True)
    (folder / "cgpu_node" / "bootstrap.py").write_text("")
    (package / "_bin" / "interpreter").write_text(f"{interpreter}\n")
    runtime = package / "_bin" / "cgpu-runtime"
    shutil.copy(HOOK.parent / "cgpu-runtime", runtime)
    return runtime


def snapshot(*folders: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below the folders: to see that nothing was touched."""
    found = {}
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            facts = path.lstat()
            data = path.read_bytes() if not path.is_symlink() and path.is_file() else b""
            found[str(path)] = (facts.st_mode, facts.st_mtime_ns, data)
    return found


def low_level(name: str, folder: Path) -> Path:
    """runc or crun; crun 1.8 refuses a machine with both cgroup versions, so one is hidden."""
    found = shutil.which(name, path="/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin")
    assert found is not None, f"{name} is needed for this test"
    if name != "crun" or not Path("/sys/fs/cgroup/unified").is_dir():
        return Path(found)
    wrapper = folder / name
    wrapper.write_text(
        "#!/bin/sh\nexec unshare -m sh -c "
        f'\'umount /sys/fs/cgroup/unified && exec {found} "$@"\' {name} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def hold(world: World, *gpus: int, uid: str = UID, kind: Any = "claim", weight: int = 6) -> Path:
    """Hold 2500 MiB of GPUs, of the first by default, and return the file that owns this."""
    facts = node.load_node(str(world.state), str(world.driver))
    shares = tuple(GpuShare(gpu, facts.gpus[gpu].uuid, 2500 * MIB) for gpu in gpus or (0,))
    file = world.folder / f"{uid}.json"
    file.write_text("")
    request = Request(shares, weight, high_priority=False)
    owner = Owner(0, 0, str(file))
    Registry(str(world.state)).admit(uid, kind, request, facts, owner, ["ml/train"], policy=6)
    return file


def claim_hooks(world: World, parts: Iterable[Part]) -> dict[str, Any]:
    """The hooks of a container that has the CDI devices of these parts of claims."""
    places = ["--state-dir", str(world.state), "--driver-dir", str(world.driver)]
    facts, hooks = node.load_node(str(world.state), str(world.driver)), []
    for uid, numbers in parts:
        gpus = ",".join(facts.gpus[number].uuid for number in numbers)
        arguments = ["--claim", uid, "--gpus", gpus, *places]
        hooks.append({"path": str(HOOK), "args": ["cgpu-hook", "claim", *arguments]})
    return {"createRuntime": hooks}
