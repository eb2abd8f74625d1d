"""What ``cgpu doctor`` says of machines that are wrong in one way each (CLI-4)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor import checks, driver, kernel, releases, state, wiring
from cgpu_doctor.finding import Finding, Ground
from cgpu_env.version import VERSION
from cgpu_install.machine import BOOTED, Machine
from cgpu_node.facts.node import DeviceNode, Node, NodeGpu
from cgpu_node.settings.config import Config
from cgpu_upgrade.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
GPU = NodeGpu(0, "GPU-1", "Tesla T4", 16 << 30, 0, (DeviceNode("/dev/null", "/dev/null"),))
OF_TWO_RELEASES = {
    "libcuda.so.1": "/x/libcuda.so.535.1",
    "libnvidia-ml.so.1": "/x/libnvidia-ml.so.550.1",
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A machine of files; its state directory is there."""
    folder = tmp_path / "run/cgpu"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / BOOTED[1:]).mkdir(parents=True)
    return Ground(Machine(str(tmp_path)), str(folder), None)


def wrong(found: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Level, value and mending of what is not in order."""
    return [(f.level, f.value, f.mend) for f in found if f.level in ("warning", "error")]


def test_the_families_are_those_of_the_proxy() -> None:
    text = (ROOT / "shim/cuda/entry/lookup.c").read_text()
    for name, ours in (("families", driver.FAMILIES), ("verbs", driver.VERBS)):
        table = re.search(rf"{name}\[\] = \{{(.*?)\}};", text, re.DOTALL)
        assert table is not None
        assert tuple(re.findall(r'"(\w+)"', table[1])) == ours


@pytest.mark.parametrize(
    ("output", "what", "mend"),
    [
        ("cgpu: /c.toml: x: expected y\\n  mend it", "/c.toml: x: expected y", "mend it"),
        ("cgpu: no Python found: interpreter ...", "{hook} fails: ", "/interpreter"),
        ("ModuleNotFoundError: cgpu_hook", "{hook} fails: ", "/interpreter"),
    ],
)
def test_an_interpreter_is_advised_only_where_it_is_at_fault(
    tmp_path: Path, output: str, what: str, mend: str
) -> None:
    for name, body in (("cgpu-runtime", "echo runc"), ("cgpu-hook", f"printf '{output}' >&2")):
        write(tmp_path / name, f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    [found] = [
        f
        for f in wiring.check_runtime(Ground(Machine("", str(tmp_path)), str(tmp_path), None))
        if f.level != "ok"
    ]
    assert what.format(hook=tmp_path / "cgpu-hook") in found.what
    assert found.mend.endswith(mend)


@pytest.mark.parametrize(
    ("setting", "value", "good"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_a_switch_that_keeps_users_from_namespaces_is_named(
    ground: Ground, setting: str, value: str, good: str
) -> None:
    assert wrong(kernel.check_user_namespaces(ground)) == []
    write(Path(ground.machine.resolve_path(f"/proc/sys/{setting}")), f"{value}\n")
    assert wrong(kernel.check_user_namespaces(ground)) == [("warning", value, f"sysctl -w {good}")]


@pytest.mark.parametrize(
    ("files", "level", "value"),
    [
        (["cgroup.controllers"], "ok", "2"),
        (["memory/tasks"], "ok", "1"),
        (["unified/cgroup.controllers", "memory/tasks"], "warning", "hybrid"),
        ([], "error", "none"),
    ],
)
def test_the_arrangement_of_control_groups_is_told(
    ground: Ground, files: list[str], level: str, value: str
) -> None:
    for name in files:
        write(Path(ground.machine.resolve_path(f"/sys/fs/cgroup/{name}")), "cpu memory\n")
    [found] = kernel.check_cgroups(ground)
    assert (found.level, found.value, bool(found.mend)) == (level, value, level != "ok")


def test_hybrid_control_groups_are_no_fault_where_runc_is_used(ground: Ground) -> None:
    write(Path(ground.machine.resolve_path("/sys/fs/cgroup/unified/cgroup.controllers")), "cpu\n")
    write(Path(ground.machine.resolve_path("/usr/sbin/runc")), "")
    assert [found.level for found in kernel.check_cgroups(ground)] == ["note"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let the driver answer with what is given, apart from a good node."""
    proxy = tmp_path / "proxy"
    proxy.write_bytes(b"\0cuInit\0cuMemAlloc\0")
    monkeypatch.setattr(driver.cgpu_shim, "library", lambda _: str(proxy))
    monkeypatch.setattr(driver, "list_exports", lambda _: {"cuInit", "cuMemAlloc"})
    monkeypatch.setattr(driver, "glibc_needed", lambda _: (2, 17))
    libraries = {name: f"/x/{name[:-1]}550.1" for name in driver.PROXIED}

    monkeypatch.setattr(driver, "compute_modes", lambda _: {GPU.uuid: 0})

    def answer(**different: object) -> None:
        good = Node("550.1", "/x", libraries, {}, (GPU,), ())
        monkeypatch.setattr(driver, "_probe_driver", lambda _: good._replace(**different))

    answer()
    return answer


def test_a_good_driver_is_in_order(ground: Ground, node: Callable[..., None]) -> None:
    node()
    about_driver = (driver.check_driver, driver.check_compute_mode)
    about_libraries = (driver.check_entry_points, driver.check_glibc)
    checks = (*about_driver, *about_libraries)
    assert [f.level for check in checks for f in check(ground)] == ["ok"] * 4


@pytest.mark.parametrize(
    ("different", "value", "mend"),
    [
        ({"gpus": ()}, "0", "nvidia-smi"),
        ({"device_nodes": (DeviceNode("/dev/none", ""),)}, "/dev/none", "nvidia-modprobe -c 0 -u"),
        (
            {"libraries": OF_TWO_RELEASES},
            "libcuda.so.1 is 535.1, libnvidia-ml.so.1 is 550.1",
            "reinstall the driver: its files are of two releases",
        ),
    ],
)  # fmt: skip
def test_a_driver_that_is_not_whole_is_an_error(
    ground: Ground,
    node: Callable[..., None],
    different: dict[str, object],
    value: str,
    mend: str,
) -> None:
    node(**different)
    assert wrong(driver.check_driver(ground)) == [("error", value, mend)]


def test_a_gpu_of_the_configuration_that_is_not_there_is_a_warning(
    ground: Ground, node: Callable[..., None]
) -> None:
    node(config=Config(gpu={str(GPU.index): {"policy": 3}, GPU.uuid.lower(): {"policy": 3}}))
    assert wrong(driver.check_driver(ground)) == []
    node(config=Config(gpu={"7": {"policy": 3}}))
    mend = "mend /etc/cgpu/config.toml; cgpu-smi -L lists the GPUs"
    assert wrong(driver.check_driver(ground)) == [("warning", "7", mend)]


def test_another_kernel_module_than_library_is_an_error(
    ground: Ground, node: Callable[..., None]
) -> None:
    node()
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Jan  1 00:00:00 UTC 2026\n"
    write(Path(ground.machine.resolve_path(driver.MODULE)), line.format("550.1"))
    assert wrong(driver.check_driver(ground)) == []
    write(Path(ground.machine.resolve_path(driver.MODULE)), line.format("535.129.03"))
    assert wrong(driver.check_driver(ground)) == [("error", "535.129.03", "reboot")]


@pytest.mark.parametrize(
    ("number", "name"), [(1, "Exclusive Thread"), (2, "Prohibited"), (3, "Exclusive Process")]
)
def test_a_compute_mode_that_keeps_others_from_a_gpu_is_a_warning(
    ground: Ground,
    node: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    name: str,
) -> None:
    node()
    monkeypatch.setattr(driver, "compute_modes", lambda _: {GPU.uuid: number})
    [found] = driver.check_compute_mode(ground)
    assert (found.level, found.value) == ("warning", name)
    assert found.what.startswith(f"GPU 0 is in compute mode {name}: ")
    assert found.mend == "nvidia-smi -i 0 -c DEFAULT"


@pytest.mark.parametrize(
    ("name", "level"), [("cuMemAllocSoon", "warning"), ("cuDeviceNewFact", "note")]
)
def test_an_entry_point_that_is_not_known_matters_if_it_allocates_or_launches(
    ground: Ground,
    node: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    level: str,
) -> None:
    node()
    monkeypatch.setattr(driver, "list_exports", lambda _: {"cuInit", name})
    [found] = driver.check_entry_points(ground)
    assert (found.level, found.value) == (level, name)


@pytest.mark.parametrize(
    ("own", "proxies", "level", "value"),
    [
        ((2, 4), (2, 17), "note", "2.17"),
        ((2, 28), (2, 17), "ok", "2.28"),
        ((2, 4), (9, 9), "error", ""),
    ],
)
def test_the_floor_of_glibc_is_compared_by_number(
    ground: Ground,
    node: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[int, int],
    proxies: tuple[int, int],
    level: str,
    value: str,
) -> None:
    node()
    monkeypatch.setattr(
        driver, "glibc_needed", lambda path: own if path.startswith("/x/") else proxies
    )
    [found] = driver.check_glibc(ground)
    assert (found.level, found.value if value else "") == (level, value)


def test_a_container_that_is_gone_is_named_after_a_while(ground: Ground) -> None:
    folder = Path(ground.state_dir, "containers/dead1")
    folder.mkdir(parents=True)
    assert wrong(state.check_leftovers(ground)) == []
    os.utime(folder, (1, 1))
    assert wrong(state.check_leftovers(ground)) == [("warning", "dead1", "cgpu get")]


def test_a_mount_for_a_container_that_is_gone_is_named(ground: Ground) -> None:
    device = Path(ground.state_dir).stat().st_dev
    line = "{} 28 {}:{} {} {} rw - ext4 /dev/vda rw\n"
    own = (os.major(device), os.minor(device))
    inside = f"{ground.state_dir}/containers/gone/real"
    lines = [
        line.format(40, *own, "/cgpu/containers/gone/limits", "/mnt/a"),
        line.format(41, *own, "/other/containers/gone/limits", "/mnt/b"),
        line.format(42, 0, 99, "/cgpu/containers/gone/limits", "/mnt/c"),
        line.format(43, 0, 99, "/", inside),
        line.format(44, *own, "/cgpu/containers/gone/limits", r"/mnt/a\040b\012c"),
    ]
    write(Path(ground.machine.resolve_path("/proc/self/mountinfo")), "".join(lines))
    assert [mend for _, _, mend in wrong(state.check_leftovers(ground))] == [
        "umount /mnt/a",
        f"umount {inside}",
        r"umount '/mnt/a b\nc'",
    ]


def answering(**different: object) -> dict[str, object]:
    """A server's status as it is in order."""
    node = {"version": VERSION, "installed": VERSION}
    gpu = {"index": 0, "uuid": "GPU-1", "audited": True}
    return {"node": node | different, "gpus": [gpu | different]}


@pytest.mark.parametrize(
    ("different", "expected"),
    [
        ({}, []),
        ({"audited": None}, []),
        ({"version": "0.0.9"}, [("warning", "0.0.9", "cgpu upgrade")]),
        (
            {"audited": False},
            [("warning", "GPU-1", "see audit_blind and audit_fails: journalctl -u cgpud.service")],
        ),
    ],
)
def test_a_server_that_is_of_another_release_or_cannot_audit_is_told(
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    different: dict[str, object],
    expected: list[tuple[str, str, str]],
) -> None:
    monkeypatch.setattr(state.wakeup, "is_listening", lambda _: True)
    monkeypatch.setattr(state.client, "send_request", lambda *_: answering(**different))
    assert wrong(state.check_server(ground)) == expected


def test_a_server_of_the_first_release_says_less(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state.wakeup, "is_listening", lambda _: True)
    answer = {"node": {"default_memsize": 0}, "gpus": [{"index": 0, "uuid": "GPU-1"}]}
    monkeypatch.setattr(state.client, "send_request", lambda *_: answer)
    assert [level for level, _, _ in wrong(state.check_server(ground))] == ["warning"]


def test_the_way_back_and_what_upgrades_have_left_are_told(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opt = tmp_path / "opt"
    for number in ("0.0.8", "0.0.9", VERSION):
        packages = opt / f"cgpu-{number}/lib/python3.11/site-packages/cgpu_env"
        write(packages / "version.py", f'VERSION = "{number}"\n')
        Environment(str(opt / f"cgpu-{number}")).mark_removable()
    (opt / "cgpu").symlink_to(f"cgpu-{VERSION}")
    monkeypatch.setattr(releases.installation, "own_environment", lambda: str(opt / "cgpu"))
    left = [f"{opt}/cgpu-0.0.8", f"{opt}/cgpu-0.0.9"]
    found = list(releases.check_releases(ground))
    assert [(f.level, f.value) for f in found] == [("ok", VERSION), *(("note", p) for p in left)]
    assert f"rm -r {left[0]}" in found[1].mend
    (opt / "cgpu.back").symlink_to("cgpu-0.0.9")
    found = list(releases.check_releases(ground))
    assert [(f.level, f.value) for f in found[1:]] == [("ok", left[1]), ("note", left[0])]
    assert "--back goes back to release 0.0.9" in found[1].what
    monkeypatch.setattr(releases.living, "leads_into", lambda _, path: path == left[0])
    [*_, kept] = releases.check_releases(ground)
    assert (kept.value, kept.mend) == (left[0], "")


def test_a_state_directory_that_others_can_write_is_an_error(ground: Ground) -> None:
    Path(ground.state_dir).chmod(0o777)
    [(level, _, mend)] = wrong(state.check_directory(ground))
    assert (level, "chmod go-w" in mend) == ("error", True)


def test_a_state_directory_that_nobody_can_make_is_an_error(ground: Ground) -> None:
    """CLI-8."""
    Path(ground.state_dir).rmdir()
    assert wrong(state.check_directory(ground)) == []
    [(level, _, mend)] = wrong(state.check_directory(ground._replace(state_dir="/nowhere/a/b")))
    assert (level, mend) == ("error", "mkdir -p /nowhere/a, or name another --state-dir")


def test_a_state_directory_without_room_is_an_error(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 3, 4096

    monkeypatch.setattr(state.os, "statvfs", lambda _: Full)
    assert [(level, value) for level, value, _ in wrong(state.check_directory(ground))] == [
        ("error", "12288")
    ]


def test_a_configuration_that_is_not_understood_is_an_error(ground: Ground) -> None:
    assert wrong(wiring.check_configuration(ground)) == []
    write(Path(ground.machine.resolve_path("/etc/cgpu/config.toml")), "[node]\nmax_inst = 99\n")
    assert [level for level, _, _ in wrong(wiring.check_configuration(ground))] == ["error"]


def test_a_configuration_whose_link_leads_nowhere_is_an_error(ground: Ground) -> None:
    path = Path(ground.machine.resolve_path("/etc/cgpu/config.toml"))
    path.parent.mkdir(parents=True)
    path.symlink_to("nowhere")
    assert wrong(wiring.check_configuration(ground)) == [
        ("error", str(path), f"mend {path}, then: cgpu doctor")
    ]


def test_a_configuration_that_others_can_write_is_mended_by_a_command(ground: Ground) -> None:
    path = Path(ground.machine.resolve_path("/etc/cgpu/config.toml"))
    write(path, "[node]\nmax_inst = 9\n")
    path.chmod(0o666)
    [(level, _, mend)] = wrong(wiring.check_configuration(ground))
    assert (level, mend) == ("error", f"chown root: {path} && chmod go-w {path}, then: cgpu doctor")


def test_a_directory_without_a_driver_has_a_hint(ground: Ground, tmp_path: Path) -> None:
    elsewhere = ground._replace(driver_dir=str(tmp_path))
    [found] = [f for f in checks.run_checks(elsewhere) if f.check == "driver"]
    assert (found.level, "--driver-dir" in found.mend) == ("error", True)
