"""DRA-7: what ``cgpu doctor`` says of a node that gives its GPUs to claims, and of no other."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import claims
from cgpu_doctor.finding import Ground
from cgpu_env import GpuShare, Request
from cgpu_install import containerd
from cgpu_install.machine import Machine
from cgpu_k8s import dra_driver, names
from cgpu_k8s.dra import cdi
from cgpu_k8s.kubelet.registration import DriverSockets
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.record import Owner
from cgpu_node.shares.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

UUID = "GPU-00000000-1111-2222-3333-444444444444"
UID = "6a1d5e0e-0000-4000-8000-000000000001"
GPUS = (NodeGpu(0, UUID, "Tesla T4", 15109 << 20, 0, ()),)
OK = [("ok", "", "")]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A machine of files with a driver that answers."""
    state = tmp_path / "run/cgpu"
    state.mkdir(parents=True, mode=0o700)
    (tmp_path / "var/run/cdi").mkdir(parents=True, mode=0o755)
    with ExitStack() as stack:
        for name in claims.SOCKETS:
            stack.enter_context(listening(tmp_path / f"var/lib/kubelet/{name}"))
        yield Ground(Machine(str(tmp_path)), str(state), None)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{folder}/{path.name}")
        end.listen(1)
        os.close(folder)
        yield


def file_of(ground: Ground, name: str = "", *, old: bool = True) -> Path:
    """A claim's file, from before."""
    path = Path(ground.machine.resolve_path(claims.CDI), name or cdi.file_name(UID))
    path.write_text("{}")
    if old:
        os.utime(path, (1, 1))
    return path


def hold(ground: Ground, owner: str, kind: str = "claim") -> None:
    node = Node("535.0", "/nowhere", {}, {}, GPUS, ())
    request = Request((GpuShare(0, UUID, 1 << 30),), 6, high_priority=False)
    held_by = Owner(0, 0, owner)
    Registry(ground.state_dir).admit(UID, kind, request, node, held_by, ["ml/part"])  # type: ignore[arg-type]


def shown(ground: Ground) -> list[tuple[str, str, str]]:
    return [(each.level, each.value, each.mend) for each in claims.check_claims(ground)]


def test_names_and_folders_are_the_drivers() -> None:
    registry, plugins = (Path(claims.KUBELET, name) for name in ("plugins_registry", "plugins"))
    assert (registry, plugins) == (dra_driver.REGISTRY, dra_driver.PLUGINS)
    sockets = DriverSockets(registry, plugins, names.DRIVER)
    assert [f"{claims.KUBELET}/{each}" for each in claims.SOCKETS] == [
        str(sockets.registration),
        str(sockets.endpoint),
    ]
    assert str(dra_driver.CDI) == claims.CDI
    assert f"{claims.PREFIX}x{claims.SUFFIX}" == cdi.file_name("x")


def test_where_nothing_is_of_claims_nothing_is_said_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "Registry", None)
    monkeypatch.setattr(claims, "running", None)
    (tmp_path / "var/run/cdi").mkdir(parents=True)
    (tmp_path / "var/run/cdi/nvidia.yaml").write_text("")
    assert shown(Ground(Machine(str(tmp_path)), str(tmp_path / "state"), None)) == []


def test_a_driver_that_answers_and_whole_pairs_are_in_order(ground: Ground) -> None:
    assert shown(ground) == OK
    hold(ground, str(file_of(ground)))
    [found] = claims.check_claims(ground)
    assert (found.level, found.what) == (
        "ok",
        "the driver of claims answers; claims with a share: 1",
    )


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_driver_that_does_not_answer_is_an_error(
    ground: Ground, which: int, *, is_there: bool
) -> None:
    path = f"{claims.KUBELET}/{claims.SOCKETS[which]}"
    file = Path(ground.machine.resolve_path(path))
    file.unlink()
    if is_there:
        with listening(file):  # it was killed
            pass
    else:
        hold(ground, str(file_of(ground)))  # by which the node is known to have one
    mend = f"see why this node's has ended: {claims.PODS}"
    assert shown(ground) == [("error", path, mend)]


def test_a_folder_that_others_may_write_is_an_error(ground: Ground) -> None:
    path = Path(ground.machine.resolve_path(claims.CDI))
    path.chmod(0o777)
    mend = f"chown root: {claims.CDI} && chmod go-w {claims.CDI}"
    assert shown(ground) == [("error", claims.CDI, mend)]
    path.chmod(0o755)
    path.rmdir()
    assert shown(ground) == OK, "the driver makes it"
    path.write_text("")
    assert shown(ground) == [("error", claims.CDI, f"rm {claims.CDI}")]


def test_a_file_without_a_share_is_an_error_once_it_is_not_just_written(ground: Ground) -> None:
    file_of(ground, old=False)
    assert shown(ground) == OK, "its record follows at once"
    path = f"{claims.CDI}/{file_of(ground).name}"
    mend = f"restart the driver, which removes the file, and delete the claim's pods: {claims.PODS}"
    assert shown(ground) == [("error", path, mend)]
    hold(ground, str(ground.machine.resolve_path(path)), "container")
    assert shown(ground) == [("error", path, mend)], "a container's share is no claim's"


def test_a_share_without_a_file_is_a_warning(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "lives").write_text("")
    hold(ground, str(tmp_path / "lives"))
    mend = "delete the claim's pods, which get a new share"
    assert shown(ground) == [("warning", "ml/part", mend)]


def test_a_half_file_is_a_warning_once_it_is_not_just_written(ground: Ground) -> None:
    name = f"{cdi.file_name(UID)}.new"
    file_of(ground, name, old=False)
    assert shown(ground) == OK
    path = f"{claims.CDI}/{file_of(ground, name).name}"
    assert shown(ground) == [("warning", path, f"rm {path}")]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"]}, None),
        ({"enable_cdi": True, "cdi_spec_dirs": ["/run/cdi"]}, None),
        ({"cdi_spec_dirs": ["/var/run/cdi"]}, None),
        ({"enable_cdi": False, "cdi_spec_dirs": ["/var/run/cdi"]}, "gives containers no CDI"),
        ({}, "gives containers no CDI"),
        ({"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi"]}, "reads CDI files in /etc/cdi"),
        ({"enable_cdi": True}, "reads CDI files in nowhere"),
    ],
)
def test_an_engine_that_gives_no_devices_is_an_error(
    config: dict[str, object], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = claims.find_cdi_problem(config, claims.CDI)
    assert (found and found[0][: len(problem or "")]) == problem
    monkeypatch.setattr(containerd, "dump_configurations", lambda: [(7, config)])
    findings = list(claims._check_engines())  # noqa: SLF001 (a whole machine has other engines)
    assert [each.level for each in findings] == ["error"] * (problem is not None)


DUMPED = """\
version = 3
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ['/etc/cdi']
"""
# Containerd 2 shows it besides.
STREAMS = "[plugins.'io.containerd.grpc.v1.cri']\ndisable_tcp_service = true\n"


@pytest.mark.parametrize(
    ("command", "printed", "path"),
    [
        ("/usr/bin/containerd\0", DUMPED, "/etc/containerd/config.toml"),
        ("/usr/bin/containerd\0", DUMPED + STREAMS, "/etc/containerd/config.toml"),
        ("containerd\0-c\0/x.toml\0", DUMPED.replace("cri.v1.runtime", "grpc.v1.cri"), "/x.toml"),
        ("/usr/bin/containerd-shim-runc-v2\0", DUMPED, ""),
        ("containerd\0--config\0/run/docker/containerd/containerd.toml\0", DUMPED, ""),
        ("containerd\0", "version = 3", ""),
        ("containerd\0", "=", ""),
        ("containerd\0", "", ""),
    ],
)
def test_the_settings_of_a_running_containerd_are_those_that_it_shows(
    command: str, printed: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "7"
    (folder / "cwd").mkdir(parents=True)
    (folder / "cmdline").write_text(command)
    (folder / "shown").write_text(printed)
    asked = folder / "asked"
    program = f'#!/bin/sh\necho "$@" > {asked}\ncat {folder}/shown\ntest -s {folder}/shown\n'
    (folder / "exe").write_text(program)
    (folder / "exe").chmod(0o755)
    monkeypatch.setattr(containerd.running, "find_processes", lambda _: [str(folder)])
    found = list(containerd.dump_configurations())
    shown_settings = {"enable_cdi": True, "cdi_spec_dirs": ["/etc/cdi"]}
    assert found == ([(7, shown_settings)] if path else [])
    if path:
        assert asked.read_text() == f"--config {path} config dump\n"
