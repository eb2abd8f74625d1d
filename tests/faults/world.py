"""A node under faults: two simulated GPUs, and containers and sessions at work on them.

Everything runs in an enclosure: its state directory is a small tmpfs there, at ``/run/cgpu``, so
``cgpud`` shows its tree and users' sessions are in its account, as on a real node.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cgpu_native
from cgpu_node import client
from cgpu_node.shares import record
from cgpu_sim import gpu_times
from faults.member import CAP_GIB, Member
from faults.processes import Inside, Process, is_stopped, kill
from lab.containers.enclosure import Enclosure, wait_until
from lab.driver.stopping import send
from lab.machine.nobody import NOBODY, become_nobody
from lab.machine.node import CRUN, RUNC, Node, share
from lab.shares.compute import TAG, built

if TYPE_CHECKING:
    from cgpu_sim import GpuTime

GPUS, MEMORY_GIB = 2, 40
CONTAINERS_PER_GPU = 10  # and a session each
STATE, TREE = "/run/cgpu", "/run/cgpu_km"
LIBDIR = "usr/lib/x86_64-linux-gnu"
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "ld-linux-x86-64.so.2")  # fmt: skip
PATIENCE = 30.0


class World:
    """The node, and who lives on it; ``close`` ends everything."""

    def __init__(self) -> None:
        self.enclosure = Enclosure("faults")
        self.base = self.enclosure.base
        self.inside = Inside(self.enclosure.pid)
        self.members: list[Member] = []
        self.made = 0
        self._started: list[subprocess.Popen[str]] = []
        self.alias = self.base / "alias"  # the state directory where users' /run is another
        for folder in (STATE, self.alias):
            self.enclosure.run("mkdir", "-p", folder)
        self.enclosure.run(
            "mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=2k,mode=700", "cgpu", STATE
        )
        self.enclosure.run("mount", "--bind", STATE, self.alias)
        gpus = [f"Simulated:{MEMORY_GIB << 10}"] * GPUS
        self.node = Node(self.base / "node", *gpus, state=Path(STATE))
        self.state = Path(f"/proc/{self.enclosure.pid}/root{STATE}")
        self.tree = Path(f"/proc/{self.enclosure.pid}/root{TREE}")
        self.hold_file = self.base / "hold"
        self.hold_file.write_bytes(b"0")
        self.rootfs = self._make_rootfs()
        self._spec = self._make_spec()
        self.user = self.base / "user"
        self.user.mkdir(mode=0o700)
        os.chown(self.user, NOBODY, NOBODY)
        self.logs = self.base / "logs"
        self.logs.mkdir()
        self._mounts: list[str] | None = None

    def _make_rootfs(self) -> Path:
        """A C library, busybox and the program: containers share it, each with its own mounts."""
        root = self.base / "rootfs"
        for folder in ("bin", "proc", "dev", "sys", "tmp", "etc", "lib64", LIBDIR):
            (root / folder).mkdir(parents=True)
        for name in LIBRARIES:
            shutil.copy(f"/{LIBDIR}/{name}", root / LIBDIR / name)
        (root / "lib64" / LIBRARIES[-1]).symlink_to(f"/{LIBDIR}/{LIBRARIES[-1]}")
        shutil.copy("/bin/busybox", root / "bin" / "busybox")
        (root / "bin" / "sh").symlink_to("busybox")
        shutil.copy(built("restless"), root / "bin" / "restless")
        (root / "hold").touch()
        return root

    def _make_spec(self) -> dict[str, Any]:
        folder = self.base / "spec"
        folder.mkdir()
        self.enclosure.run("runc", "spec", "--bundle", folder)
        spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
        spec["process"] |= {"terminal": False, "rlimits": []}
        spec["root"] = {"path": str(self.rootfs), "readonly": False}
        hold = {"destination": "/hold", "type": "bind", "source": str(self.hold_file)}
        spec["mounts"].append({**hold, "options": ["bind", "ro"]})
        return spec

    # Making and ending.

    def populate(self) -> None:
        """Make those that are missing of the usual ones."""
        for gpu in range(GPUS):
            here = [m for m in self.members if m.gpu == gpu]
            if not any(m.is_session for m in here):
                self.add(gpu, "user" if gpu else "root")
            for i in range(CONTAINERS_PER_GPU - sum(not m.is_session for m in here)):
                self.add(gpu, CRUN if i % 3 == 0 else RUNC)

    def add(self, gpu: int, runtime: str) -> Member:
        """A container or session at work."""
        member = self.new(gpu, runtime)
        if member.is_session:
            self._start_session(member)
        else:
            done = self.create(member, ["/bin/restless", "keep", str(self.made)])
            assert done.returncode == 0, f"{member}: {done.stdout}{self.output(member)}"
        self.members.append(member)
        return member

    def new(self, gpu: int, runtime: str) -> Member:
        """One with a name, which does not live yet."""
        self.made += 1
        return Member(f"f{os.getpid()}-{self.made}", gpu, runtime)

    def write_bundle(self, member: Member, words: list[str], cap: int = CAP_GIB) -> Path:
        """A bundle for ``member``."""
        spec = json.loads(json.dumps(self._spec))
        spec["process"]["args"] = words
        env = share(cap, MEMORY_GIB, NVIDIA_VISIBLE_DEVICES=str(member.gpu))
        env |= {TAG: member.name, "RESTLESS_HOLD": "/hold"}
        spec["process"]["env"] += [f"{name}={value}" for name, value in env.items()]
        spec["linux"]["cgroupsPath"] = f"/{self.enclosure.cgroup}/{member.name}"
        bundle = self.base / "bundles" / member.name
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(spec))
        return bundle

    def run_command(self, member: Member, bundle: Path) -> list[str | Path]:
        """``cgpu-runtime run`` of a bundle."""
        command: list[str | Path] = [*self.node.command(member.runtime)]
        return [*command, "run", "--detach", "--bundle", bundle, member.name]

    def create(
        self, member: Member, words: list[str], cap: int = CAP_GIB
    ) -> subprocess.CompletedProcess[str]:
        """Make and start a container; it writes to its log, and so does whoever makes it."""
        bundle = self.write_bundle(member, words, cap)
        process = self.begin(self.run_command(member, bundle), member)
        return subprocess.CompletedProcess(process.args, self.wait(process), "", "")

    def begin(self, command: list[str | Path], member: Member) -> subprocess.Popen[str]:
        """Start a command inside, for a container, and do not wait for it."""
        with (self.logs / member.name).open("a") as log:
            process = self.enclosure.start(*command, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def wait(self, process: subprocess.Popen[str], seconds: float = 60) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: it does not end.
        """
        deadline = time.monotonic() + seconds
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, seconds)
            self.resume()
            time.sleep(0.01)
        return process.returncode

    def resume(self) -> None:
        """Let go on what started something inside: nsenter stops when that is stopped."""
        self._started = [p for p in self._started if p.poll() is None]
        send((p.pid for p in self._started if is_stopped(p.pid)), signal.SIGCONT)

    def output(self, member: Member) -> str:
        """What it, and whoever made it, wrote."""
        path = self.logs / member.name
        return path.read_text(errors="replace") if path.exists() else ""

    def _start_session(self, member: Member) -> None:
        seed = str(self.made)
        words = [sys.executable, "-m", "cgpu_cli.run", "--driver-dir", str(self.node.driver)]
        words += ["--mem", f"{CAP_GIB}/{MEMORY_GIB}", "--gpus", str(member.gpu)]
        words += ["--", str(self.rootfs / "bin" / "restless"), "keep", seed]
        if member.runtime == "user":
            words = ["unshare", "-m", "sh", "-c", become_nobody(words, self.alias)]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XDG_RUNTIME_DIR": str(self.user),
            TAG: member.name,
            "RESTLESS_HOLD": str(self.hold_file),
        }
        with (self.logs / member.name).open("a") as log:
            self._started.append(self.enclosure.start(*words, stdout=log, stderr=log, env=env))
        self.find_session(member, seed)

    def find_session(self, member: Member, seed: str) -> None:
        """Wait until it is admitted, and learn its id."""

        def found() -> bool:
            for entry in self.records():
                if entry.kind == "session" and entry.command[-1] == seed:
                    member.id = entry.id
            return member.id != member.name

        try:
            wait_until(found, f"{member} is admitted", PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.output(member)}") from None

    def remove(self, member: Member) -> None:
        """End it as its engine would."""
        self.members.remove(member)
        if member.is_session:
            self.end_session(member)
        else:
            self.delete(member)

    def delete(self, member: Member) -> subprocess.CompletedProcess[str]:
        """``cgpu-runtime delete --force``."""
        words = [*self.node.command(member.runtime), "delete", "--force", member.name]
        return self.enclosure.run(*words, check=False)

    def end_session(self, member: Member) -> None:
        """Kill all its processes."""
        wait_until(lambda: not self._kill_programs(member), f"{member} has ended")

    def _kill_programs(self, member: Member) -> bool:
        found = [p.pid for p in self.programs(member)]
        kill(found)
        return bool(found)

    # Looking.

    def records(self) -> list[record.Record]:
        """What is complete in the state directory."""
        found = []
        for name in self.names():
            entry = record.read(f"{self.state}/containers/{name}")
            if entry is not None:
                found.append(entry)
        return found

    def names(self) -> list[str]:
        """The containers' directories, half-made ones included."""
        try:
            return sorted(os.listdir(self.state / "containers"))
        except FileNotFoundError:
            return []

    def folder(self, member: Member) -> Path:
        """Its directory."""
        return self.state / "containers" / member.id

    def page(self, member: Member) -> cgpu_native.LimitsGpu:
        """Its limits on its GPU."""
        return cgpu_native.read_limits(self.folder(member) / "limits").gpus[0]

    def charged(self, member: Member) -> dict[int, int]:
        """The bytes in its ledger, by the ids that its processes know themselves by."""
        with cgpu_native.Ledger.observe(self.folder(member) / "ledger") as ledger:
            return {p.pid: p.used_bytes for p in ledger.list_processes(0) if p.used_bytes}

    def books(self, gpu: int) -> list[GpuTime]:
        """The simulated GPU's own account: who holds and had what."""
        return gpu_times(self.node.driver, gpu)

    def held(self) -> dict[str, int]:
        """Bytes by name, by the GPUs' own account."""
        found: dict[str, int] = {}
        for gpu in range(GPUS):
            for process in self.books(gpu):
                found[process.tag] = found.get(process.tag, 0) + process.used_bytes
        return found

    def programs(self, member: Member) -> list[Process]:
        """Its living processes."""
        return self.by_member().get(member.name, [])

    def by_member(self) -> dict[str, list[Process]]:
        """Everyone's living processes, without what made them."""
        found: dict[str, list[Process]] = {}
        for process in self.inside.processes():
            if process.tag and not process.is_zombie and "cgpu_cli.run" not in process.words:
                found.setdefault(process.tag, []).append(process)
        return found

    def init(self, member: Member) -> int:
        """Its first process."""
        found = [p.pid for p in self.programs(member) if p.words[1:2] == ("keep",)]
        return min(found, default=0)

    def servers(self) -> list[int]:
        """The node's servers: those that hold or wait for its lock."""
        marks = {"cgpud", "cgpu_server.main"}
        return [
            p.pid
            for p in self.inside.processes()
            if marks.intersection(p.words) and "set" not in p.words
        ]

    def server(self) -> int:
        """The one that serves; 0: none."""
        try:
            inner = int((self.state / "cgpud.lock").read_text())
        except (OSError, ValueError):
            return 0
        found = [p for p in self.inside.processes() if p.inner == inner and not p.is_zombie]
        return next((p.pid for p in found if p.pid in self.servers()), 0)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the server answers."""
        return client.send_request(str(self.state), request)

    def tree_is_there(self) -> bool:
        """Whether the control tree answers."""
        words = ["timeout", "5", "cat", f"{TREE}/version"]
        return self.enclosure.run(*words, check=False).returncode == 0

    # Doing.

    def tool(self, *words: str) -> list[str]:
        """``cgpu`` with words, as a command that runs inside."""
        program = [sys.executable, "-m", "cgpu_cli.main", *words]
        return ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}", *program]

    def set(self, target: str, *values: str) -> subprocess.CompletedProcess[str]:
        """``cgpu set``."""
        return self.enclosure.run(*self.tool("set", target, *values), check=False)

    def cgpud(self, *flags: str) -> None:
        """A server, as a container would start it."""
        words = [sys.executable, "-m", "cgpu_server.main", "--state-dir", STATE]
        words += ["--idle-exit", "60", "--log", f"{STATE}/cgpud.log", *flags]
        words += ["--driver-dir", str(self.node.driver)]
        path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
        quiet = '"$@" </dev/null >/dev/null 2>&1 &'
        self.enclosure.run("sh", "-c", quiet, "sh", "env", path, *words)

    def hold(self, *, still: bool) -> None:
        """Let the wild programs rest, or go on."""
        fd = os.open(self.hold_file, os.O_WRONLY)
        os.pwrite(fd, b"1" if still else b"0", 0)
        os.close(fd)

    def mounts(self) -> list[str]:
        """Mount points inside, without the control tree, which comes and goes with its server.

        Nor with the proxies' overlay, which the first container mounts. Those that another test run
        has left in its own temporary folder are not ours.
        """
        others = f"{self.base.parent}/"
        points = [p for p in self.enclosure.mounts() if not p.startswith(f"{STATE}/lib/")]
        ours = (p for p in points if p.startswith(f"{self.base}/"))
        rest = (p for p in points if not p.startswith(others) and p != TREE)
        return sorted([*ours, *rest])

    def note_mounts(self) -> None:
        """Remember those that are there before any container."""
        self._mounts = self.mounts()

    @property
    def first_mounts(self) -> list[str]:
        """Those that were there then."""
        assert self._mounts is not None
        return self._mounts

    def close(self) -> None:
        """End everything, whatever is left."""
        send((p.pid for p in self.inside.processes()), signal.SIGCONT)
        self.enclosure.stop()
