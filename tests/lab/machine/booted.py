"""A Debian machine with a systemd of its own, in namespaces, that a test boots and changes."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lab.containers.enclosure import CGROUPS, Enclosure, wait_until
from lab.containers.engines import Overlay

if TYPE_CHECKING:
    from lab.containers.engines import Result

# As container managers set up what systemd wants to find (systemd.io/CONTAINER_INTERFACE).
_BOOT = """\
set -e
cd "$1"
umount proc
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty fuse; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
pivot_root . mnt
exec chroot . env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c \\
    'umount -l /mnt && mount --make-rshared / && exec /lib/systemd/systemd'
"""
_NAMESPACES = ["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--fork", "--kill-child"]


DRIVER = "/opt/driver"
CONFIG = f'[driver]\nlibrary_dir = "{DRIVER}"\n'


class Machine:
    """A copy of a root filesystem; ``chroot`` runs a command in it, ``boot`` starts its systemd."""

    def __init__(self, name: str, root: Path) -> None:
        self.enclosure = Enclosure(name)
        self._overlay = Overlay(self.enclosure, root)
        self.root = self._overlay.root
        self.enclosure.run("mount", "-t", "proc", "proc", f"{self.root}/proc")
        self._inside: list[str] | None = None

    def share(self, folder: Path, point: str) -> None:
        """Show a folder of this machine at ``point``."""
        self.enclosure.run("mkdir", "--parents", f"{self.root}{point}")
        self.enclosure.run("mount", "--bind", folder, f"{self.root}{point}")

    def give_gpu(self, driver: Path) -> None:
        """Show a simulated driver at ``DRIVER``; its GPU is a file where a real one is a device."""
        self.share(driver, DRIVER)
        unit = "/etc/systemd/system/cgpud.service.d/gpu.conf"
        self.write(unit, f"[Service]\nReadWritePaths=-{DRIVER}\n")

    def write(self, path: str, text: str) -> None:
        """A file, before its systemd runs or after."""
        self.enclosure.run("mkdir", "--parents", f"{self.root}{Path(path).parent}")
        self.enclosure.run("tee", f"{self.root}{path}", input=text)

    def main_pid(self) -> str:
        """The process of its cgpud.service; 0 if there is none."""
        return self.run("systemctl", "show", "-p", "MainPID", "--value", "cgpud").stdout.strip()

    def serves(self) -> bool:
        """Whether the service answers, and its tree is there."""
        asked = self.run("cat", "/run/cgpu_km/0/policy", check=False)
        return asked.returncode == 0 and self.main_pid() != "0"

    def boot(self) -> None:
        """Return when the machine runs."""
        unified = CGROUPS / "unified"
        group = (unified if unified.is_mount() else CGROUPS) / self.enclosure.cgroup
        group.mkdir()
        join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        first = ["unshare", *_NAMESPACES, "--propagation=private", "sh", "-c", _BOOT, "sh"]
        started = subprocess.Popen(
            ["sh", "-c", join, "sh", *self.enclosure.command(*first, self.root)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        found: list[psutil.Process] = []

        def runs() -> bool:
            assert started.poll() is None, "systemd ended"
            with contextlib.suppress(psutil.NoSuchProcess):  # one of those that mount
                below = psutil.Process(started.pid).children(recursive=True)
                found[:] = [process for process in below if process.name() == "systemd"]
            return bool(found)

        wait_until(runs, "systemd has been started")
        self._inside = ["nsenter", f"--target={found[0].pid}", "--all", "--"]
        # degraded: what a machine without a console cannot start
        done = ("running\n", "degraded\n")
        state = ["systemctl", "is-system-running"]
        wait_until(lambda: self.run(*state, check=False).stdout in done, "it has booted")

    def run(self, *argv: str, check: bool = True) -> Result:
        """A command on the machine: under its systemd once that has been started."""
        if self._inside is None:
            environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
            return self.enclosure.run(*environment, "chroot", self.root, *argv, check=check)
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
        done = subprocess.run(
            [*self._inside, *environment, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done

    def command(self, *argv: str) -> list[str]:
        """A command under its systemd, as this machine starts it."""
        assert self._inside is not None
        return [*self._inside, *argv]

    def files(self) -> set[str]:
        """All files, with what they are; not those of file systems mounted on it."""
        listed = self.enclosure.run("find", self.root, "-xdev", "-printf", "%P %y %l\\n").stdout
        return set(listed.splitlines())

    def stop(self) -> None:
        """End it with everything on it."""
        self.enclosure.stop()
