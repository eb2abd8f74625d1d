"""``cgpu doctor`` on the simulated driver: exit status, JSON, and the state of real sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lab.machine.node import T4, Node
from lab.machine.servers import end, end_servers, serving
from lab.machine.trees import leave_trees

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, T4)
    yield made
    end_servers(tmp_path)


def cgpu(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cgpu_cli.main", words[0], "--state-dir", str(node.state)]
    driver = ["--driver-dir", str(node.driver)]
    return subprocess.run(
        [*command, *driver, *words[1:]],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        preexec_fn=leave_trees,
    )


def findings(node: Node, *checks: str) -> list[dict[str, Any]]:
    answer = json.loads(cgpu(node, "doctor", "--json").stdout)
    assert answer["version"] == 1
    assert all(
        set(found) == {"check", "level", "what", "value", "mend"} for found in answer["findings"]
    )
    return [found for found in answer["findings"] if found["check"] in checks]


def test_a_good_driver_is_in_order_and_nothing_is_made(node: Node) -> None:
    """MEM-2 needs each entry point, so a driver of which one is unknown must show up here."""
    checks = (
        *("driver", "compute mode", "entry points", "glibc"),
        *("state directory", "leftovers", "server"),
    )
    found = findings(node, *checks)
    assert [(f["check"], f["level"]) for f in found] == [(check, "ok") for check in checks]
    assert not node.state.exists()


def test_a_node_without_a_driver_is_an_error_with_a_hint(node: Node) -> None:
    (node.driver / "libcuda.so.1").unlink()
    done = cgpu(node, "doctor", "-q")
    assert done.returncode == 1
    assert "error  driver: " in done.stdout
    assert "  ok  " not in done.stdout
    answer = json.loads(cgpu(node, "doctor", "--json").stdout)
    assert answer["worst"] == "error"
    # Not of all checks: what engines run on this machine is no matter of this test.
    found = findings(node, "driver", "entry points", "glibc", "shares", "server")
    assert len([f for f in found if f["level"] == "error"]) == 1  # said once


def test_a_killed_server_and_a_dead_container_are_told_and_mended(node: Node) -> None:
    """With the very command that is named."""
    assert cgpu(node, "get").returncode == 0
    assert [f["level"] for f in findings(node, "server")] == ["ok"]
    [pid] = serving(node.state)
    assert end(pid, signal.SIGKILL)
    dead = node.state / "containers" / "dead"
    dead.mkdir(parents=True)
    os.utime(dead, (1, 1))
    found = findings(node, "server", "leftovers")
    assert [(f["level"], f["mend"]) for f in found] == [("warning", "cgpu get")] * 2
    assert cgpu(node, "get").returncode == 0
    assert [f["level"] for f in findings(node, "server", "leftovers")] == ["ok", "ok"]
    assert not dead.exists()
