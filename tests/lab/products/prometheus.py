"""A real Prometheus, and what is deployed for it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "prometheus"
ALERTS = DEPLOY / "cgpu-alerts.yml"
VARIABLES = {
    "$__rate_interval": "10s",
    "$__range": "1h",
    "$instance": ".*",
    "$gpu": ".*",
    "$node": ".*",
    "$namespace": ".*",
    "$container": ".*",
}


def promtool(*words: str | Path) -> str:
    """What it prints; it must succeed."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def filled_in(query: str) -> str:
    """As Grafana asks it, with everything chosen."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return query


class Prometheus:
    """One that scrapes every second as ``configuration`` says, in which ``changes`` are made."""

    def __init__(self, folder: Path, configuration: str, changes: dict[str, str]) -> None:
        self.address = free_address()
        shutil.copy(ALERTS, folder)
        text = (DEPLOY / configuration).read_text()
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        (folder / "prometheus.yml").write_text(text)
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers."""
        url = f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=20) as answer:
            output = json.load(answer)
        assert output["status"] == "success", output
        return output["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of what an expression gives now."""
        found = self.ask("query", query=filled_in(expression))["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def answers(self, expression: str) -> bool:
        """Whether there is anything to see yet."""
        try:
            return bool(self.query(expression))
        except (URLError, ConnectionError):  # it starts
            return False


def free_address() -> str:
    """One on the loopback where nobody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as end:
        return f"127.0.0.1:{end.getsockname()[1]}"


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Return when ``condition`` holds; fail after ``seconds`` saying ``what`` did not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.1)


@contextmanager
def prometheus(folder: Path, configuration: str, changes: dict[str, str]) -> Iterator[Prometheus]:
    """One that runs until the end of the block, in a new ``folder``."""
    folder.mkdir()
    made = Prometheus(folder, configuration, changes)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
