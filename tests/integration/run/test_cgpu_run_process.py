"""``cgpu-run`` becomes its program: nothing of ours is left in it (CLI-2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab.worlds.cgpu_run import World

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SHARE = ("--mem", "6/15", "--")
INSIDE = "already inside a cgpu container or session: a share is not divided"
LIBC_SIGNALS = 3 << 31  # 32 and 33, the C library's own: make leaves them ignored in what it starts


def ignored_signals(status: str) -> int:
    """The signals that the program ignored, one bit each, from its ``/proc/self/status``."""
    line = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return int(line.split()[1], 16) & ~LIBC_SIGNALS


@pytest.fixture(autouse=True)
def signals_as_usual() -> Iterator[None]:
    """Whoever started the tests in the background had them ignore a signal or two."""
    kept = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself, and not in a child
    ignored = [s for s in signal.valid_signals() - kept if signal.getsignal(s) is signal.SIG_IGN]
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.fixture(params=["root", "user"])
def world(request: pytest.FixtureRequest) -> World:
    return World(root=request.param == "root")


def test_the_exit_status_is_the_programs(world: World) -> None:
    """CLI-2."""
    assert world.run(*SHARE, "sh", "-c", "exit 7").returncode == 7
    assert world.run(*SHARE, "true").returncode == 0


def test_a_signal_that_kills_the_program_kills_our_process(world: World) -> None:
    process = world.start(*SHARE, "sh", "-c", "echo; read wait")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_the_program_has_our_pid_and_no_child(world: World) -> None:
    script = "echo $$; read children < /proc/$$/task/$$/children; echo children: $children"
    process = world.start(*SHARE, "sh", "-c", script)
    out, _ = process.communicate()
    assert out == f"{process.pid}\nchildren:\n"


def test_the_environment_gets_three_variables_and_nothing_else() -> None:
    world = World()
    before = world.environment(LC_ALL="C", KEPT="a=b")
    out = world.run(*SHARE, "env", "-0", env=before).stdout
    after = dict(entry.split("=", 1) for entry in out.split("\0") if entry)
    added = {name: value for name, value in after.items() if before.get(name) != value}
    assert sorted(added) == ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"]
    assert set(before) <= set(after)
    assert (added["CUDA_VISIBLE_DEVICES"], added["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")
    assert added["LD_LIBRARY_PATH"].split(":")[0] == str(world.driver)


def test_no_open_file_and_no_ignored_signal_is_left(world: World) -> None:
    script = "ls -l /proc/self/fd; grep SigIgn /proc/self/status"
    process = world.start(*SHARE, "sh", "-c", script)
    out, err = process.communicate()
    assert err == ""
    assert [line.split(" -> ")[0].split()[-1] for line in out.splitlines() if " -> " in line] == [
        "0",
        "1",
        "2",
        "3",  # ls itself
    ]
    assert ignored_signals(out) == 0


def test_signals_that_were_ignored_stay_ignored(world: World) -> None:
    """As ``nohup`` and a shell's background jobs want it, with cgpu-run as without."""
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    words = world.command(*world.flags(), *SHARE, "grep", "SigIgn", "/proc/self/status")
    done = world.run_command(["sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh", *words])
    assert ignored_signals(done.stdout) == sum(1 << (number - 1) for number in ignored)


def test_where_the_end_of_children_is_ignored_it_stays_so(world: World) -> None:
    """As some supervisors start programs; the kernel then reaps the keeper's parent by itself."""
    words = world.cgpu_run(*world.flags(), *SHARE, "grep", "SigIgn", "/proc/self/status")
    done = world.run_command(world.as_user(["env", "--ignore-signal=CHLD", *words]))
    assert done.stderr == ""
    assert ignored_signals(done.stdout) == 1 << (signal.SIGCHLD - 1)


def has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):  # it opens and closes files meanwhile
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_an_interrupt_while_waiting_for_admission_ends_us_without_a_traceback() -> None:
    world = World()
    world.run(*SHARE, "true")
    world.wait_until_empty()
    with (world.state / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = world.start(*SHARE, "sleep", "60")
        while not has_open(process.pid, world.state / "lock"):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (-signal.SIGINT, "")


def test_open_files_of_the_caller_reach_the_program(tmp_path: Path) -> None:
    world = World()
    words = world.command(*world.flags(), *SHARE, "sh", "-c", "read line <&7; echo got $line")
    (tmp_path / "file").write_text("it\n")
    done = world.run_command(["sh", "-c", f'exec 7<{tmp_path}/file; exec "$@"', "sh", *words])
    assert done.stdout == "got it\n"


def test_a_state_directory_with_too_long_a_name_is_refused() -> None:
    world = World()
    long = world.state.parent / ("x" * 200)
    done = world.run_command(world.command("--state-dir", long, *SHARE, "true"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"cgpu-run: base directory {long}/")
    assert done.stderr.endswith(": longer than 209 bytes\n")


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_the_umask_is_the_callers_and_the_session_is_readable_all_the_same(mask: int) -> None:
    world = World()
    script = f"umask; setpriv --reuid 65534 --clear-groups cat {world.state}/real/* > /dev/null"
    before = os.umask(mask)
    try:
        done = world.run(*SHARE, "sh", "-c", script)
    finally:
        os.umask(before)
    assert done.stdout.strip() == f"{mask:04o}"
    assert "denied" not in done.stderr


def test_a_program_that_cannot_be_run_is_told_as_env_tells_it(world: World) -> None:
    missing = world.run(*SHARE, "no-such-program")
    assert (missing.returncode, missing.stderr) == (
        127,
        "cgpu-run: no-such-program: No such file or directory\n",
    )
    forbidden = world.run(*SHARE, "/etc/passwd")
    assert (forbidden.returncode, forbidden.stderr) == (
        126,
        "cgpu-run: /etc/passwd: Permission denied\n",
    )
    world.wait_until_empty()


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(world: World) -> None:
    script = world.folder / "script"
    script.write_text("echo $1 $0\n")
    script.chmod(0o755)
    assert world.run(*SHARE, script, "x").stdout == f"x {script}\n"


def test_options_end_where_the_program_begins(world: World) -> None:
    done = world.run("--mem=6/15", "echo", "--mem", "--help", "--")
    assert done.stdout == "--mem --help --\n"


def test_another_session_and_the_state_directory_are_out_of_sight(world: World) -> None:
    """REL-5."""
    other = world.start("--mem", "3/15", "--", "sh", "-c", "echo; read wait")
    assert other.stdout is not None
    other.stdout.readline()
    (name,) = world.sessions()
    look = f"ls {world.state}; find {world.folder} /dev /run -name '{name}*'"
    done = world.run(*SHARE, "sh", "-c", f"{look}; grep {name} /proc/self/mountinfo")
    seen = ["bind-this-directory-into-the-sandbox", "ledger", "lib", "limits", "masked", "real"]
    assert sorted(done.stdout.split()) == seen
    other.communicate("\n")


def test_the_program_cannot_change_its_limits(world: World) -> None:
    """REL-5."""
    limits = world.state / "limits"
    done = world.run(*SHARE, "sh", "-c", f"chmod 666 {limits}; echo x > {limits}; rm -f {limits}")
    assert done.returncode != 0
    assert done.stderr.count("Read-only file system") + done.stderr.count("denied") >= 2


@pytest.mark.parametrize("how", ["umount", "unshare -Urm umount"])
def test_a_user_cannot_uncover_the_driver(how: str) -> None:
    """REL-6."""
    world = World(root=False)
    library = world.driver / "libcuda.so.1"
    done = world.run(*SHARE, "sh", "-c", f"{how} {library} 2>/dev/null; stat -c %s {library}")
    assert int(done.stdout) != library.stat().st_size


def test_a_root_without_rights_cannot_uncover_the_driver() -> None:
    """REL-6: as root is in most containers."""
    world = World()
    library = world.driver / "libcuda.so.1"
    uncover = f"for u in 'umount' 'unshare -Urm umount'; do $u {library}; done 2>/dev/null"
    command = world.command(*world.flags(), *SHARE, "sh", "-c", f"{uncover}; stat -c %s {library}")
    done = world.run_command(["setpriv", "--bounding-set=-sys_admin", *command])
    assert done.stderr == ""
    assert int(done.stdout) != library.stat().st_size


def test_mounts_do_not_reach_a_host_that_shares_its_mounts() -> None:
    """REL-3: most hosts do, systemd makes it so."""
    world = World()
    words = world.command(*world.flags(), *SHARE, "sh", "-c", "cat /proc/$PPID/mountinfo")
    script = 'mount --make-rshared /; cat /proc/self/mountinfo; echo with; "$@"; true'
    done = world.run_command(["unshare", "-m", "sh", "-c", script, "sh", *words])
    before, during = done.stdout.split("with\n")
    assert "shared:" in before
    assert during == before


@pytest.mark.parametrize(
    "words",
    [["cgpu_cli.run", *SHARE, "true"], ["cgpu_cli.smi"], ["cgpu_cli.main", "get"]],
)
def test_a_session_is_no_node_of_its_own(words: list[str]) -> None:
    """Its state directory is the session's, and there is no server."""
    world = World()
    program, *rest = words
    named = ["--driver-dir", str(world.driver), *world.flags()]
    done = world.run(*SHARE, sys.executable, "-m", program, *named, *rest)
    assert done.returncode == 2
    sentence, hint = done.stderr.splitlines()
    assert sentence.partition(": ")[2] == INSIDE
    assert hint == "  run this outside; nvidia-smi shows the share from inside"


def test_a_session_within_a_session_is_refused(world: World) -> None:
    inner = [sys.executable, "-m", "cgpu_cli.run", "--driver-dir", world.driver, *SHARE, "true"]
    state = ["env", f"XDG_RUNTIME_DIR={world.folder}/inner"]
    (world.folder / "inner").mkdir()
    (world.folder / "inner").chmod(0o777)
    flags = ["--state-dir", f"{world.folder}/inner/cgpu"]
    done = world.run(*SHARE, *state, *inner[:3], *flags, *inner[3:])
    assert done.returncode == 2
    assert done.stderr.startswith(f"cgpu-run: {INSIDE}\n")
