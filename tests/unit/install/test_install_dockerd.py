"""``cgpu install --default`` on the real-life configurations, and what gives it back (CLI-4)."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from cgpu_cli.commands.install import Uninstall
from cgpu_env import CgpuError
from cgpu_install import containerd, dockerd
from cgpu_install.engines import File, select_engines
from cgpu_install.journal import Journal
from cgpu_install.machine import Machine
from cgpu_install.plan import plan_install
from cgpu_install.toml_text import parse
from cgpu_install.tree import get_value
from lab.machine.wired import TARGET, findings, install, made_below, target, uninstall, write

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(
    path.relative_to(GOLDEN).as_posix().removesuffix(".after")
    for engine in ("docker", "containerd")
    for path in (GOLDEN / engine).glob("*.after")
)
OF_NVIDIA = ("docker/nvidia-ctk.json", "docker/one-line.json", "containerd/nvidia-v2.toml")


def file_of(case: str) -> File:
    (file,) = select_engines([case.partition("/")[0]])[0].files(Machine("/nowhere"))
    return file


def default_of(case: str, text: str) -> object:
    data = json.loads(text) if case.startswith("docker") else parse(text)
    return get_value(data, file_of(case).default.place(data))  # type: ignore[union-attr]


@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_NVIDIA])
def test_the_default_is_put_once_and_taken_out_without_a_trace(case: str) -> None:
    """Also where others have changed the file since, and its bytes cannot just come back."""
    file, before = file_of(case), (GOLDEN / case).read_bytes().decode()
    assert file.default is not None
    configured = (GOLDEN / f"{case}.after").read_bytes().decode()
    made = file.default.set_runtime(configured)
    assert default_of(case, made) == "cgpu"
    assert file.default.set_runtime(made) == made
    assert file.add(made, file.program) == made
    left = file.remove_ours(made, file.default.read_runtime(before))
    assert left is not None
    assert "cgpu" not in left
    has_one = "default" in before
    assert default_of(case, left) == (default_of(case, before) if has_one else None)


def test_the_default_that_was_there_comes_back_beside_what_others_wrote() -> None:
    before = '{"default-runtime": "runc"}'
    (file,) = select_engines(["docker"])[0].files(Machine("/nowhere"))
    assert file.default is not None
    made = file.default.set_runtime(file.add(before, file.program)).replace(
        "{", '{"debug": true, ', 1
    )
    left = file.remove_ours(made, file.default.read_runtime(before))
    assert left is not None
    assert json.loads(left) == {"debug": True, "default-runtime": "runc"}


@pytest.mark.parametrize("case", OF_NVIDIA)
def test_a_default_of_others_is_refused_and_what_to_do_instead(case: str) -> None:
    """Its containers would lose what it does for them."""
    configured = (GOLDEN / f"{case}.after").read_text()
    default = file_of(case).default
    assert default is not None
    with pytest.raises(CgpuError, match=r"default.runtime\w* = nvidia: expected runc") as refusal:
        default.set_runtime(configured)
    assert refusal.value.hint.startswith("cgpu install nvidia: ")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """With docker and containerd."""
    monkeypatch.setattr(TARGET, target)
    made = made_below(tmp_path)
    write(made, dockerd.FILE, "{}\n")
    write(made, containerd.MAIN, "version = 2\n")
    return made


def test_installing_again_keeps_the_default_and_uninstalling_gives_the_bytes_back(
    machine: Machine,
) -> None:
    engines = ("docker", "containerd")
    paths = (dockerd.FILE, containerd.MAIN)
    before = [machine.read_text(path) for path in paths]
    install(machine, *engines)
    assert not any("default" in machine.read_text(path) for path in paths)
    install(machine, *engines, is_default=True)
    made = [machine.read_text(path) for path in paths]
    assert all(re.search(r'default.runtime.*"cgpu"', text) for text in made)
    install(machine, *engines)
    assert [machine.read_text(path) for path in paths] == made
    uninstall(machine, *engines)
    assert [machine.read_text(path) for path in paths] == before


def test_an_engine_without_a_default_runtime_is_refused(machine: Machine) -> None:
    with pytest.raises(CgpuError, match=r"^--default: expected docker or containerd among"):
        install(machine, "podman", is_default=True)


@pytest.mark.parametrize("text", ["[plugins", "plugins = 1\n", "imports = 1\n"])
def test_an_import_that_is_not_understood_is_named(machine: Machine, text: str) -> None:
    write(machine, containerd.MAIN, 'version = 2\nimports = ["more.toml"]\n')
    write(machine, "/etc/containerd/more.toml", text)
    with pytest.raises(CgpuError, match=r"^/etc/containerd/more.toml: "):
        plan_install(machine, select_engines(["containerd"]), Journal(machine), forgiving=True)


def engines_of(machine: Machine) -> list[tuple[str, str]]:
    """What the doctor says of them."""
    return [(found.level, found.what) for found in findings(machine, "docker", "containerd")]


def test_the_doctor_tells_a_default_and_what_is_wrong_with_it(machine: Machine) -> None:
    engines = ("docker", "containerd")
    install(machine, *engines, is_default=True)
    known = [("ok", f"{name} knows cgpu, and has it for its default runtime") for name in engines]
    assert engines_of(machine) == known
    write(machine, dockerd.FILE, '{"default-runtime": "cgpu"}')  # dockerd starts no more
    write(machine, "/etc/containerd/first.toml", section(2, 'default_runtime_name = "nvidia"'))
    text = machine.read_text(containerd.MAIN)
    write(machine, containerd.MAIN, 'imports = ["first.toml", "last.toml"]\nversion = 2\n')
    write(machine, "/etc/containerd/last.toml", text)
    assert [level for level, _ in engines_of(machine)] == ["error", "error"]
    assert engines_of(machine)[0][1] == f"docker does not know this cgpu: {dockerd.FILE}"
    assert engines_of(machine)[1][1].startswith("/etc/containerd/first.toml: plugins.")


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_default_goes_also_where_nobody_knows_what_was_there_before(
    machine: Machine, *, is_lost: bool
) -> None:
    """Others changed the file since, and the backup may be gone."""
    write(machine, dockerd.FILE, '{"default-runtime": "runc"}\n')
    install(machine, "docker", is_default=True)
    write(
        machine, dockerd.FILE, machine.read_text(dockerd.FILE).replace("{", '{"debug": true, ', 1)
    )
    backup = Path(machine.resolve_path(f"/var/lib/cgpu/backup{dockerd.FILE}"))
    if is_lost:
        backup.unlink()
    uninstall(machine, "docker")
    left = json.loads(machine.read_text(dockerd.FILE))
    assert left == {"debug": True} | ({} if is_lost else {"default-runtime": "runc"})


@pytest.mark.parametrize(
    ("engine", "path"), [("docker", dockerd.FILE), ("containerd", containerd.MAIN)]
)
def test_a_default_whose_runtime_others_took_out_goes_too(
    machine: Machine, engine: str, path: str
) -> None:
    """Engines do not start with it."""
    install(machine, engine, is_default=True)
    file = file_of(engine)
    assert file.default is not None
    left = file.take(machine.read_text(path), file.program)
    assert left is not None
    assert default_of(engine, left) == "cgpu"
    write(machine, path, left)
    uninstall(machine, engine)
    assert default_of(engine, machine.read_text(path)) is None


def test_a_runtime_of_others_that_has_our_name_stays_the_default(machine: Machine) -> None:
    text = '{"default-runtime": "cgpu", "runtimes": {"cgpu": {"path": "/usr/bin/other"}}}\n'
    write(machine, dockerd.FILE, text)
    uninstall(machine, "docker")
    assert machine.read_text(dockerd.FILE) == text


def test_a_containerd_that_cannot_have_us_keeps_nobody_from_uninstalling(machine: Machine) -> None:
    write(machine, containerd.MAIN, text := "version = 1\n")
    uninstall(machine, "containerd")
    assert machine.read_text(containerd.MAIN) == text


def test_the_dockerd_of_this_machine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a user's environment or context."""
    (tmp_path / "socket").touch()
    (tmp_path / "docker").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setattr(dockerd, "_SOCKET", str(tmp_path / "socket"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert dockerd.query_info("X") == f"--host unix://{tmp_path}/socket info --format X"


MINE = 'snapshotter = "overlayfs"'


def section(version: int, line: str) -> str:
    plugin = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}[version]
    return f'version = {version}\n[plugins."{plugin}".containerd]\n{line}\n'


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            'default_runtime_name = "nvidia"',
            "default_runtime_name = nvidia: expected runc, or none",
        ),
        (
            'default_runtime.runtime_type = "io.containerd.runc.v2"',
            "default_runtime.runtime_type = io.containerd.runc.v2: expected none, because it",
        ),
    ],
)
def test_a_default_of_others_is_found_in_whatever_containerd_reads(
    machine: Machine, version: int, line: str, sentence: str
) -> None:
    """From 2.1 a section is put together from all files; the last file is not all that counts."""
    main = f'version = {version}\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    write(machine, containerd.MAIN, main)
    write(machine, "/etc/containerd/conf.d/10-other.toml", section(version, line))
    write(machine, "/etc/containerd/conf.d/20-last.toml", section(version, "# nothing"))
    install(machine, "containerd")
    with pytest.raises(CgpuError, match=f"^/etc/containerd/conf.d/10-other.toml: .*{sentence}"):
        install(machine, "containerd", is_default=True)
    write(machine, "/etc/containerd/conf.d/10-other.toml", section(version, "# none"))
    install(machine, "containerd", is_default=True)
    assert '"cgpu"' in machine.read_text("/etc/containerd/conf.d/20-last.toml")
    assert machine.read_text(containerd.MAIN) == main


def test_no_default_is_left_in_a_file_that_decides_no_more(machine: Machine) -> None:
    """Another tool has added an import since; from containerd 2.1 both files count."""
    write(machine, containerd.MAIN, section(2, MINE))
    install(machine, "containerd", is_default=True)
    configured = machine.read_text(containerd.MAIN)
    write(machine, containerd.MAIN, 'imports = ["conf.d/*.toml"]\n' + configured)
    write(machine, "/etc/containerd/conf.d/99.toml", section(2, "# nothing"))
    uninstall(machine, "containerd")
    left = parse(machine.read_text(containerd.MAIN))
    assert left == parse('imports = ["conf.d/*.toml"]\n' + section(2, MINE))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("/etc/default/docker", 'DOCKER_OPTS="--debug --default-runtime=runc"', "runc"),
        (
            "/etc/systemd/system/docker.service.d/own.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --default-runtime nvidia -H fd://\n",
            "nvidia",
        ),
        ("/etc/conf.d/docker", 'DOCKER_OPTS="--default-runtime=runc"', "runc"),
    ],
)
def test_a_default_on_dockerds_command_line_is_refused(
    machine: Machine, path: str, text: str, value: str
) -> None:
    """With both dockerd would not start."""
    write(machine, path, text)
    install(machine, "docker")
    with pytest.raises(CgpuError) as refusal:
        install(machine, "docker", is_default=True)
    assert str(refusal.value) == (
        f"{path}: --default-runtime={value} on dockerd's command line: expected none there,"
        f" because dockerd does not start if {dockerd.FILE} has one too"
    )
    write(machine, path, "".join(f"# {line}\n" for line in text.splitlines()))
    install(machine, "docker", is_default=True)


def test_a_runtime_on_dockerds_command_line_is_refused(machine: Machine) -> None:
    """dockerd forgets it when it reads the file again; one that has started with both has both."""
    path, before = "/etc/default/docker", machine.read_text(dockerd.FILE)
    write(machine, path, 'DOCKER_OPTS="--add-runtime kata=/usr/bin/kata"')
    with pytest.raises(CgpuError) as refusal:
        install(machine, "docker")
    assert str(refusal.value) == (
        f"{path}: --add-runtime=kata=/usr/bin/kata on dockerd's command line: expected none there,"
        f" because dockerd forgets it when it reads {dockerd.FILE} again"
    )
    assert [level for level, _ in engines_of(machine)] == ["error", "warning"]
    assert machine.read_text(dockerd.FILE) == before
    write(machine, path, "")
    install(machine, "docker")
    write(machine, path, 'DOCKER_OPTS="--add-runtime=kata=/usr/bin/kata"')
    install(machine, "docker")
    uninstall(machine, "docker")
    assert machine.read_text(dockerd.FILE) == before


def test_uninstall_refuses_where_dockerds_command_line_names_cgpu(machine: Machine) -> None:
    """Without the runtime dockerd would not start."""
    path = "/etc/default/docker"
    install(machine, "docker")
    configured = machine.read_text(dockerd.FILE)
    write(machine, path, 'DOCKER_OPTS="--default-runtime=cgpu"')
    given = argparse.Namespace(root=machine.root, engines=["docker"], now=False, dry_run=False)
    with pytest.raises(CgpuError, match=f"^{path}: --default-runtime=cgpu on .*: take it out"):
        Uninstall().run(given)
    assert machine.read_text(dockerd.FILE) == configured
    write(machine, path, 'DOCKER_OPTS="--default-runtime=runc"')
    assert Uninstall().run(given) == 0
    assert machine.read_text(dockerd.FILE) == "{}\n"
