"""Container engines, started privately for the tests, and bundles for the low-level runtimes.

Every class offers ``run``: a container of an image, with a command and an environment, whose result
is what the user at the terminal sees. None of them asks for more rights than the machine may lack
(CAP_SYS_RESOURCE), for a network, or for systemd.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.containers.enclosure import Enclosure, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Result = subprocess.CompletedProcess[str]
ULIMITS = ["--ulimit", "nofile=1024:1024"]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # ctr gives a plain root filesystem none
DOCKER = "/usr/bin/docker"  # the client that belongs to Debian's dockerd


def _environment(env: Mapping[str, str]) -> list[str]:
    return [f"--env={name}={value}" for name, value in env.items()]


class Volume(NamedTuple):
    """A folder or file of the host that a container sees, read-only."""

    host: Path
    container: str


class Docker:
    """A dockerd with its own containerd, data, socket and pid file."""

    def __init__(
        self,
        enclosure: Enclosure,
        runtimes: Mapping[str, Any],
        prepare: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """``prepare`` may change the configuration before dockerd reads it."""
        self.enclosure = enclosure
        self.base = base = enclosure.base / "docker"
        base.mkdir()
        self.socket = base / "socket"
        self.configuration = base / "daemon.json"
        settings = {
            "data-root": str(base / "data"),
            "exec-root": str(base / "exec"),
            "pidfile": str(base / "pid"),
            "hosts": [f"unix://{self.socket}"],
            "bridge": "none",
            "iptables": False,
            "ip-masq": False,
            "cgroup-parent": f"/{enclosure.cgroup}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "log-level": "warn",
            "runtimes": runtimes,
        }
        self.configuration.write_text(json.dumps(settings, indent=4))
        prepare(self.configuration)
        self.log = base / "log"
        self.serve()

    def serve(self, *options: str) -> None:
        """Start the daemon; again after ``stop``."""
        command = ["dockerd", "--config-file", self.configuration, *options]
        with self.log.open("a") as log:
            self._daemon = self.enclosure.start(*command, stdout=log, stderr=log)
        wait_until(self._answers, f"dockerd answers; see {self.log}", 60)

    def _answers(self) -> bool:
        if self._daemon.poll() is not None:
            raise AssertionError(f"dockerd ended:\n{self.log.read_text()}")
        return self.docker("version", check=False).returncode == 0

    def client(self) -> list[str]:
        """The docker client of this daemon."""
        return [DOCKER, "--host", f"unix://{self.socket}"]

    def docker(self, *argv: str | Path, **options: Any) -> Result:
        """The docker client with ``argv``."""
        return self.enclosure.run(*self.client(), *argv, **options)

    def load(self, name: str, root: Path) -> None:
        """Make image ``name`` from a root filesystem."""
        tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        self.docker("import", "-", name, stdin=tar.stdout)
        assert tar.wait() == 0

    def arguments(
        self, image: str, command: Sequence[str], env: Mapping[str, str], volumes: Sequence[Volume]
    ) -> list[str]:
        """What ``docker run`` and ``docker create`` take, in the order they want it."""
        mounts = [f"--volume={v.host}:{v.container}:ro" for v in volumes]
        return ["--network=none", *ULIMITS, *_environment(env), *mounts, image, *command]

    def run(
        self,
        image: str,
        *command: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        volumes: Sequence[Volume] = (),
        check: bool = True,
    ) -> Result:
        """``docker run --rm``."""
        arguments = self.arguments(image, command, env or {}, volumes)
        return self.docker("run", "--rm", *options, *arguments, check=check)

    def start(
        self,
        image: str,
        *command: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        volumes: Sequence[Volume] = (),
    ) -> str:
        """``docker run --detach``; returns the id."""
        arguments = self.arguments(image, command, env or {}, volumes)
        return self.docker("run", "--detach", *options, *arguments).stdout.strip()

    def stop(self) -> None:
        """End the daemon as its administrator would: it stops its containers first."""
        pid = (self.base / "pid").read_text()
        self.enclosure.run("kill", pid)
        self._daemon.wait(60)


class Containerd:
    """A containerd for ``ctr``."""

    def __init__(self, enclosure: Enclosure) -> None:
        self.enclosure = enclosure
        base = enclosure.base / "containerd"
        base.mkdir()
        self.socket = base / "socket"
        configuration = base / "config.toml"
        configuration.write_text(
            f'version = 2\nroot = "{base}/root"\nstate = "{base}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.socket}"\n[ttrpc]\naddress = "{self.socket}.ttrpc"\n'
        )
        with (base / "log").open("w") as log:
            self._daemon = enclosure.start(
                "containerd", "--config", configuration, "--log-level=warn", stdout=log, stderr=log
            )
        wait_until(lambda: self.ctr("version", check=False).returncode == 0, "containerd answers")

    def ctr(self, *argv: str | Path, **options: Any) -> Result:
        """``ctr`` with ``argv``."""
        return self.enclosure.run("ctr", "--address", self.socket, *argv, **options)

    def run(
        self,
        overlay: Overlay,
        *command: str,
        runtime: str | Path = "runc",
        env: Mapping[str, str] | None = None,
        volumes: Sequence[Volume] = (),
        check: bool = True,
    ) -> Result:
        """``ctr run --rm`` of a root filesystem, which writes both its outputs to one file.

        Of a container that ends at once, ``ctr`` itself may end before it has read the output: see
        https://github.com/containerd/containerd/issues/5741.
        """
        name = overlay.id
        printed = self.socket.with_name(f"{name}.out")
        mounts = [
            f"--mount=type=bind,src={v.host},dst={v.container},options=rbind:ro" for v in volumes
        ]
        options = ["--runc-binary", str(runtime), "--cgroup", f"/{self.enclosure.cgroup}/{name}"]
        flags = [*options, *_environment({"PATH": PATH, **(env or {})}), *mounts, "--rootfs"]
        flags += ["--rm", "--log-uri", f"file://{printed}"]
        done = self.ctr("run", *flags, overlay.root, name, *command, check=check)
        done.stdout += printed.read_text(encoding="utf-8") if printed.exists() else ""
        return done

    def stop(self) -> None:
        """End the daemon."""
        self._daemon.terminate()  # nsenter waits for its child and is what we hold
        self._daemon.wait(30)


class Podman:
    """podman with its own storage; there is no daemon."""

    def __init__(self, enclosure: Enclosure, hooks: Path) -> None:
        self.enclosure = enclosure
        base = enclosure.base / "podman"
        folders = [f"--root={base}/root", f"--runroot={base}/run", f"--tmpdir={base}/tmp"]
        self._global = [*folders, "--cgroup-manager=cgroupfs", "--events-backend=none"]
        self.hooks = hooks

    def podman(self, *argv: str | Path, options: Sequence[str] = (), **more: Any) -> Result:
        """``podman`` with global ``options`` and ``argv``."""
        hooks = f"--hooks-dir={self.hooks}"
        return self.enclosure.run("podman", *self._global, hooks, *options, *argv, **more)

    def load(self, name: str, root: Path) -> None:
        """Make image ``name`` from a root filesystem."""
        tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        self.podman("import", "-", name, stdin=tar.stdout)
        assert tar.wait() == 0

    def run(
        self,
        image: str,
        *command: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        volumes: Sequence[Volume] = (),
        detach: bool = False,
        is_grouped: bool = True,
        check: bool = True,
    ) -> Result:
        """``podman run --rm``; ``options`` are podman's global ones, such as ``--runtime``."""
        limits = [*ULIMITS, "--ulimit", "nproc=1024:1024"]
        mounts = [f"--volume={v.host}:{v.container}:ro" for v in volumes]
        group = f"--cgroup-parent=/{self.enclosure.cgroup}"
        enclosed = ["--network=none", group if is_grouped else "--cgroups=disabled"]
        flags = [
            f"--detach={str(detach).lower()}",
            *enclosed,
            *limits,
            *_environment(env or {}),
            *mounts,
        ]
        return self.podman(
            "run", "--rm", *flags, f"localhost/{image}", *command, options=options, check=check
        )


class Overlay:
    """A private, writable view of a root filesystem; mounted inside the enclosure only."""

    def __init__(self, enclosure: Enclosure, root: Path) -> None:
        self.enclosure = enclosure
        self.id = f"t{uuid.uuid4().hex[:12]}"
        self.path = enclosure.base / "bundles" / self.id
        self.root = self.path / "rootfs"
        for folder in ("upper", "work", "rootfs"):
            (self.path / folder).mkdir(parents=True)
        layers = f"lowerdir={root},upperdir={self.path}/upper,workdir={self.path}/work"
        enclosure.run("mount", "-t", "overlay", "overlay", "-o", layers, self.root)

    def seen_from_here(self) -> Path:
        """The root filesystem as this process, which is not in the enclosure, reaches it."""
        return Path(f"/proc/{self.enclosure.pid}/root{self.root}")

    def remove(self) -> None:
        """Unmount it."""
        self.enclosure.run("umount", self.root)


class Bundle(Overlay):
    """An OCI bundle on an overlay of a root filesystem, for runc and crun themselves."""

    def __init__(self, enclosure: Enclosure, root: Path) -> None:
        super().__init__(enclosure, root)
        enclosure.run("runc", "spec", "--bundle", self.path)
        self.configure(self._adapt)

    def configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply ``change`` to the parsed ``config.json``."""
        file = self.path / "config.json"
        config = json.loads(file.read_text())
        change(config)
        file.write_text(json.dumps(config))

    def _adapt(self, config: dict[str, Any]) -> None:
        config["process"]["terminal"] = False
        config["process"]["rlimits"] = []
        config["root"]["readonly"] = False
        config["linux"]["cgroupsPath"] = f"/{self.enclosure.cgroup}/{self.id}"

    def prepare(
        self, command: Sequence[str], env: Mapping[str, str], volumes: Sequence[Volume] = ()
    ) -> None:
        """Write what the container is to run into its configuration."""

        def change(config: dict[str, Any]) -> None:
            config["process"]["args"] = list(command)
            config["process"]["env"] += [f"{name}={value}" for name, value in env.items()]
            options = ["rbind", "ro"]
            config["mounts"] += [
                {
                    "destination": v.container,
                    "type": "bind",
                    "source": str(v.host),
                    "options": options,
                }
                for v in volumes
            ]

        self.configure(change)

    def start_command(self, runtime: Sequence[str | Path]) -> list[str]:
        """``<runtime> run`` of the bundle as it stands."""
        return [*map(str, runtime), "run", "--bundle", str(self.path), self.id]

    def start(self, runtime: Sequence[str | Path], *, check: bool = True) -> Result:
        """Run the bundle as it stands."""
        return self.enclosure.run(*self.start_command(runtime), check=check)

    def run(
        self,
        runtime: Sequence[str | Path],
        *command: str,
        env: Mapping[str, str] | None = None,
        volumes: Sequence[Volume] = (),
        check: bool = True,
    ) -> Result:
        """Prepare and start."""
        self.prepare(command, env or {}, volumes)
        return self.start(runtime, check=check)
