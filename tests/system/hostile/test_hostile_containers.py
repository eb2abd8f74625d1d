"""What root in a container does to its files, and makes the host keep (REL-5, REL-7, REL-9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_node import client
from cgpu_node.view import marks
from lab.containers.engines import Volume
from lab.machine import hostile_files
from lab.machine.hostile_files import MANY
from lab.machine.node import CRUN, RUNC, T4, Node, share
from lab.machine.servers import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle

pytestmark = pytest.mark.system

PROGRAM = "/opt/hostile_files.py"
LIMITS, LEDGER = "/dev/cgpu/limits", "/dev/cgpu/ledger"
WORD = "x" * 131071  # the longest that Linux takes


@contextmanager
def hostile(node: Node, made: Bundle, *arguments: str) -> Iterator[None]:
    """A container that has done ``arguments`` of ``hostile_files.py`` and goes on."""
    volume = Volume(Path(hostile_files.__file__), PROGRAM)
    made.prepare(["python3", PROGRAM, *arguments], share(3), [volume])
    with running(node, made):
        yield


@contextmanager
def running(node: Node, made: Bundle) -> Iterator[None]:
    """A prepared container that has said that it is done."""
    words = made.enclosure.command(*made.start_command(node.command()))
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    yield
    process.communicate(timeout=60)


def leased(node: Node, container: str) -> int:
    """How many of its files have a lease."""
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    leases = {line.split()[5].split(":")[2] for line in lines if " LEASE " in line}
    files = (node.state / "containers" / container).iterdir()
    return len(leases.intersection(str(file.stat().st_ino) for file in files))


def test_locks_without_end_mark_the_container_and_no_other_one(
    node: Node, bundle: Callable[[Path], Bundle], debian_root: Path
) -> None:
    made, other = bundle(debian_root), bundle(debian_root)
    with hostile(node, made, "locks", LEDGER, str(MANY)), hostile(node, other, "lease"):
        answer = client.send_request(str(node.state), {"request": "status"})
        found = {container["id"]: container["mark"] for container in answer["containers"]}
        assert (found[made.id], found[other.id]) == (marks.LOCKS, None)
    assert not {made.id, other.id}.intersection(node.containers())


def test_leases_mark_the_container_and_hold_up_no_other_one(
    enclosure: Enclosure, bundle: Callable[[Path], Bundle], debian_root: Path
) -> None:
    node = Node(enclosure.base / "leases", T4)
    node.state.mkdir(mode=0o700)
    stand_in = StandIn(node.state)  # no server, which would have had the files open before
    made, other = bundle(debian_root), bundle(debian_root)
    with hostile(node, made, "lease", LIMITS, LEDGER), hostile(node, other, "lease"):
        path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"
        smi = [sys.executable, "-m", "cgpu_cli.smi", "--json", "--state-dir", node.state]
        done = enclosure.run("env", path, *smi, "--driver-dir", node.driver)
        containers = json.loads(done.stdout)["containers"]
        found = {each["id"]: each["gpus"][0]["mark"] for each in containers}
        assert found == {made.id: marks.LEASE, other.id: None}
        assert stand_in.calls() > 0
        assert leased(node, made.id) == 2, "all of it has waited for the leases"


def test_megabytes_of_arguments_keep_nobody_from_starting(
    enclosure: Enclosure, bundle: Callable[[Path], Bundle], small_root: Path
) -> None:
    """REL-5: little of them is kept, and the server's answer names all containers."""
    node = Node(enclosure.base / "wordy", T4)
    command = ["sh", "-c", "echo done; read line", *[WORD] * 14]
    made = [bundle(small_root) for _ in range(9)]
    with ExitStack() as stack:
        for each in made:
            each.prepare(command, share(1), [])
            stack.enter_context(running(node, each))
        answer = client.send_request(str(node.state), {"request": "status"})
        assert {each["id"] for each in answer["containers"]} == {each.id for each in made}
        files = [path for path in (node.state / "containers").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < len(made) << 20
        bundle(small_root).run(node.command(), "true", env=share(1))


def may_mount(config: dict[str, Any]) -> None:
    """As ``--cap-add=SYS_ADMIN`` of an engine without AppArmor."""
    for kind in ("bounding", "effective", "permitted"):
        config["process"]["capabilities"][kind].append("CAP_SYS_ADMIN")


@pytest.mark.parametrize("runtime", [RUNC, CRUN])
def test_a_container_that_may_mount_cannot_change_the_proxies(
    runtime: str, enclosure: Enclosure, bundle: Callable[[Path], Bundle], debian_root: Path
) -> None:
    """REL-9: in root's own state directory. The driver's libraries it can change (isolation.md)."""
    node = Node(enclosure.base / f"sealed-{Path(runtime).name}", T4, state=Path("/run/cgpu"))
    made = bundle(debian_root)
    made.configure(may_mount)
    command = ["python3", PROGRAM, "remount", "libcuda.so.1"]
    volume = Volume(Path(hostile_files.__file__), PROGRAM)
    done = made.run(node.command(runtime), *command, env=share(3), volumes=[volume])
    found = {path: (kind, end) for path, kind, end in map(str.split, done.stdout.splitlines())}
    assert found.pop("/dev/cgpu/real/libcuda.so.1")[1] == "writable"
    assert set(found.values()) == {("overlay", "EROFS")}
