"""``cgpu install --default`` on the real-life configurations, and what gives it back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cgpu_env import CgpuError
from cgpu_install import containerd
from cgpu_install.engines import File, named
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import installing, uninstalling
from cgpu_install.toml_text import parse
from cgpu_install.tree import look

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(
    path.relative_to(GOLDEN).as_posix().removesuffix(".after")
    for engine in ("docker", "containerd")
    for path in (GOLDEN / engine).glob("*.after")
)
OF_NVIDIA = ("docker/nvidia-ctk.json", "docker/one-line.json", "containerd/nvidia-v2.toml")


def file_of(case: str) -> File:
    (file,) = named([case.partition("/")[0]])[0].files(Machine("/nowhere"))
    return file


def default_of(case: str, text: str) -> object:
    data = json.loads(text) if case.startswith("docker") else parse(text)
    return look(data, file_of(case).default.place(data))  # type: ignore[union-attr]


@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_NVIDIA])
def test_the_default_is_put_once_and_taken_out_without_a_trace(case: str) -> None:
    """Also where others have changed the file since, and its bytes cannot just come back."""
    file, before = file_of(case), (GOLDEN / case).read_bytes().decode()
    assert file.default is not None
    told = (GOLDEN / f"{case}.after").read_bytes().decode()
    made = file.default.put(told)
    assert default_of(case, made) == "cgpu"
    assert file.default.put(made) == made
    assert file.add(made, file.program) == made
    left = file.without(made, before)
    assert left is not None
    assert "cgpu" not in left
    has_one = "default" in before
    assert default_of(case, left) == (default_of(case, before) if has_one else None)


def test_the_default_that_was_there_comes_back_beside_what_others_wrote() -> None:
    before = '{"default-runtime": "runc"}'
    (file,) = named(["docker"])[0].files(Machine("/nowhere"))
    assert file.default is not None
    made = file.default.put(file.add(before, file.program)).replace("{", '{"debug": true, ', 1)
    left = file.without(made, before)
    assert left is not None
    assert json.loads(left) == {"debug": True, "default-runtime": "runc"}


@pytest.mark.parametrize("case", OF_NVIDIA)
def test_a_default_of_others_is_refused_and_what_to_do_instead(case: str) -> None:
    """Its containers would lose what it does for them."""
    told = (GOLDEN / f"{case}.after").read_text()
    default = file_of(case).default
    assert default is not None
    with pytest.raises(CgpuError, match=r"default.runtime\w* = nvidia: expected runc") as refusal:
        default.put(told)
    assert "cgpu install nvidia" in refusal.value.hint


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """With docker and containerd."""
    monkeypatch.setattr("cgpu_install.plan._target", lambda name: f"/opt/{name}")
    for path, text in (("/etc/docker/daemon.json", "{}\n"), (containerd.MAIN, "version = 2\n")):
        place = tmp_path / path[1:]
        place.parent.mkdir(parents=True)
        place.write_text(text)
    (tmp_path / "usr/bin").mkdir(parents=True)
    return Machine(str(tmp_path))


def install(machine: Machine, *names: str, is_default: bool) -> None:
    journal = Journal(machine)
    plan = installing(machine, named(names), journal, forgiving=False, is_default=is_default)
    journal.install(plan.changes, machine.bin_dir)


def test_installing_again_keeps_the_default_and_uninstalling_gives_the_bytes_back(
    machine: Machine,
) -> None:
    engines = ("docker", "containerd")
    paths = ("/etc/docker/daemon.json", containerd.MAIN)
    before = [machine.text(path) for path in paths]
    install(machine, *engines, is_default=False)
    assert not any("default" in machine.text(path) for path in paths)
    install(machine, *engines, is_default=True)
    made = [machine.text(path) for path in paths]
    assert all(re.search(r'default.runtime.*"cgpu"', text) for text in made)
    install(machine, *engines, is_default=False)
    assert [machine.text(path) for path in paths] == made
    journal = Journal(machine)
    names = [*engines, "programs"]
    journal.uninstall(uninstalling(machine, named(engines), journal).changes, names)
    assert [machine.text(path) for path in paths] == before


def test_an_engine_without_a_default_runtime_is_refused(machine: Machine) -> None:
    with pytest.raises(CgpuError, match=r"^--default: expected docker or containerd among"):
        install(machine, "podman", is_default=True)


@pytest.mark.parametrize("text", ["[plugins", "plugins = 1\n", "imports = 1\n"])
def test_an_import_that_is_not_understood_is_named(machine: Machine, text: str) -> None:
    Path(machine.at(containerd.MAIN)).write_text('version = 2\nimports = ["more.toml"]\n')
    Path(machine.at("/etc/containerd/more.toml")).write_text(text)
    with pytest.raises(CgpuError, match=r"^/etc/containerd/more.toml: "):
        installing(machine, named(["containerd"]), Journal(machine), forgiving=True)
