"""``cgpu install --default`` under engines that run, and what ``uninstall`` makes of it (CLI-4)."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from lab.containers import contained
from lab.containers.enclosure import wait_until
from lab.containers.engines import DOCKER as CLIENT
from lab.containers.engines import Docker
from lab.machine.cri import CONTAINERD, IMAGE, Cri, served
from lab.machine.installed import DOCKER, Installed
from lab.machine.node import share

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.containers.engines import Volume

pytestmark = pytest.mark.system

SYSTEMCTL = """#!/bin/sh
echo "asked: $*"
case "$*" in *reload*docker) kill -HUP "$(cat {pid})" ;; esac
"""


class Node(NamedTuple):
    """A machine whose dockerd reads the machine's own file, at the usual socket."""

    machine: Installed
    docker: Docker

    def default(self) -> str:
        return self.docker.docker("info", "--format", "{{.DefaultRuntime}}").stdout.strip()

    def make_default(self) -> None:
        """Of cgpu, as dockerd has it from then on."""
        self.machine.cgpu("install", "docker", "--default", "--now")
        wait_until(lambda: self.default() == "cgpu", "dockerd has read its file")

    def runtime(self, id_: str) -> str:
        return self.docker.docker(
            "inspect", "--format", "{{.HostConfig.Runtime}}", id_
        ).stdout.strip()

    @contextmanager
    def without_engine(self) -> Iterator[None]:
        """dockerd ends and is started again; its containers go on."""
        self.docker.stop()
        try:
            yield
        finally:
            self.docker.serve()

    def findings(self) -> list[tuple[str, str]]:
        """What the doctor says of docker."""
        answer = json.loads(self.machine.cgpu("doctor", "--json", check=False).stdout)
        return [(f["level"], f["what"]) for f in answer["findings"] if "docker" in f["what"]]


@pytest.fixture(scope="module")
def node(debian_root: Path) -> Iterator[Node]:
    machine = Installed("default")
    inside = machine.enclosure

    def prepare(configuration: Path) -> None:
        settings = json.loads(configuration.read_text()) | {"live-restore": True}
        machine.write(DOCKER, json.dumps(settings, indent=2))
        configuration.unlink()
        configuration.symlink_to(DOCKER)

    docker = Docker(inside, {"other": {"path": "/usr/bin/crun"}}, prepare)
    docker.load("debian", debian_root)
    inside.run("ln", "-s", docker.socket, "/run/docker.sock")
    inside.run("ln", "-sf", CLIENT, "/usr/local/bin/docker")
    inside.run("mkdir", "-p", "/run/systemd/system")
    machine.write("/usr/local/bin/systemctl", SYSTEMCTL.format(pid=docker.base / "pid"))
    inside.run("chmod", "755", "/usr/local/bin/systemctl")
    yield Node(machine, docker)
    docker.stop()
    inside.stop()


@contextmanager
def started(node: Node, *words: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    id_ = node.docker.start("debian", *words, options=options)
    try:
        yield id_
    finally:
        node.docker.docker("rm", "--force", id_)


def behaviour(node: Node, options: tuple[str, ...]) -> list[object]:
    """What a plain container does when its engine deals with it."""
    docker, output = node.docker.docker, []
    done = node.docker.run("debian", "sh", "-c", "cat; exit 3", options=options, check=False)
    output += [done.returncode, done.stdout]
    trap = "trap 'exit 7' TERM; touch /ready; while :; do sleep 0.1; done"
    for end in (["stop"], ["kill"], ["kill", "--signal=TERM"], ["pause"]):
        with started(node, "sh", "-c", trap, options=options) as id_:
            ready = ["exec", id_, "test", "-e", "/ready"]
            wait_until(lambda ready=ready: docker(*ready, check=False).returncode == 0, "it is up")
            done = docker("exec", "-e", "A=1", id_, "sh", "-c", "echo $A; exit 5", check=False)
            output += [done.returncode, done.stdout]
            docker(*end, id_)
            if end == ["pause"]:
                docker("unpause", id_)
                docker("stop", id_)
            output.append(docker("wait", id_).stdout)
            docker("start", id_)
            output.append(docker("inspect", "--format", "{{.State.Status}}", id_).stdout)
    return output


def test_a_default_is_put_and_taken_back_under_running_containers(
    node: Node, guests: list[Volume]
) -> None:
    machine, docker = node.machine, node.docker
    before = machine.read(DOCKER)
    with started(node, "sleep", "1000") as early:
        node.make_default()
        assert ("ok", "docker knows cgpu, and has it for its default runtime") in node.findings()
        shown = docker.run("debian", "nvidia-smi", env=share(6), volumes=guests)
        assert contained.memory_shown(shown) == [(0, 6043)]
        with started(node, "sleep", "1000") as plain:
            assert (node.runtime(early), node.runtime(plain)) == ("runc", "cgpu")
            with node.without_engine():
                done = machine.cgpu("uninstall", check=False)
            assert f"containers run with cgpu: stop them first: {plain}\n" in done.stderr
            assert docker.docker("exec", plain, "echo", "goes on").stdout == "goes on\n"
            assert machine.cgpu("uninstall", "--now", check=False).returncode == 2
            assert node.default() == "cgpu"
        machine.cgpu("uninstall", "--now")
        assert machine.read(DOCKER) == before
        assert node.default() == "runc"
        assert docker.run("debian", "echo", "plain").stdout == "plain\n"
        assert docker.docker("exec", early, "echo", "goes on").stdout == "goes on\n"


@contextmanager
def meanwhile(node: Node, script: str) -> Iterator[None]:
    """What ``systemctl`` does first, once."""
    path = "/usr/local/bin/systemctl"
    before = node.machine.read(path)
    marker = node.docker.base / "asked"
    once = f"if mkdir {marker} 2>/dev/null; then {script}; fi"
    node.machine.write(path, before.replace("\n", f"\n{once}\n", 1))
    try:
        yield
    finally:
        node.machine.write(path, before)
        node.machine.enclosure.run("rm", "-rf", str(marker))


def test_a_dockerd_that_keeps_cgpu_keeps_its_programs_too(node: Node) -> None:
    """Without them it could start no container."""
    machine, before = node.machine, node.machine.read(DOCKER)
    node.make_default()
    seen = machine.read(DOCKER)
    with meanwhile(node, "exit 5"):
        done = machine.cgpu("uninstall", "--now", check=False)
    assert done.returncode == 2
    assert "dockerd's default runtime is still cgpu: systemctl " in done.stderr
    assert machine.read(DOCKER) == seen
    assert node.docker.run("debian", "echo", "plain").stdout == "plain\n"
    output = machine.cgpu("uninstall", "--now").stdout
    assert "restart" not in output.replace("reload-or-restart", "")
    assert (machine.read(DOCKER), node.default()) == (before, "runc")


def test_a_container_made_while_dockerd_lets_go_keeps_cgpu_installed(node: Node) -> None:
    machine, before = node.machine, node.machine.read(DOCKER)
    node.make_default()
    seen = machine.read(DOCKER)
    with meanwhile(node, "docker run --detach --name late --network none debian sleep 1000"):
        done = machine.cgpu("uninstall", "--now", check=False)
    try:
        assert "cgpu: containers run with cgpu: stop them first: " in done.stderr
        assert machine.read(DOCKER) == seen
        wait_until(lambda: node.default() == "cgpu", "dockerd has read its file again")
    finally:
        node.docker.docker("rm", "--force", "late")
    machine.cgpu("uninstall", "--now")
    assert (machine.read(DOCKER), node.default()) == (before, "runc")


def test_without_now_uninstall_says_that_a_reload_is_not_enough(node: Node) -> None:
    """dockerd keeps the default of before where its file names none any more."""
    machine, before = node.machine, node.machine.read(DOCKER)
    node.make_default()
    assert "\n  systemctl restart docker\n" in machine.cgpu("uninstall").stdout
    assert machine.read(DOCKER) == before
    kept = "dockerd's default runtime is still cgpu, and not what /etc/docker/daemon.json says"
    assert ("error", kept) in node.findings()
    with node.without_engine():
        pass
    assert node.default() == "runc"
    assert ("error", kept) not in node.findings()


def test_plain_containers_do_what_they_do_under_runc(node: Node) -> None:
    """Also on a node without a driver."""
    machine = node.machine
    node.make_default()
    configuration = machine.read("/etc/cgpu/config.toml")
    machine.write("/etc/cgpu/config.toml", '[driver]\nlibrary_dir = "/nowhere"\n')
    try:
        under_runc = behaviour(node, ("--runtime=runc",))
        assert behaviour(node, ()) == under_runc
        assert under_runc[:2] == [3, ""]
    finally:
        machine.write("/etc/cgpu/config.toml", configuration)
        machine.cgpu("uninstall", "--now")


@pytest.mark.parametrize(
    ("option", "words", "levels"),
    [
        ("--default-runtime=other", ["--default"], []),
        ("--add-runtime=third=/usr/bin/crun", [], ["error"]),
    ],
)
def test_a_command_line_that_dockerd_has_now_is_seen(
    node: Node, option: str, words: list[str], levels: list[str]
) -> None:
    """It would not start with both, or would forget what it has from there."""
    before = node.machine.read(DOCKER)
    with node.without_engine():
        node.docker.serve(option)
        done = node.machine.cgpu("install", "docker", *words, check=False)
        assert done.returncode == 2
        output = f"/cmdline: {option} on dockerd's command line: expected none there"
        assert output in done.stderr
        assert [level for level, what in node.findings() if option in what] == levels
        node.docker.stop()
    assert node.machine.read(DOCKER) == before


@pytest.fixture
def cri(node: Node) -> Iterator[Cri]:
    words = ("install", "containerd", "--default")
    with served(node.machine, node.docker, *words) as found:
        yield found


def test_a_pod_without_a_handler_gets_its_share(node: Node, cri: Cri, guests: list[Volume]) -> None:
    """One without a share keeps what ends it from being uninstalled, too."""
    machine = node.machine
    shown = cri.run(IMAGE, "nvidia-smi", handler="", env=share(6), volumes=guests)
    assert "/  6043MiB" in shown
    assert "cgpu" not in cri.run(IMAGE, "ls", "/dev", handler="", env={})
    with cri.pod("") as pod:
        done = machine.cgpu("uninstall", check=False)
        assert f"containers run with cgpu: stop them first: {pod.id}\n" in done.stderr
    before = machine.read(f"/var/lib/cgpu/backup{CONTAINERD}")
    assert "default_runtime_name" in machine.read(CONTAINERD)
    machine.cgpu("uninstall")
    assert machine.read(CONTAINERD) == before
