"""Configurations that are no files or no texts: a sentence names them, and no change (CLI-4)."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_install import containerd, dockerd
from cgpu_install.engines import HOOKS, NVIDIA, SERVICE, UNITS
from cgpu_node.facts.engines import config_of
from lab.machine.wired import TARGET, findings, install, made_below, target, uninstall

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_install.machine import Machine

pytestmark = pytest.mark.unit

FILES = {
    "docker": dockerd.FILE,
    "containerd": containerd.MAIN,
    "crio": config_of("crio").path,
    "podman": config_of("podman").path,
    "nvidia": NVIDIA,
    "systemd": f"{UNITS}/{SERVICE}",
    "podman-hooks": f"{HOOKS}/cgpu-precreate.json",
}


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        folder = os.open(path.parent, os.O_PATH)  # a socket's path is short
        end.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (Path.mkdir, "expected a plain file, not a directory"),
    "dangling link": (
        lambda path: path.symlink_to("nowhere"),
        "expected a plain file, not a link, which another tool owns",
    ),
    "pipe": (os.mkfifo, "expected a plain file, not a pipe"),
    "socket": (_socket, "expected a plain file, not a socket"),
    "other encoding": (_bytes(b"\xe9"), "expected UTF-8"),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An empty one."""
    monkeypatch.setattr(TARGET, target)
    return made_below(tmp_path)


def place_of(machine: Machine, engine: str) -> Path:
    """Where its configuration is to be; the folder is there."""
    place = Path(machine.resolve_path(FILES[engine]))
    place.parent.mkdir(parents=True)
    return place


def output(machine: Machine, engine: str) -> list[tuple[str, str]]:
    """What the doctor says of it."""
    return [(found.level, found.what) for found in findings(machine, engine)]


@pytest.mark.parametrize("engine", FILES)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_text_is_refused_by_name_and_by_what_it_is(
    machine: Machine, engine: str, kind: str
) -> None:
    """Of a link that is not cgpu's, an uninstall has nothing to say, where nothing reads it."""
    make, why = ODD[kind]
    make(place_of(machine, engine))
    sentence = f"{FILES[engine]}: {why}"
    with pytest.raises(CgpuError) as refusal:
        install(machine, engine)
    assert str(refusal.value) == sentence
    assert output(machine, engine) == [("error", sentence)]
    try:
        uninstall(machine, engine)
    except CgpuError as error:
        assert str(error) == sentence  # noqa: PT017 (a link is left alone)
    else:
        assert kind == "dangling link"
    assert not Path(machine.resolve_path("/var")).exists()
    assert list(Path(machine.resolve_path("/usr/bin")).iterdir()) == []


@pytest.mark.parametrize("engine", FILES)
def test_a_folder_that_is_a_file_is_found_before_anything_is_written(
    machine: Machine, engine: str
) -> None:
    place = place_of(machine, engine)
    place.parent.rmdir()
    place.parent.touch()
    sentence = f"{Path(FILES[engine]).parent}: expected a directory"
    with pytest.raises(CgpuError) as refusal:
        install(machine, engine)
    assert str(refusal.value) == sentence
    assert output(machine, engine) == [("error", sentence)]
    uninstall(machine, engine)
    assert not Path(machine.resolve_path("/var")).exists()
    assert place.parent.is_file()


@pytest.mark.parametrize("engine", FILES)
def test_a_file_that_cannot_be_read_is_named(
    machine: Machine, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_of(machine, engine).touch()

    def refuse(path: str, _: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("cgpu_install.machine.open", refuse, raising=False)
    for command in (install, uninstall):
        with pytest.raises(CgpuError) as refusal:
            command(machine, engine)
        assert str(refusal.value) == f"{FILES[engine]}: Permission denied"


@pytest.mark.parametrize("engine", FILES)
def test_an_empty_file_gets_what_is_needed_and_is_empty_again(
    machine: Machine, engine: str
) -> None:
    place = place_of(machine, engine)
    place.touch()
    install(machine, engine)
    assert "cgpu" in place.read_text()
    uninstall(machine, engine)
    assert place.read_bytes() == b""


@pytest.mark.parametrize(
    ("engine", "where"),
    [("docker", "line 2 column 2"), ("containerd", "at line 2, column 1"), ("crio", "at line 2")],
)
def test_a_text_that_is_not_understood_is_refused_with_its_line(
    machine: Machine, engine: str, where: str
) -> None:
    place_of(machine, engine).write_text("\n{[")
    for command in (install, uninstall):
        with pytest.raises(CgpuError, match=rf"^{FILES[engine]}: not (JSON|TOML): .*{where}"):
            command(machine, engine)
    [(level, what)] = output(machine, engine)
    assert (level, what.startswith(f"{FILES[engine]}: not ")) == ("error", True)


def test_a_program_is_not_linked_into_what_is_no_directory(machine: Machine) -> None:
    Path(machine.resolve_path("/opt")).touch()
    with pytest.raises(CgpuError, match=r"^/opt: expected a directory$"):
        install(machine._replace(bin_dir="/opt/bin"), "podman")
    assert not Path(machine.resolve_path("/var")).exists()


@pytest.mark.parametrize("link", ["etc/docker", "var/lib", "usr/bin"])
def test_a_link_out_of_the_tree_is_not_followed(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory, link: str
) -> None:
    """It leads to a folder of this machine, which is not the one to be changed."""
    outside, place = tmp_path_factory.mktemp("outside"), Path(machine.resolve_path(f"/{link}"))
    if place.exists():
        place.rmdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    with pytest.raises(CgpuError, match=rf"^/{link}.*: leads out of --root {machine.root}$"):
        install(machine, "docker")
    assert list(outside.iterdir()) == []
    with pytest.raises(CgpuError, match=r": leads out of --root"):
        uninstall(machine, "docker")
    place.unlink()
    place.symlink_to("../real" if "/" in link else "real")
    Path(machine.resolve_path("/real")).mkdir()
    install(machine, "docker")


@pytest.mark.parametrize("link", ["var/lib/cgpu/backup", "var/lib/cgpu/backup/etc"])
def test_backups_stay_in_the_tree(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory, link: str
) -> None:
    outside, place = tmp_path_factory.mktemp("outside"), Path(machine.resolve_path("/")) / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    before = '{"runtimes": {"other": {"path": "/usr/bin/other"}}}\n'
    configuration = place_of(machine, "docker")
    configuration.write_text(before)
    with pytest.raises(CgpuError, match=r": leads out of --root"):
        install(machine, "docker")
    assert list(outside.rglob("*")) == []
    assert configuration.read_text() == before


def test_a_journal_cannot_lead_out_of_its_tree(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Somebody else may have made the tree that root works on."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "empty").mkdir()
    (outside / "file").write_text("kept")
    install(machine, "docker")
    journal = Path(machine.resolve_path("/var/lib/cgpu/install.json"))
    text = journal.read_text()
    up = f"/{'../' * 30}{str(outside)[1:]}"
    for changed in (
        text.replace(f'"{dockerd.FILE}"', f'"{up}/file"'),
        text.replace('"/etc/docker"', f'"{up}/empty"'),
    ):
        assert changed != text
        journal.write_text(changed)
        with pytest.raises(CgpuError, match=r": leads out of --root"):
            uninstall(machine, "docker")
    assert sorted(path.name for path in outside.iterdir()) == ["empty", "file"]
