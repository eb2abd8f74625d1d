"""A machine with a server that audits, and programs on it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

import cgpu_native
from cgpu_cli.demo import tenant
from cgpu_node import client
from lab.machine.audited import BYPASS, Bypass, server_command, until
from lab.worlds.cgpu_run import MIB, World

if TYPE_CHECKING:
    from lab.worlds.cgpu_run import Child

FAST = "interval_seconds = 0.1"


class Audited(World):
    """A machine with a server that audits, and programs on it."""

    def __init__(self, gpus: int = 1) -> None:
        super().__init__(gpus=gpus)
        self.state.mkdir(mode=0o700)
        self.log = self.folder / "log"
        self._ends: list[Bypass] = []
        self._computing: list[Child] = []
        self._servers: list[subprocess.Popen[bytes]] = []

    def serve(self, audit: str = FAST, *flags: str) -> subprocess.Popen[bytes]:
        """Start the server."""
        where = ("--state-dir", self.state, "--driver-dir", self.driver, "--log", self.log)
        command = server_command(self.folder, audit, *where, *flags)
        server = subprocess.Popen(command, env=self.environment())
        self._servers.append(server)
        until(lambda: "serving" in self.logged(), "it serves")
        return server

    def program(self, *options: str) -> Bypass:
        """A session of 6 of 15 GiB."""
        real = self.state / "real" if "--no-namespaces" not in options else self.driver
        libraries = (self.driver / "libcuda.so.1", real / "libcuda.so.1")
        words = (sys.executable, "-I", BYPASS, *libraries, self.state / "ledger")
        made = Bypass(self.start("--mem", "6/15", *options, "--", *words))
        self._ends.append(made)
        return made

    def busy(self, *options: str) -> Child:
        """A session that computes without an end, in kernels of 2 ms."""
        process = self.start("--mem", "6/15", *options, "--", sys.executable, "-I", tenant.__file__)
        self._computing.append(process)
        assert process.stdin is not None
        process.stdin.write("compute 2000\n")
        process.stdin.flush()
        return process

    def close(self) -> None:
        """End all of it."""
        for process in self._computing:
            process.kill()
            process.communicate()
        for program in self._ends:
            program.close()
        for server in self._servers:
            server.terminate()
            server.wait(20)

    def logged(self, event: str = "") -> str:
        """The lines of the server's log with ``event``."""
        text = self.log.read_text() if self.log.exists() else ""
        return "\n".join(line for line in text.splitlines() if event in line)

    def pages(self) -> list[cgpu_native.LimitsGpu]:
        """Of the sessions there are."""
        found = []
        for name in self.sessions():
            found += cgpu_native.read_limits(self.state / "containers" / name / "limits").gpus
        return found

    def outside(self) -> int:
        """What the only session holds outside its ledger, in MiB."""
        (page,) = self.pages()
        return page.outside_bytes // MIB

    def cgpu(self, *words: str) -> str:
        """What a command says."""
        where = ("--state-dir", str(self.state), "--driver-dir", str(self.driver))
        command = (sys.executable, "-m", "cgpu_cli.main", words[0], *where, *words[1:])
        return self.run_command([*command]).stdout

    def status(self) -> dict[str, Any]:
        """What the server says of the only session's memory."""
        (container,) = client.send_request(str(self.state), {"request": "status"})["containers"]
        found: dict[str, Any] = container["gpus"][0]
        return found


def scrape(world: Audited) -> dict[str, float]:
    """By metric, where there is one container and one GPU."""
    address = re.findall(r"metrics_served address=(\S+)", world.logged())[0]
    with urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}
