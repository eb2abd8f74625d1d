"""Memory that containers take past cgpu is found by their control groups (MEM-9, REL-6)."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cgpu_native
from lab.containers.contained import PROGRAMS, volumes
from lab.containers.enclosure import CGROUPS
from lab.machine.audited import BYPASS, Bypass, configure, server_command, until
from lab.machine.node import CRUN, RUNC, T4, Node, share
from lab.machine.servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.containers.enclosure import Enclosure
    from lab.containers.engines import Bundle, Docker

pytestmark = pytest.mark.system
CGPU = ["--runtime=cgpu"]
MIB, CAP, CONTEXT, OUT_OF_MEMORY = 1 << 20, 6043, 105, 2
FAST = "interval_seconds = 0.1"
REAL, COPY = "/dev/cgpu/real/libcuda.so.1", "/tmp/copy.so"


def program(real: str = REAL) -> list[str]:
    """The program in a container."""
    return ["python3", f"{PROGRAMS}/bypass.py", "libcuda.so.1", real, "/dev/cgpu/ledger"]


@pytest.fixture
def speak(enclosure: Enclosure) -> Iterator[Callable[..., Bypass]]:
    """Start the program by a command of the enclosure's."""
    made: list[Bypass] = []

    def start(*command: str) -> Bypass:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(enclosure.command(*command), text=True, **pipes)  # type: ignore[call-overload]
        made.append(Bypass(process))
        return made[-1]

    yield start
    for each in made:
        each.close()


def outside(node: Node, name: str) -> int:
    """MiB."""
    (page,) = cgpu_native.read_limits(node.state / "containers" / name / "limits").gpus
    return page.outside_bytes // MIB


def serve(enclosure: Enclosure, node: Node, action: str) -> subprocess.Popen[str]:
    """A server that looks often, and does ``action`` about what it finds."""
    node.state.mkdir(mode=0o700)
    where = ("--state-dir", node.state, "--driver-dir", node.driver, "--log", node.state / "log")
    audit = f'{FAST}\naction = "{action}"'
    server = enclosure.start(*server_command(node.state.parent, audit, *where))
    until(lambda: serving(node.state), "it serves")
    return server


def as_user(config: dict[str, Any]) -> None:
    """No root in the container."""
    config["process"]["user"].update(uid=1000, gid=1000)


def bypasses(node: Node, name: str) -> list[str]:
    """Lines of the log."""
    lines = (node.state / "cgpud.log").read_text().splitlines()
    return [line for line in lines if "memory_bypass" in line and name in line]


def test_a_copy_of_the_driver_in_a_container_of_docker_is_charged_to_it(
    docker: Docker,
    debian: str,
    node: Node,
    started: Callable[..., str],
    speak: Callable[..., Bypass],
) -> None:
    """Run by `docker exec`, under the defaults of a node, beside a container that is honest."""
    names = [
        started(debian, "sleep", "1000", options=CGPU, env=share(6), volumes=volumes())
        for _ in range(2)
    ]
    docker.docker("exec", names[0], "cp", REAL, COPY)
    hostile, honest = [
        speak(*docker.client(), "exec", "--interactive", name, *program(COPY)) for name in names
    ]
    assert hostile.ask("take 1000") == honest.ask("take 1000") == 0
    assert hostile.ask("cover 9000") == errno.EPERM, "docker's filter forbids namespaces"
    hostile.ask("past 5000")
    until(lambda: outside(node, names[0]) == 5000 + CONTEXT, "it is charged")
    assert hostile.ask("take 100") == OUT_OF_MEMORY
    assert honest.ask("take 4000") == 0
    assert outside(node, names[1]) == 0
    until(lambda: bypasses(node, names[0]), "it is logged")
    (line,) = bypasses(node, names[0])
    assert "/python3" in line
    hostile.ask("end")
    until(lambda: outside(node, names[0]) == 0, "it is charged no longer")


def in_group(enclosure: Enclosure, name: str, *command: str | Path) -> list[str]:
    """``command`` in a control group, which is made if it is missing."""
    hierarchy = next((path for path in (CGROUPS / "pids", CGROUPS) if path.is_dir()), CGROUPS)
    script = 'mkdir -p "$0" && echo $$ >"$0/cgroup.procs" && exec "$@"'
    folder = hierarchy / enclosure.cgroup / name
    return ["sh", "-c", script, str(folder), *map(str, command)]


@pytest.mark.parametrize("runtime", [RUNC, CRUN])
def test_the_name_of_a_control_group_bills_and_ends_nobody(
    runtime: str,
    bundle: Callable[[Path], Bundle],
    debian_root: Path,
    enclosure: Enclosure,
    speak: Callable[..., Bypass],
) -> None:
    """MEM-9: users name groups of theirs, and parents of containers' groups, as they like."""
    node = Node(enclosure.base / f"named-{Path(runtime).name}", T4)
    server = serve(enclosure, node, "kill")
    made = bundle(debian_root)
    made.prepare(program(), share(6), volumes())
    inside = speak(*made.start_command(node.command(runtime)))
    assert inside.ask("take 1000") == 0
    real = node.driver / "libcuda.so.1"
    words = [sys.executable, "-I", BYPASS, real, real, "/dev/null"]
    log = node.state / "log"
    named = speak(*in_group(enclosure, f"any/{made.id}/x", *words))
    assert named.ask("take 1000") == 0
    until(lambda: "memory_foreign" in log.read_text(), "it is found to be nobody's")
    assert outside(node, made.id) == 0
    assert named.ask("take 10") == 0, "and lives"
    below = speak(*in_group(enclosure, f"{made.id}/x", *words))  # it has none of the mounts
    assert below.ask("take 1000") == 0
    until(lambda: "bypass_ended" in log.read_text(), "it is the container's")
    assert named.ask("take 10") == inside.ask("take 1000") == 0
    assert log.read_text().count("bypass_ended") == 1
    server.terminate()


def test_kill_ends_the_process_and_not_its_container(
    bundle: Callable[[Path], Bundle],
    debian_root: Path,
    enclosure: Enclosure,
    speak: Callable[..., Bypass],
) -> None:
    """As another user than root, and in two containers at once."""
    node = Node(enclosure.base / "audited", T4)
    server = serve(enclosure, node, "kill")
    made = [bundle(debian_root) for _ in range(2)]
    for each in made:
        each.prepare(program(), share(6), volumes())
        each.configure(as_user)
    programs = [speak(*each.start_command(node.command())) for each in made]
    assert [each.ask("take 1000") for each in programs] == [0, 0]
    assert programs[0].ask("past 1000") > 0
    until(lambda: "bypass_ended" in (node.state / "log").read_text(), "it is ended")
    until(lambda: outside(node, made[0].id) == 0, "it is charged no longer")
    assert [each.ask("take 1000") for each in programs] == [0, 0]
    ended = [s for s in (node.state / "log").read_text().splitlines() if "bypass_ended" in s]
    assert len(ended) == 1
    assert made[0].id in ended[0]
    server.terminate()


def test_limits_covered_in_a_user_namespace_hide_nothing(
    bundle: Callable[[Path], Bundle],
    debian_root: Path,
    enclosure: Enclosure,
    speak: Callable[..., Bypass],
) -> None:
    """MEM-9: where no filter forbids such a namespace, every user can mount in one."""
    node = Node(enclosure.base / "covered", T4)
    server = serve(enclosure, node, "log")
    made = [bundle(debian_root) for _ in range(2)]
    for each in made:
        each.prepare(program(), share(6), volumes())
        each.configure(as_user)
    hostile, honest = [speak(*each.start_command(node.command())) for each in made]
    assert hostile.ask("cover 12000") == 0
    assert hostile.ask("take 9000") == honest.ask("take 1000") == 0
    beyond = 9000 + CONTEXT - CAP
    until(lambda: outside(node, made[0].id) > beyond - 100, "it is charged, but for an allowance")
    log = node.state / "log"
    until(lambda: "memory_bypass" in log.read_text(), "it is logged")
    configure(node.state.parent, f'{FAST}\naction = "kill"')
    until(lambda: "bypass_ended" in log.read_text(), "it is ended")
    assert honest.ask("take 1000") == 0
    (line,) = [line for line in log.read_text().splitlines() if "bypass_ended" in line]
    assert made[0].id in line
    server.terminate()
