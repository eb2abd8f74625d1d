"""The control tree of a server, as shells see it (TREE-1..4, MEM-8, SCH-9)."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import cgpu_run_world
import pytest
import server_world
from server_world import MIB, page, wait_until

import cgpu_native
from cgpu_env.version import VERSION
from lab.machine.as_service import as_service
from lab.machine.servers import end_servers
from lab.runs.packages import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

T4_BYTES = 15109 * MIB
pytestmark = pytest.mark.integration
ID = "0123456789abcdef" * 4
FOLLOW = Path(__file__).parent / "programs" / "follow_cap.py"
OUT_OF_MEMORY = 2


class World(server_world.World):
    """One whose servers show a tree."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "state")
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.tree = folder / "km"

    def serve(self, *flags: str) -> subprocess.Popen[str]:
        """A server whose tree is there."""
        server = self.start("--tree", str(self.tree), *flags)
        wait_until(self.is_there, "the tree is mounted")
        return server

    def is_there(self) -> bool:
        return os.path.ismount(self.tree) and bool(self.read("version"))

    def is_served_by(self, pid: int) -> bool:
        try:
            return self.pid() == pid and self.is_there()
        except OSError:
            return False

    def read(self, path: str) -> str:
        return (self.tree / path).read_text()

    def write(self, path: str, text: str) -> str:
        """As ``echo`` does; what it complains of (dash calls each error one of I/O)."""
        words = ["bash", "-c", 'echo "$1" >"$2"', "sh", text, str(self.tree / path)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    ensure_packages()
    yield World(tmp_path)
    end_servers(tmp_path)
    assert not os.path.ismount(tmp_path / "km"), "a server that ends takes its tree away"


def output(server: subprocess.Popen[str]) -> str:
    """What the server wrote, once it is asked to end."""
    server.terminate()
    return server.communicate(timeout=20)[1]


def test_its_nodes_have_the_names_and_modes_of_cgpu(world: World) -> None:
    """As deploy/README.md lists them."""
    world.admit(ID)
    world.serve()
    found = {
        str(path.relative_to(world.tree)): stat.filemode(path.stat().st_mode)
        for path in world.tree.rglob("*")
    }
    short = ID[:12]
    writable = ["default_memsize", "inst_ctl", "upgrade"]
    writable += [f"0/{name}" for name in ("max_inst", "policy", "prio_ratio")]
    writable += [f"0/{short}/{name}" for name in ("highprio", "memsize", "weight")]
    readable = ["version", "0/free_weight", "0/major", f"0/{short}/id", f"0/{short}/meminfo"]
    assert found == {
        **dict.fromkeys(["0", f"0/{short}"], "drwxr-xr-x"),
        **dict.fromkeys(writable, "-rw-r--r--"),
        **dict.fromkeys(readable, "-r--r--r--"),
    }


def test_what_it_says_before_anything_was_changed(world: World) -> None:
    """TREE-1: meminfo of a container without processes."""
    world.admit(ID, weight=3)
    world.serve()
    output = {str(path.relative_to(world.tree)): path for path in world.tree.rglob("*")}
    short = f"0/{ID[:12]}"
    assert {name: path.read_text() for name, path in output.items() if path.is_file()} == {
        "default_memsize": "0\n",
        "inst_ctl": f"{ID[:12]} 0\n",
        "upgrade": f"Running: {VERSION}\nInstalled: {VERSION}\nBack: none\nOlder: 0\n",
        "version": f"{VERSION}\n",
        "0/free_weight": "17\n",
        "0/major": "0\n",
        "0/max_inst": "20\n",
        "0/policy": "6\n",
        "0/prio_ratio": "80\n",
        f"{short}/highprio": "0\n",
        f"{short}/id": f"{ID}\n",
        f"{short}/memsize": f"{MIB}\n",
        f"{short}/meminfo": f"Free: {MIB}\n",
        f"{short}/weight": "3\n",
    }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("default_memsize", "1048576"),
        ("0/policy", "2"),
        ("0/max_inst", "10"),
        ("0/prio_ratio", "60"),
        (f"0/{ID[:12]}/weight", "4"),
        (f"0/{ID[:12]}/highprio", "1"),
        (f"0/{ID[:12]}/memsize", "4194304"),
    ],
)
def test_what_is_written_is_what_is_read(world: World, path: str, text: str) -> None:
    """TREE, SCH-9, MEM-8: also after the server was killed."""
    world.admit(ID)
    server = world.serve()
    assert world.write(path, text) == ""
    assert world.read(path) == f"{text}\n"
    server.kill()
    server.wait()
    world.serve()
    assert world.read(path) == f"{text}\n"


def test_memory_is_written_in_the_units_that_people_type(world: World) -> None:
    """TREE, MEM-8: and read in bytes, as cGPU has it."""
    world.admit(ID)
    world.serve()
    for path, text, size in (
        ("default_memsize", "2GiB", 2 << 30),
        ("default_memsize", "40%", "40%"),
        ("default_memsize", "6/15", "6/15"),
        (f"0/{ID[:12]}/memsize", "512MiB", 512 << 20),
        (f"0/{ID[:12]}/memsize", "40%", T4_BYTES * 2 // 5),
        (f"0/{ID[:12]}/memsize", "6/15", T4_BYTES * 6 // 15),
    ):
        assert world.write(path, text) == ""
        assert world.read(path) == f"{size}\n"


def test_what_is_odd_about_a_cap_that_is_written_is_in_the_log(world: World) -> None:
    """TREE, MEM-8, ENV-2: as `cgpu set` prints it."""
    world.admit(ID)
    server = world.serve()
    path = f"0/{ID[:12]}/memsize"
    assert world.write(path, "6/80") == ""
    with cgpu_native.Ledger.attach(world.state / "containers" / ID / "ledger") as process:
        process.charge(0, 3 << 20, 3 << 20)
        assert world.write(path, "1MiB") == ""
    lines = output(server)
    misstated = "GPU 0 has 15109 MiB, not the 80 GiB of memsize=6/80: 6 of 80 is 1133 MiB"
    assert f'WARNING whole_misstated container={ID} note="{misstated}"' in lines
    held = "GPU 0: it holds 3MiB, 2MiB above its cap"
    assert f'WARNING cap_below_use container={ID} note="{held}' in lines


def test_a_container_is_found_by_its_whole_id_and_by_the_beginning(world: World) -> None:
    """TREE: it is listed once, and what means more than one container is not there."""
    world.admit(ID, weight=3)
    other = f"{ID[:6]}{'f' * 58}"
    world.admit(other)
    world.serve()
    for name in (ID, ID[:12], ID[:7]):
        assert world.read(f"0/{name}/weight") == "3\n"
    assert world.write(f"0/{other}/weight", "2") == ""
    assert world.read(f"0/{other[:7]}/weight") == "2\n"
    assert not (world.tree / "0" / ID[:6]).exists()
    folders = [path.name for path in (world.tree / "0").iterdir() if path.is_dir()]
    assert sorted(folders) == sorted([ID[:12], other[:12]])


def test_a_policy_is_written_by_its_name_too(world: World) -> None:
    """TREE, SCH-9: and read as a number, as cGPU has it."""
    world.admit(ID)
    world.serve()
    for text, number in (("fixed", 3), ("weighted fair", 6), ("Weighted-Preemptive", 2)):
        assert world.write("0/policy", text) == ""
        assert world.read("0/policy") == f"{number}\n"


@pytest.mark.parametrize(
    ("path", "text", "allowed"),
    [
        ("0/policy", "9", "policy=9: expected a whole number from 0 to 6"),
        ("0/policy", "two", "policy=two: expected a whole number from 0 to 6, or one of fair"),
        ("0/policy", "", "policy=: expected a whole number from 0 to 6"),
        ("0/policy", "1 1", "policy=1 1: expected a whole number from 0 to 6"),
        ("0/max_inst", "26", "max_inst=26: expected a whole number from 1 to 25"),
        ("0/prio_ratio", "19", "prio_ratio=19: expected a whole number from 20 to 99"),
        (f"0/{ID[:12]}/weight", "21", "weight=21: expected a whole number from 1 to 20"),
        (f"0/{ID[:12]}/highprio", "2", "highprio=2: expected a whole number from 0 to 1"),
        (f"0/{ID[:12]}/memsize", "0", "memsize=0: expected from 1MiB to 15109MiB, such as 6GiB"),
        (f"0/{ID[:12]}/memsize", "2GB", "memsize=2GB: there is no unit GB: expected from 1MiB"),
        ("default_memsize", "-1", "default_memsize=-1: expected 0 for none or at least 1MiB"),
        ("default_memsize", "2", "default_memsize=2: expected 0 for none or at least 1MiB"),
        ("inst_ctl", "1", "inst_ctl=1: expected reap"),
        ("upgrade", "0", "upgrade=0: expected 1"),
    ],
)
def test_a_bad_value_is_refused_and_the_log_says_what_is_allowed(
    world: World, path: str, text: str, allowed: str
) -> None:
    """TREE-2."""
    world.admit(ID)
    server = world.serve()
    before = world.read(path)
    assert "Invalid argument" in world.write(path, text)
    assert world.read(path) == before
    assert f'WARNING write_refused path=/{path} error="{allowed}' in output(server)


@pytest.mark.parametrize(
    "path", ["version", "0/free_weight", "0/major", f"0/{ID[:12]}/id", f"0/{ID[:12]}/meminfo"]
)
def test_what_can_only_be_read_refuses_root_too(world: World, path: str) -> None:
    """TREE-2."""
    world.admit(ID)
    world.serve()
    assert "Permission denied" in world.write(path, "1")
    with pytest.raises(OSError, match="denied") as refusal:
        os.truncate(world.tree / path, 0)
    assert refusal.value.errno == errno.EACCES


def test_nothing_can_be_made_or_removed(world: World) -> None:
    world.admit(ID)
    world.serve()
    for attempt in (
        (world.tree / "new").mkdir,
        lambda: (world.tree / "new").write_text("1"),
        (world.tree / "version").unlink,
        (world.tree / "0" / ID[:12]).rmdir,
        lambda: (world.tree / "version").chmod(0o777),
    ):
        with pytest.raises(PermissionError):
            attempt()


def test_who_comes_and_goes_is_there_and_gone(world: World) -> None:
    """A container's folder is there as soon as the server knows of it; two with one beginning."""
    world.admit(ID)
    world.serve()
    other = ID[:12] + "f" * 52
    world.admit(other)
    wait_until((world.tree / "0" / other).is_dir, "the folder has the whole id")
    assert world.read("inst_ctl") == f"{ID} 0\n{other} 0\n"
    world.registry.remove(other)
    assert world.write("inst_ctl", "reap") == ""
    assert world.read("inst_ctl") == f"{ID[:12]} 0\n"
    assert world.read(f"0/{ID[:12]}/id") == f"{ID}\n"


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
    assert world.write("upgrade", "1") == ""
    wait_until(lambda: world.is_served_by(server.pid), "it serves again")
    assert world.read(f"0/{ID[:12]}/weight") == "4\n"
    assert output(server).count("serving path=") == 2


def test_the_server_does_not_go_back_by_itself(world: World) -> None:
    """It may be confined, so the command is named that can."""
    server = world.serve()
    assert "Invalid argument" in world.write("upgrade", "back")
    assert "cgpu upgrade --back" in output(server)


def test_many_readers_at_once_each_get_the_whole(world: World) -> None:
    world.admit(ID)
    world.serve()
    wrong: list[str] = []

    def look() -> None:
        for _ in range(20):
            text = world.read(f"0/{ID[:12]}/meminfo")
            if text != f"Free: {MIB}\n":
                wrong.append(text)

    readers = [threading.Thread(target=look) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []


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


def whole_blocks(size: int) -> int:
    """What a program is shown as free: the driver takes memory in blocks of 2 MiB."""
    return size // (2 * MIB) * (2 * MIB)


def test_a_changed_cap_holds_for_a_program_that_runs(world: World) -> None:
    """MEM-8, TREE-1: what it holds stays its own, what it asks for is judged by the new cap."""
    machine = cgpu_run_world.World()
    world.state = machine.state
    machine.state.mkdir(mode=0o700)
    server = world.serve("--driver-dir", str(machine.driver))
    program = machine.start("--mem", "6/15", "--", sys.executable, "-I", FOLLOW, machine.driver)

    def ask(line: str) -> list[int]:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"{line}\n")
        program.stdin.flush()
        return [int(word) for word in program.stdout.readline().split()]

    free, total = ask("info")
    assert total == int(world.read(f"0/{machine.sessions()[0]}/memsize"))
    assert ask(f"take {100 * MIB}") == [0]
    name = f"0/{machine.sessions()[0]}"
    meminfo = world.read(f"{name}/meminfo").splitlines()
    held = int(meminfo[1].split()[-1])
    assert meminfo == [f"Free: {total - held}", f"PID: {program.pid} Mem: {held}"]
    assert whole_blocks(total - held) == free - 100 * MIB
    for cap, status in ((held + MIB, OUT_OF_MEMORY), (held - MIB, OUT_OF_MEMORY), (total, 0)):
        assert world.write(f"{name}/memsize", str(cap)) == ""
        assert ask("info") == [whole_blocks(max(0, cap - held)), cap]
        assert ask(f"take {2 * MIB}") == [status]
    assert ask("free") == [0]
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()
    server.terminate()
    server.wait(20)


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
