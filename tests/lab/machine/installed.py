"""A private machine on which cgpu is installed as on a real one: /etc, /usr/bin and the like."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lab.containers.enclosure import Enclosure
from lab.containers.engines import Docker
from lab.machine.node import T4, Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lab.containers.engines import Result

CHANGED = ("/etc", "/usr/bin", "/usr/local/bin", "/usr/share", "/var/lib")
DOCKER = "/etc/docker/daemon.json"


class Installed:
    """A machine like this one with a simulated GPU, which nobody else sees."""

    def __init__(self, name: str = "install", *gpus: str) -> None:
        self.enclosure = Enclosure(name)
        self.base = self.enclosure.base
        try:
            self._mount()
            self.node = node = Node(self.base / "node", *(gpus or [T4]))
            self.write("/etc/cgpu/config.toml", f'[driver]\nlibrary_dir = "{node.driver}"\n')
        except BaseException:  # also when the process has to end
            self.enclosure.stop()
            raise

    def _mount(self) -> None:
        for folder in CHANGED:
            upper, work = (self.base / f"{kind}{folder}" for kind in ("upper", "work"))
            upper.mkdir(parents=True, exist_ok=True)
            work.mkdir(parents=True, exist_ok=True)
            layers = f"lowerdir={folder},upperdir={upper},workdir={work}"
            self.enclosure.run("mount", "-t", "overlay", "overlay", "-o", layers, folder)

    def reboot(self) -> None:
        """End everything, and forget what a machine forgets: its files on disk stay."""
        self.enclosure.reboot()
        self._mount()

    def write(self, path: str, text: str) -> None:
        folder = path.rpartition("/")[0]
        self.enclosure.run("mkdir", "--parents", folder)
        self.enclosure.run("tee", path, input=text)

    def read(self, path: str) -> str:
        return self.enclosure.run("cat", path).stdout

    def cgpu(self, *words: str, check: bool = True) -> Result:
        python = ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}", sys.executable]
        words = (*python, "-m", "cgpu_cli.main", *words)
        # an upgrade makes an environment of Python: minutes on a busy machine
        return self.enclosure.run(*words, check=check, timeout=480)

    def docker(self, install: Callable[[], object]) -> Docker:
        """dockerd with what ``install`` makes of its configuration."""

        def prepare(configuration: Path) -> None:
            self.write(DOCKER, configuration.read_text())
            install()
            configuration.write_text(self.read(DOCKER))

        return Docker(self.enclosure, {"other": {"path": "/usr/bin/crun"}}, prepare)
