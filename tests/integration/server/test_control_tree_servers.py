"""The control tree outlives its servers, and each user's server has its own (TREE-2, TREE-3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_doctor.finding import Ground
from cgpu_doctor.state import check_leftovers, is_answering
from cgpu_env.version import VERSION
from cgpu_install.machine import Machine
from lab.machine.as_service import as_service
from lab.runs.packages import ensure_packages
from lab.worlds import cgpu_run as cgpu_run_world
from lab.worlds import server as server_world
from lab.worlds.server import MIB, page, wait_until
from lab.worlds.tree import ID, World, output, worlds

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from worlds(tmp_path)


def test_it_is_there_again_after_its_server_was_killed(world: World) -> None:
    """TREE-3: an open file fails, and nothing hangs."""
    directory = world.admit(ID)
    server = world.serve()
    with (world.tree / "version").open() as file:
        server.kill()
        server.wait()
        with pytest.raises(OSError, match="not connected"):
            file.read()
        with pytest.raises(OSError, match="not connected"):
            world.read("version")
        assert page(directory).cap_bytes == MIB, "the container has what it had"
        world.serve()
        with pytest.raises(OSError, match="not connected"):
            file.read()
    assert world.read("version") == f"{VERSION}\n"
    mounts = Path("/proc/self/mountinfo").read_text()
    assert mounts.count(str(world.tree)) == 1, "the dead one was taken away"


_SILENT = """
import sys, time, mfusepy
class Silent(mfusepy.Operations):
    def getattr(self, path, fh=None):
        print("asked", flush=True)
        time.sleep(600)
mfusepy.FUSE(Silent(), sys.argv[1], foreground=True, nothreads=True)
"""


def test_a_server_that_has_read_a_question_and_does_not_answer_stops_nobody(
    tmp_path: Path,
) -> None:
    """CLI-4: who asks it cannot be killed then."""
    command = [sys.executable, "-c", _SILENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            mounts = Path("/proc/self/mountinfo")
            wait_until(lambda: str(tmp_path) in mounts.read_text(), "it is mounted")
            assert is_answering(str(tmp_path)) is None
            assert server.stdout is not None
            assert server.stdout.readline() == "asked\n"
        finally:
            server.kill()
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_the_tree_of_a_stopped_server_is_not_to_be_unmounted(world: World) -> None:
    """CLI-4: it would be empty when the server goes on; a dead one's is to be."""

    def mends() -> list[str]:
        ground = Ground(Machine(), str(world.state), None)
        return [each.mend for each in check_leftovers(ground) if each.value == str(world.tree)]

    server = world.serve()
    server.send_signal(signal.SIGSTOP)
    try:
        [mend] = mends()
    finally:
        server.send_signal(signal.SIGCONT)
    assert mend.startswith("kill -CONT that cgpud, ")
    wait_until(lambda: mends() == [], "it answers")
    server.kill()
    server.wait()
    assert mends() == [f"umount -l {world.tree}"]
    world.serve()


def test_a_shell_that_stands_in_it_stands_in_the_next_one_after_cd(world: World) -> None:
    """TREE-3: nobody's working directory keeps the tree from coming back, nor hangs."""
    world.admit(ID)
    server = world.serve()
    script = 'weight=$(cat weight); echo $weight; read _; cat weight; cd "$PWD" && cat weight'
    shell = subprocess.Popen(
        ["sh", "-c", script],
        cwd=world.tree / "0" / ID[:12],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert shell.stdout is not None
    assert shell.stdout.readline() == "1\n"
    server.kill()
    server.wait()
    world.serve()
    assert world.write(f"0/{ID[:12]}/weight", "4") == ""
    output = shell.communicate("\n", timeout=20)[0].splitlines()
    assert output == ["cat: weight: Transport endpoint is not connected", "4"]


def test_a_server_replaced_by_another_leaves_it_the_tree(world: World) -> None:
    """TREE-3."""
    old = world.serve()
    new = world.serve("--replace")
    old.communicate(timeout=20)
    assert world.pid() == new.pid
    assert world.read("version") == f"{VERSION}\n"


def test_the_server_is_renewed_by_its_upgrade_node(world: World) -> None:
    """TREE: the same process runs what is installed now, and knows all that it knew."""
    world.admit(ID)
    server = world.serve()
    assert (
        world.read("upgrade") == f"Running: {VERSION}\nInstalled: {VERSION}\nBack: none\nOlder: 0\n"
    )
    assert world.write(f"0/{ID[:12]}/weight", "4") == ""
    lock = world.state / "cgpud.lock"  # it is written anew by who serves
    before = lock.stat().st_mtime_ns
    assert world.write("upgrade", "1") == ""
    wait_until(lambda: lock.stat().st_mtime_ns != before, "it has begun anew")
    wait_until(lambda: world.is_served_by(server.pid), "it serves again")
    assert world.read(f"0/{ID[:12]}/weight") == "4\n"
    assert output(server).count("serving path=") == 2


def test_the_server_does_not_go_back_by_itself(world: World) -> None:
    """It may be confined, so the command is named that can."""
    server = world.serve()
    assert "Invalid argument" in world.write("upgrade", "back")
    assert "cgpu upgrade --back" in output(server)


def test_a_confined_server_has_it_mounted_from_outside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TREE-3: as deploy/cgpud.service does; the server has mounts of its own, and no right to."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    where = ("--tree", str(world.tree))
    own = ["unshare", "--mount", "--propagation", "slave", "--"]
    world.admit(ID)
    for _ in range(2):
        server = subprocess.Popen(
            own + as_service(world.command(*where)), env=server_world.environment()
        )
        wait_until(lambda pid=server.pid: world.pid() == pid, "it serves")  # type: ignore[misc]
        done = _run(world.command(*where, "--mount-tree"))
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(world.is_there, "the tree is mounted")
        assert world.write(f"0/{ID[:12]}/weight", "4") == ""
        assert world.read(f"0/{ID[:12]}/weight") == "4\n"
        server.kill()
        server.wait()
    done = _run(world.command(*where, "--unmount-tree"))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(world.tree) == []  # noqa: PTH208
    done = _run(world.command(*where, "--mount-tree"))
    assert (done.returncode, "Connection refused" in done.stderr) == (2, True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = server_world.environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("place", ["/proc/no/such", "/dev/null"])
def test_without_a_place_for_it_the_server_says_so_once_and_serves(
    world: World, place: str
) -> None:
    server = world.start("--tree", place)
    assert world.ask({"request": "status"})["pid"] == server.pid
    tasks = Path(f"/proc/{server.pid}/task")
    wait_until(lambda: len(list(tasks.iterdir())) == 2, "the tree's thread has ended")
    assert output(server).count(f'WARNING tree_missing path={place} error="{place}: ') == 1


def test_a_state_directory_of_ones_own_has_no_tree(world: World) -> None:
    server = world.start()
    assert "tree" not in output(server)
    assert not world.tree.exists()


# As udev leaves it; a container may have it closed.
OPEN_TO_ALL = """
mount -t tmpfs tmpfs /srv && mknod -m 666 /srv/fuse c 10 229 && mount --bind /srv/fuse /dev/fuse
"""

USERS_TREE = """
import os, pathlib, signal, subprocess, sys, time

tree, cgpu = pathlib.Path(sys.argv[1]), sys.argv[2:]

def wait_until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise SystemExit("in vain")

def serve():
    assert subprocess.run([*cgpu, "ls"]).returncode == 0
    wait_until(lambda: os.path.ismount(tree))
    return int((tree.parent / "cgpu" / "cgpud.lock").read_text())

os.kill(serve(), signal.SIGKILL)
time.sleep(0.1)
pid = serve()
(tree / "default_memsize").write_text("1048576")
print(tree.stat().st_uid, (tree / "default_memsize").read_text().strip())
print(sorted(path.name for path in tree.iterdir()), flush=True)
try:
    (tree / "default_memsize").write_text("x")
except OSError as error:
    print(error.strerror)
os.kill(pid, signal.SIGTERM)
wait_until(lambda: not os.path.ismount(tree))
print(sorted(tree.iterdir()))
"""


def test_a_user_has_a_tree_of_ones_own() -> None:
    """TREE-2, TREE-3: mounted by fusermount3, where the user's runtime directory is."""
    ensure_packages()
    user = cgpu_run_world.World(root=False)
    cgpu = [sys.executable, "-m", "cgpu_cli.main"]
    tree = f"{user.state}_km"
    words = [sys.executable, "-c", USERS_TREE, tree, *cgpu]
    script = f"{OPEN_TO_ALL}\n{cgpu_run_world.become_nobody(words)}"
    done = user.run_command(["unshare", "-m", "sh", "-c", script])
    assert done.stdout.splitlines()[-4:] == [
        f"{cgpu_run_world.NOBODY} 1048576",
        "['default_memsize', 'inst_ctl', 'upgrade', 'version']",
        "Invalid argument",
        "[]",
    ], done
