"""Whose a process is, by its control groups (MEM-9)."""

from __future__ import annotations

import os

import pytest

from cgpu_server.audit import process_owners
from cgpu_server.audit.process_owners import OwnerTracker, Process, container_in, read_process

pytestmark = pytest.mark.unit

A, B = "a1" * 32, "b2" * 32
IDS = [A, B, "box", "my-box"]
POD = "1b9e9b4a-5d6e-4c8e-9f00-1234567890ab"
POD_SLICE = "kubepods-burstable-pod1b9e9b4a_5d6e_4c8e_9f00_1234567890ab.slice"
V1 = ["12:pids:{}", "4:memory:{}", "1:name=systemd:{}", "0::/"]
V2 = ["0::{}"]


PATHS = {
    "docker, cgroupfs": (f"/docker/{A}", A),
    "docker, systemd": (f"/system.slice/docker-{A}.scope", A),
    "docker, nested": (f"/system.slice/docker-{A}.scope/init.scope", A),
    "docker in docker": (f"/docker/{A}/docker/{'c3' * 32}", A),
    "containerd, Kubernetes, cgroupfs": (f"/kubepods/burstable/pod{POD}/{A}", A),
    "containerd, Kubernetes, systemd": (
        f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{A}.scope",
        A,
    ),
    "CRI-O": (f"/kubepods.slice/kubepods-besteffort.slice/{POD_SLICE}/crio-{A}.scope", A),
    "CRI-O, cgroupfs": (f"/kubepods/besteffort/pod{POD}/crio-{A}", A),
    "podman, root": (f"/machine.slice/libpod-{A}.scope/container", A),
    "podman, cgroupfs": (f"/libpod_parent/libpod-{A}/container", A),
    "podman, a user's": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container",
        A,
    ),
    "nerdctl": (f"/system.slice/nerdctl-{A}.scope", A),
    "ctr": ("/default/my-box", "my-box"),
    "runc, systemd": ("/user.slice/runc-box.scope", "box"),
    "runc": ("/box", "box"),
    "an id within an id": ("/default/my-box/x", "my-box"),
    "another's id, made by the container": (f"/docker/{A}/docker-{B}.scope", A),
    "another's group of a name alike": ("/default/your-box", None),
    "the host": ("/system.slice/sshd.service", None),
    "a container of others": (f"/docker/{'d4' * 32}", None),
    "the root": ("/", None),
}


@pytest.mark.parametrize("lines", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(("path", "whose"), PATHS.values(), ids=PATHS.keys())
def test_the_container_is_named_in_the_group(lines: list[str], path: str, whose: str) -> None:
    assert container_in([f"{line.format(path)}\n" for line in lines], IDS) == whose


def test_this_very_process() -> None:
    seen = read_process(os.getpid())
    assert seen is not None
    assert (seen.pid, seen.own_pid, seen.parent) == (os.getpid(), os.getpid(), os.getppid())
    assert seen.uid == os.getuid()
    assert not seen.ends


def test_a_process_that_has_ended_but_was_not_waited_for() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert read_process(pid) is None, "a zombie holds nothing"
    os.waitpid(pid, 0)


def process(pid: int, start_time: int) -> Process:
    return Process(pid, start_time, pid, 1, 0, ends=False)


def test_who_has_the_id_of_a_process_that_is_gone_answers_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver still names the one that is gone; another one may get its id at any time."""
    there = {7: process(7, 1)}
    monkeypatch.setattr(process_owners, "read_process", there.get)
    owners = OwnerTracker()
    assert owners.of([7, 8], []) == {7: (process(7, 1), None)}
    later = 1 << 62
    there = {7: process(7, later), 8: process(8, later)}
    monkeypatch.setattr(process_owners, "read_process", there.get)
    for _ in range(2):
        assert owners.of([7, 8], []) == {7: (process(7, 1)._replace(ends=True), None)}
        assert owners.known(7) == process(7, 1)._replace(ends=True)
        assert owners.known(8) is None


def test_an_id_that_the_driver_named_no_more_is_that_of_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100]
    monkeypatch.setattr(process_owners, "_ticks", lambda: clock[0])
    monkeypatch.setattr(process_owners, "read_process", lambda pid: process(pid, clock[0] - 10))
    owners = OwnerTracker()
    for clock[0] in (100, 200):
        assert owners.of([7], []) == {7: (process(7, clock[0] - 10), None)}
        assert owners.of([], []) == {}
