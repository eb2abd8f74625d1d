"""Whose a process is, by its control groups (MEM-9)."""

from __future__ import annotations

import os

import pytest

from cgpu_server.audit import process_owners
from cgpu_server.audit.process_owners import (
    HostProcess,
    OwnerTracker,
    find_container_id,
    find_home_groups,
    parse_groups,
    read_process,
)

pytestmark = pytest.mark.unit

A, B = "a1" * 32, "b2" * 32
POD = "1b9e9b4a-5d6e-4c8e-9f00-1234567890ab"
POD_SLICE = "kubepods-burstable-pod1b9e9b4a_5d6e_4c8e_9f00_1234567890ab.slice"
V1 = ["12:pids:{}", "4:memory:{}", "1:name=systemd:{}", "0::/"]
V2 = ["0::{}"]


# Where a container's first process is, and the part of that path that is the container's own.
PATHS = {
    "docker, cgroupfs": (f"/docker/{A}", f"/docker/{A}"),
    "docker, systemd": (f"/system.slice/docker-{A}.scope", f"/system.slice/docker-{A}.scope"),
    "it made groups of its own": (f"/docker/{A}/init.scope", f"/docker/{A}"),
    "docker in docker": (f"/docker/{A}/docker/{'c3' * 32}", f"/docker/{A}"),
    "containerd, Kubernetes, cgroupfs": (
        f"/kubepods/burstable/pod{POD}/{A}",
        f"/kubepods/burstable/pod{POD}/{A}",
    ),
    "containerd, Kubernetes, systemd": (
        f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{A}.scope",
        f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}/cri-containerd-{A}.scope",
    ),
    "CRI-O": (
        f"/kubepods.slice/kubepods-besteffort.slice/{POD_SLICE}/crio-{A}.scope",
        f"/kubepods.slice/kubepods-besteffort.slice/{POD_SLICE}/crio-{A}.scope",
    ),
    "CRI-O, cgroupfs": (
        f"/kubepods/besteffort/pod{POD}/crio-{A}",
        f"/kubepods/besteffort/pod{POD}/crio-{A}",
    ),
    "podman, root": (
        f"/machine.slice/libpod-{A}.scope/container",
        f"/machine.slice/libpod-{A}.scope",
    ),
    "podman, cgroupfs": (f"/libpod_parent/libpod-{A}/container", f"/libpod_parent/libpod-{A}"),
    "nerdctl": (f"/system.slice/nerdctl-{A}.scope", f"/system.slice/nerdctl-{A}.scope"),
    "of no group of its own": ("/user.slice/user-1000.slice/session-1.scope", None),
    "moved to the root": ("/", None),
}
NAMES = {
    "ctr": ("/default/my-box", "my-box", "/default/my-box"),
    "runc, systemd": ("/user.slice/runc-box.scope", "box", "/user.slice/runc-box.scope"),
    "runc": ("/box", "box", "/box"),
    "an id within an id": ("/default/my-box/x", "box", None),
    "a name alike": ("/default/your-box", "my-box", None),
}
CASES = {name: (path, A, home) for name, (path, home) in PATHS.items()} | NAMES


@pytest.mark.parametrize("lines", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(("path", "id_", "home"), CASES.values(), ids=CASES.keys())
def test_a_containers_own_group_is_the_one_that_is_named_after_it(
    lines: list[str], path: str, id_: str, home: str | None
) -> None:
    found = find_home_groups(parse_groups(f"{line.format(path)}\n" for line in lines), id_)
    assert {group.path for group in found} == ({home} if home else set())


HOMES = {A: f"/docker/{A}", B: f"/any/{A}/{B}"}
INSIDE = {
    "it": (f"/docker/{A}", A),
    "below it": (f"/docker/{A}/user.slice/x", A),
    "in a group that the container named after another": (f"/docker/{A}/docker-{B}.scope", A),
    "in a group of a user, who named it after the container": (
        f"/user.slice/user-1000.slice/user@1000.service/docker-{A}.scope",
        None,
    ),
    "in a container below a parent named after another": (f"/any/{A}/{B}", B),
    "in that parent": (f"/any/{A}", None),
    "in a container of others": (f"/docker/{'d4' * 32}", None),
    "in the root": ("/", None),
}


@pytest.mark.parametrize("lines", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(("path", "whose"), INSIDE.values(), ids=INSIDE.keys())
def test_who_is_in_a_containers_own_group_is_its_process(
    lines: list[str], path: str, whose: str | None
) -> None:
    homes = {
        group: id_
        for id_, home in HOMES.items()
        for group in find_home_groups(parse_groups(line.format(home) for line in lines), id_)
    }
    assert find_container_id(parse_groups(line.format(path) for line in lines), homes) == whose


def test_the_same_path_in_another_hierarchy_is_another_group() -> None:
    homes = dict.fromkeys(find_home_groups(parse_groups([f"4:memory:/docker/{A}"]), A), A)
    assert find_container_id(parse_groups([f"1:name=systemd:/docker/{A}"]), homes) is None


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


def process(pid: int, start_time: int) -> HostProcess:
    return HostProcess(pid, start_time, pid, 1, 0, ends=False)


def test_who_has_the_id_of_a_process_that_is_gone_answers_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver still names the one that is gone; another one may get its id at any time."""
    there = {7: process(7, 1)}
    monkeypatch.setattr(process_owners, "read_process", there.get)
    owners = OwnerTracker()
    assert owners.find_owners([7, 8], []) == {7: (process(7, 1), None)}
    later = 1 << 62
    there = {7: process(7, later), 8: process(8, later)}
    monkeypatch.setattr(process_owners, "read_process", there.get)
    for _ in range(2):
        assert owners.find_owners([7, 8], []) == {7: (process(7, 1)._replace(ends=True), None)}
        assert owners.find_known(7) == process(7, 1)._replace(ends=True)
        assert owners.find_known(8) is None


def test_an_id_that_the_driver_named_no_more_is_that_of_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100]
    monkeypatch.setattr(process_owners, "_read_ticks", lambda: clock[0])
    monkeypatch.setattr(process_owners, "read_process", lambda pid: process(pid, clock[0] - 10))
    owners = OwnerTracker()
    for clock[0] in (100, 200):
        assert owners.find_owners([7], []) == {7: (process(7, clock[0] - 10), None)}
        assert owners.find_owners([], []) == {}
