"""The steps of ``cgpu upgrade``, each on folders that only look like environments."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_node.installation import Installation
from cgpu_upgrade import environment, layouts, living, server, switch
from cgpu_upgrade import upgrade as steps
from cgpu_upgrade.environment import Environment
from cgpu_upgrade.living import RunningContainer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
BASE = """#!/bin/sh
case "$*" in
    *base_executable*) echo "$0" ;;
    *"-m venv"*) mkdir -p "$4/bin" "$4/lib/python3.99" && ln -s "$0" "$4/bin/python" ;;
    *"pip install"*broken*) echo "no such option" >&2; exit 1 ;;
    *"pip wheel"*) echo "no setup.py" >&2; exit 1 ;;
esac
"""


def make(folder: Path, release: str, python: str = "python3.11") -> Environment:
    """An environment with nothing but names in it."""
    package = folder / "lib" / python / "site-packages"
    (package / "cgpu_env").mkdir(parents=True)
    (package / "cgpu_env/version.py").write_text(f'VERSION = "{release}"\n')
    (package / "cgpu_hook/_bin").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/cgpu").write_text(f"#!{folder}/bin/python\nprint()\n")
    (folder / "bin/cgpu").chmod(0o755)
    (folder / "bin/python").write_text(BASE)
    (folder / "bin/python").chmod(0o755)
    (folder / "pyvenv.cfg").touch()
    return Environment(str(folder))


@pytest.fixture
def place(tmp_path: Path) -> Installation:
    make(tmp_path / "cgpu", "0.1.0")
    return Installation(str(tmp_path / "cgpu"))


def links(place: Installation) -> dict[str, str]:
    folder = Path(place.prefix).parent
    return {p.name: str(p.readlink()) if p.is_symlink() else "" for p in folder.iterdir()}


def test_a_folder_at_the_prefix_gets_a_name_of_its_own_and_stays_reachable(
    place: Installation,
) -> None:
    inode = Path(place.prefix).stat().st_ino
    switch.make_link(place)
    assert links(place) == {"cgpu": "cgpu-0.1.0", "cgpu-0.1.0": ""}
    assert Path(place.prefix).stat().st_ino == inode
    script = Path(place.prefix, "bin/cgpu")
    assert script.read_text() == f"#!{place.prefix}-0.1.0/bin/python\nprint()\n"
    assert script.stat().st_mode & 0o777 == 0o755
    assert Environment(place.current_environment).is_ours()
    switch.make_link(place)
    assert links(place) == {"cgpu": "cgpu-0.1.0", "cgpu-0.1.0": ""}


def test_a_folder_at_the_prefix_becomes_a_link_while_no_container_is_made(
    place: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that has found its files below the folder would refuse them below a link."""
    words = ["sh", "-c", "echo; read _", f"{place.prefix}/bootstrap.py", "edit"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as start:
        assert start.stdout is not None
        start.stdout.readline()  # its command line can be read
        seen = []

        def end(_: float) -> None:
            seen.append(Path(place.prefix).is_symlink())
            start.communicate()

        monkeypatch.setattr(switch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=end))
        switch.make_link(place)
    assert seen == [False]
    assert Path(place.prefix).is_symlink()


def test_a_link_whose_making_was_killed_is_completed(
    place: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(switch, "_name_interpreter", be_killed)
    with pytest.raises(KeyboardInterrupt):
        switch.make_link(place)
    monkeypatch.undo()
    switch.make_link(place)
    script = Path(place.prefix, "bin/cgpu")
    assert script.read_text() == f"#!{place.prefix}-0.1.0/bin/python\nprint()\n"


@pytest.mark.parametrize("known", [True, False])
def test_what_engines_start_programs_from_is_kept_whatever_fails(
    place: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    """The engines have the release, its server does not start, and undoing fails too."""
    made = make(tmp_path / "cgpu-2.0", "2.0")
    (tmp_path / "bin").mkdir()
    if known:
        (tmp_path / "bin/cgpu-runtime").symlink_to(f"{made.path}/bin/cgpu")
    undone = []

    def restart(of: Environment, *_: object, **__: object) -> None:
        if of.path == made.path:
            raise CgpuError("it does not come up")
        undone.append("server")

    def tell(shown: Callable[..., object], *_: str) -> list[str]:
        if shown != made.run_cgpu:
            undone.append("engines")
            raise CgpuError("the disk is full")
        return []

    journal = SimpleNamespace(bin_dir=str(tmp_path / "bin"))
    monkeypatch.setattr(steps, "Journal", lambda _: journal)
    monkeypatch.setattr(Environment, "check", lambda _: None)
    monkeypatch.setattr(steps, "_restart_server", restart)
    monkeypatch.setattr(steps, "_tell_engines", tell)
    monkeypatch.setattr(environment, "make_environment", lambda *_: made)
    monkeypatch.setattr(Environment, "read_layouts", lambda _: layouts.own_layouts())
    with pytest.raises(CgpuError):
        steps.switch_to_source(place, str(tmp_path / "state"), "2.0", [], dry=False)
    assert Path(place.prefix).readlink() == Path("cgpu-0.1.0")
    assert set(undone) == {"engines", "server"}
    assert Path(made.path).exists() == known


def test_at_no_moment_the_prefix_leads_nowhere(place: Installation) -> None:
    """Another process looks all the time."""
    script = (
        "import os, sys\nprint(flush=True)\nwhile True:\n    os.stat(sys.argv[1] + '/bin/cgpu')\n"
    )
    words = [sys.executable, "-c", script, place.prefix]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        switch.make_link(place)
        for release in map(str, range(50)):
            switch.use_environment(place, make(Path(f"{place.prefix}-{release}"), release))
        assert watcher.poll() is None
        watcher.kill()


def test_use_and_back_and_what_is_older(place: Installation) -> None:
    switch.make_link(place)
    first = Environment(place.current_environment)
    made = [make(Path(f"{place.prefix}-{n}"), n) for n in ("2.0", "3.0")]
    made[0].mark_removable()
    switch.use_environment(place, made[0])
    assert (place.current_environment, place.previous_environment) == (made[0].path, first.path)
    assert switch.list_older(place) == []
    switch.use_environment(place, made[1])
    assert (place.current_environment, place.previous_environment) == (made[1].path, made[0].path)
    assert switch.list_older(place) == [first]
    switch.restore_back(place, None)
    assert place.previous_environment is None


def test_the_same_release_once_more_leaves_the_way_back(place: Installation) -> None:
    switch.make_link(place)
    first = Environment(place.current_environment)
    made = [make(Path(f"{place.prefix}-{name}"), "2.0") for name in ("2.0", "2.0-2")]
    for each in made:
        each.mark_removable()
        switch.use_environment(place, each)
    assert (place.current_environment, place.previous_environment) == (made[1].path, first.path)
    assert switch.list_older(place) == [made[0]]
    switch.use_environment(place, first)
    assert (place.current_environment, place.previous_environment) == (first.path, made[1].path)


def test_an_environment_that_no_upgrade_has_made_is_never_older(place: Installation) -> None:
    switch.make_link(place)
    make(Path(f"{place.prefix}-tools"), "1.0")
    assert switch.list_older(place) == []


def test_an_environment_stays_while_a_container_would_start_a_hook_from_it(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text('{"hooks": {"path": "/opt/cgpu-0.1.0/lib/cgpu-hook"}}')
    guests = [
        RunningContainer("abc", "0.1.0", {}, str(bundle)),
        RunningContainer("run-1", "0.1.0", {}, ""),
    ]
    assert living.leads_into(guests, "/opt/cgpu-0.1.0")
    assert not living.leads_into(guests, "/opt/cgpu-0.1")
    unseen = [RunningContainer("abc", "0.1.0", {}, str(tmp_path / "gone"))]
    assert living.leads_into(unseen, "/opt/cgpu-0.1.0")


@pytest.mark.parametrize(
    ("versions", "reads"),
    [
        ({"limits": 2, "ledger": 2, "record": 1}, True),
        ({"limits": 2, "ledger": 0, "record": 1}, True),
        ({"limits": 2, "ledger": 77, "record": 1}, True),
        ({"limits": 77, "ledger": 77, "record": 1}, False),
        ({"limits": 2, "ledger": 2, "record": 77}, False),
    ],
)
def test_a_container_that_ruins_its_ledger_holds_up_no_upgrade(
    versions: dict[str, int | None],
    reads: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    """The container can write its ledger, and not the others."""
    guests = [RunningContainer("abc", "0.1.0", versions, "")]
    if reads:
        living.check_containers(guests, layouts.own_layouts())
    else:
        with pytest.raises(CgpuError, match=r"read the files of running .*: abc \(0\.1\.0\)"):
            living.check_containers(guests, layouts.own_layouts())


def test_two_upgrades_at_once_are_one(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "_PATIENCE_SECONDS", 0.1)
    with (
        switch.lock_upgrade(place),
        pytest.raises(CgpuError, match=f"upgrade of .*: process {os.getpid()} has held its lock"),
        switch.lock_upgrade(place),
    ):
        pass


def test_a_user_who_locks_the_folder_stops_no_upgrade(place: Installation) -> None:
    """REL-8: every user can open it."""
    before = links(place)
    folder = os.open(Path(place.prefix).parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with switch.lock_upgrade(place):
        pass
    os.close(folder)
    assert links(place) == before, "the lock is gone"


def test_what_pip_refuses_leaves_nothing(place: Installation, tmp_path: Path) -> None:
    before = links(place)
    for source in ("cgpu-2.0-broken.whl", "folder"):
        path = tmp_path / "wheels" / source
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with pytest.raises(CgpuError, match=r"pip (install|wheel) fails; nothing was changed"):
            environment.make_environment(Environment(place.prefix), place.prefix, str(path), [])
    assert links(place) == {**before, "wheels": ""}


def test_a_new_environment_has_a_name_of_its_own_and_the_paths_of_the_older_python(
    place: Installation, tmp_path: Path
) -> None:
    (tmp_path / "cgpu-2.0").mkdir()
    wheel = tmp_path / "cgpu-2.0-py3-none-any.whl"
    wheel.touch()
    made = environment.make_environment(Environment(place.prefix), place.prefix, str(wheel), [])
    assert (made.path, made.is_ours()) == (f"{place.prefix}-2.0-2", True)
    assert Path(made.path, "lib/python3.11").readlink() == Path("python3.99")
    other = tmp_path / "other-2.0-py3-none-any.whl"
    other.touch()
    with pytest.raises(CgpuError, match="expected a wheel of cgpu"):
        environment.make_environment(Environment(place.prefix), place.prefix, str(other), [])


def test_programs_that_do_not_start_are_refused(place: Installation) -> None:
    packages = Path(Environment(place.prefix).packages)
    for name in ("cgpu-runtime", "cgpu-hook"):
        (packages / "cgpu_hook/_bin" / name).write_text("#!/bin/sh\n")
    with pytest.raises(CgpuError, match=r"bin/cgpu-run does not start"):
        Environment(place.prefix).check()
    (packages / "cgpu_hook/_bin/cgpu-hook").chmod(0o777)
    with pytest.raises(CgpuError, match="others could change it"):
        Environment(place.prefix).check()


@pytest.mark.parametrize("command", ["cgpud", "/opt/cgpu/bin/cgpud", "-m cgpu_server.main"])
def test_a_new_server_is_told_what_the_old_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    words = f"python -I {command} --state-dir {tmp_path} --idle-exit 7 --driver-dir /d".split()
    monkeypatch.setattr(server, "_read_command", lambda _: [word.encode() for word in words])
    monkeypatch.setattr(server.server, "is_listening", lambda _: True)
    monkeypatch.setattr(server, "query_status", lambda _: (7, "0.1.0"))
    ran = server.find_running(str(tmp_path))
    given = ["--state-dir", str(tmp_path), "--idle-exit", "7", "--driver-dir", "/d"]
    assert ran.arguments == given
    assert server._build_arguments(str(tmp_path), ran) == [  # noqa: SLF001
        *given,
        *("--log", f"{tmp_path}/cgpud.log", "--replace"),
    ]


def upgrade(*words: str) -> subprocess.CompletedProcess[str]:
    """The command of this tree, which is in no virtual environment of its own."""
    command = [sys.executable, "-m", "cgpu_cli.main", "upgrade", *words]
    paths = ":".join(
        str(ROOT / name) for name in (".", "native", "shim", "node", "hook", "server", "cli")
    )
    return subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": paths}, check=False
    )


def test_the_command_says_what_else_to_use(place: Installation, tmp_path: Path) -> None:
    tree = upgrade("x.whl")
    assert (tree.returncode, tree.stdout) == (2, "")
    commands = f"git -C {ROOT} pull && make -C {ROOT} build, then: cgpu upgrade"
    assert tree.stderr == f"cgpu: this cgpu is of a clone, so git has its releases: {commands}\n"
    assert f"git -C {ROOT} checkout RELEASE && make" in upgrade("--back").stderr
    Path(place.prefix, "pipx_metadata.json").touch()
    pipx = upgrade("x.whl", "--prefix", place.prefix)
    assert "pipx upgrade --global cgpu, then: cgpu upgrade" in pipx.stderr
    packaged = upgrade("x.whl", "--prefix", "/usr")
    assert "--prefix /usr: expected a virtual environment" in packaged.stderr
    Path(place.prefix, "pipx_metadata.json").unlink()
    back = upgrade("--back", "--prefix", place.prefix, "--state-dir", str(tmp_path / "state"))
    assert back.stderr.startswith(f"cgpu: {place.prefix}.back is not there: there is no way back\n")
    assert "expected no SOURCE" in upgrade("x.whl", "--back").stderr


def test_where_nothing_runs_there_is_nothing_to_follow(tmp_path: Path) -> None:
    """A package's script calls it wherever the package is installed."""
    for words in ([], ["--dry-run"]):
        done = upgrade("--state-dir", str(tmp_path / "state"), *words)
        sentence = f"nothing to change: cgpu {VERSION} is installed, and no cgpud runs\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, sentence, "")
    assert list(tmp_path.iterdir()) == []


def test_what_is_made_is_for_all_users(place: Installation, tmp_path: Path) -> None:
    """Root's umask may be narrower."""
    wheel = tmp_path / "cgpu-2.0-py3-none-any.whl"
    wheel.touch()
    before = os.umask(0o077)
    try:
        made = environment.make_environment(Environment(place.prefix), place.prefix, str(wheel), [])
    finally:
        assert os.umask(before) == 0o077
    assert Path(made.path).stat().st_mode & 0o777 == 0o755
    assert Path(made.path, "bin").stat().st_mode & 0o777 == 0o755
