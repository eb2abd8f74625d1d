"""cgpu-run, cgpu get and cgpu set with the server behind them (CLI-2, SCH-9)."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pytest

import cgpu_native
from cgpu_node.settings.rules import DEFAULT_ALLOWED, format_allowed
from lab.runs.packages import ensure_packages
from lab.worlds.cgpu_run import PROGRAMS, World
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration
MEM = ("--mem", "6/15")
SLEEP = ("--", "sleep", "60")
ANY_POLICY = format_allowed("policy")
NO_SETTING = "there is no such setting:"
EACH_HAS = (
    "a GPU has max_inst, policy, prio_ratio; a container has weight, highprio, memsize;"
    " the node has default_memsize, inst_ctl, upgrade"
)
_NONE = "cgpu: 'none': no such GPU or container: cgpu get shows all, cgpu ls what they have\n"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def session(world: World) -> Iterator[str]:
    """A session of weight 3, which the server knows."""
    running = world.start(*MEM, "--weight", "3", "--high-prio", "--policy", "2", *SLEEP)
    wait_until(lambda: _is_arbitrated(world), "it is arbitrated")
    yield world.sessions()[0]
    running.kill()
    running.communicate()


def _is_arbitrated(world: World) -> bool:
    try:
        (name,) = world.sessions()
        page = cgpu_native.read_limits(world.state / "containers" / name / "limits")
    except (ValueError, OSError, cgpu_native.FormatError):  # not admitted yet
        return False
    return time.monotonic_ns() - page.gpus[0].heartbeat_ns < 1_000_000_000


def cgpu(world: World, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cgpu_cli.main", name, "--driver-dir", str(world.driver)]
    return world.run_command(world.as_user([*words, *world.flags(), *arguments]))


def get(world: World, *arguments: str) -> dict[str, Any]:
    done = cgpu(world, "get", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("root", [True, False])
def test_a_program_is_arbitrated_without_an_extra_command(*, root: bool) -> None:
    """CLI-2, REL-2: also for a user without root."""
    world = World(root=root)
    running = world.start(*MEM, *SLEEP)
    wait_until(lambda: _is_arbitrated(world), "it is arbitrated")
    running.kill()
    running.communicate()
    world.wait_until_empty()


def test_a_program_finds_no_child_that_it_did_not_make(world: World) -> None:
    code = "import os, time; time.sleep(0.5); os.wait()"
    done = world.run(*MEM, "--", sys.executable, "-I", "-c", code)
    assert "ChildProcessError" in done.stderr


def test_weight_priority_and_policy_of_the_command_line_hold(world: World, session: str) -> None:
    """CLI-2, ENV-6, ENV-7."""
    output = get(world)
    (seen,) = output["containers"]
    assert (seen["id"], seen["weight"], seen["high_priority"]) == (session, 3, True)
    assert (output["gpus"][0]["policy"], output["gpus"][0]["free_weight"]) == (2, 17)
    other = world.run(*MEM, "--policy", "1", "--", "true")
    assert other.returncode == 2
    assert f"--policy 1: GPU 0 is under policy 2 while {session} runs" in other.stderr


def test_set_changes_a_gpu_and_a_container(world: World, session: str) -> None:
    """SCH-9."""
    assert cgpu(world, "set", session, "weight=5", "highprio=0").returncode == 0
    given = ("policy=1", "policy=3", "max_inst=10", "prio_ratio=60")  # the last one counts
    assert cgpu(world, "set", "0", *given).returncode == 0
    lines = cgpu(world, "get").stdout.splitlines()
    assert "policy=3 max_inst=10 prio_ratio=60 free_weight=5 containers=1" in lines[0]
    assert lines[1].startswith(f"{session}  weight=5 highprio=0  GPU 0 limit=")
    assert [c["weight"] for c in get(world, session[:6])["containers"]] == [5]
    assert get(world, "0")["containers"] == []
    smi = world.smi()
    assert (smi["gpus"][0]["policy_name"], smi["gpus"][0]["max_inst"]) == ("fixed", 10)
    wait_until(lambda: world.smi()["containers"][0]["gpus"][0]["limit_percent"] == 50, "in force")


def test_a_cap_below_what_is_held_is_set_and_said(world: World) -> None:
    """MEM-8."""
    running = world.start(*MEM, "--", sys.executable, "-I", PROGRAMS / "hold.py")
    assert running.stdout is not None
    assert running.stdout.readline() == "held\n"
    (name,) = world.sessions()
    done = cgpu(world, "set", name, "memsize=50MiB")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(
        r"cgpu: note: GPU 0: it holds (\d+)MiB, (\d+)MiB above its cap; it keeps them, and its"
        r" requests are refused until it holds less than the cap\n",
        done.stderr,
    )
    assert cgpu(world, "set", name, "memsize=6GiB").stderr == ""
    running.communicate("\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["0", "policy=9"], f"cgpu: policy=9: expected {ANY_POLICY}"),
        (
            ["all", "policy=fixd"],
            f"cgpu: policy=fixd: expected {ANY_POLICY}: did you mean fixed?",
        ),
        (["all", "max_inst=fixed"], "cgpu: max_inst=fixed: expected a whole number from 1 to 25"),
        (["all", "weight=2"], f"cgpu: set all weight: {EACH_HAS}"),
        (["0", "policy"], "cgpu: policy: expected NAME=VALUE, such as weight=4"),
        (["0", "polcy=2"], f"cgpu: set polcy: {NO_SETTING} did you mean policy?"),
        (["0", "policy=1", "wieght=2"], f"cgpu: set wieght: {NO_SETTING} did you mean weight?"),
        (["0", "color=2"], f"cgpu: set color: {NO_SETTING} {EACH_HAS}"),
        (["0", "policy=1", "weight=2"], f"cgpu: set 0 policy, weight: {EACH_HAS}"),
        (["0", "policy=-1"], f"cgpu: policy=-1: expected {ANY_POLICY}"),
        (
            ["node", "default_memsize=1.5GiB"],
            f"cgpu: default_memsize=1.5GiB: 1.5 is not a whole number: expected {DEFAULT_ALLOWED}",
        ),
        (["0", "policy=1GiB"], f"cgpu: policy=1GiB: expected {ANY_POLICY}"),
        (["7", "policy=1"], "cgpu: '7': no such GPU: expected index or UUID; this node has GPU 0"),
        (["none", "weight=1"], "cgpu: 'none': no such container or session: cgpu get lists them"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_sentence(
    world: World, arguments: list[str], sentence: str
) -> None:
    """SCH-9: also where no server runs yet."""
    done = cgpu(world, "set", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{sentence}\n"


def test_get_of_something_that_is_not_there_is_one_sentence(world: World) -> None:
    done = cgpu(world, "get", "none")
    assert (done.returncode, done.stderr) == (2, _NONE)


def test_the_tree_is_shown_and_changed_without_being_mounted(world: World, session: str) -> None:
    """TREE-4, MEM-8: the same words, and as JSON."""
    assert cgpu(world, "ls").stdout.split() == [
        *("0/", "default_memsize", "inst_ctl", "upgrade", "version"),
    ]
    assert cgpu(world, "ls", "0").stdout.split()[0] == f"{session}/"
    listed = json.loads(cgpu(world, "ls", "--json", f"0/{session}").stdout)
    assert listed["names"] == ["highprio", "id", "memsize", "meminfo", "weight"]
    assert listed["folders"] == []
    below = cgpu(world, "ls", "-R").stdout.split("\n\n")
    assert [block.split()[0] for block in below] == ["/:", "0:", f"0/{session}:"]
    assert below[1].split()[1:] == cgpu(world, "ls", "0").stdout.split()
    assert below[2].split()[1:] == listed["names"]
    everything = json.loads(cgpu(world, "ls", "-R", "--json", "/0").stdout)["listing"]
    assert [*everything] == ["0", f"0/{session}"]
    assert everything[f"0/{session}"]["names"] == listed["names"]
    assert cgpu(world, "set", session, "memsize=4194304").returncode == 0
    assert cgpu(world, "set", f"0/{session}", "memsize=8388608", "weight=2").returncode == 0
    done = cgpu(world, "set", session, "memsize=2GB")
    assert done.stderr.startswith("cgpu: memsize=2GB: there is no unit GB: expected from 1MiB to ")
    assert cgpu(world, "set", session, "memsize=2GiB").returncode == 0
    assert cgpu(world, "get", f"0/{session}/memsize").stdout == f"{2 << 30}\n"
    assert cgpu(world, "set", session, "memsize=8388608").returncode == 0
    assert cgpu(world, "set", "node", "default_memsize=7MiB", "inst_ctl=reap").returncode == 0
    assert cgpu(world, "get", f"0/{session}/memsize").stdout == "8388608\n"
    assert cgpu(world, "get", f"0/{session}/meminfo").stdout == "Free: 8388608\n"
    assert cgpu(world, "get", "default_memsize").stdout == f"{7 << 20}\n"
    assert cgpu(world, "get", "node").stdout.startswith(f"default_memsize: {7 << 20}\ninst_ctl: ")
    assert (
        f"id: {session}\nmemsize: 8388608\nmeminfo: Free: 8388608\n"
        in cgpu(world, "get", f"0/{session}").stdout
    )
    assert get(world, "0/policy")["value"] == "2"
    assert get(world, "0/")["values"]["free_weight"] == "18"
    for path, name, folder in (
        ("0/none", "0/none", " 0"),
        ("1/", "1", ""),
        ("0/x/y", "0/x/y", " 0"),
    ):
        output = f"cgpu: {name!r}: no such node: cgpu ls{folder} lists what is there\n"
        assert cgpu(world, "get", path).stderr == output


def test_everything_the_tree_shows_is_in_the_json(world: World, session: str) -> None:
    """TREE-4."""
    output = get(world)
    (gpu,), (container,) = output["gpus"], output["containers"]
    (place,) = container["gpus"]
    shown = {
        **{name: gpu[name] for name in ("free_weight", "major", "max_inst", "policy")},
        "prio_ratio": gpu["prio_ratio"],
        "id": container["id"],
        "weight": container["weight"],
        "highprio": int(container["high_priority"]),
        "memsize": place["cap_bytes"],
        "meminfo": f"Free: {place['free_bytes']}",
        "default_memsize": output["node"]["default_memsize"],
        "version": output["node"]["version"],
        "inst_ctl": f"{session} {place['index']}",
        "upgrade": f"Running: {output['node']['version']}\nInstalled: {output['node']['installed']}"
        f"\nBack: {output['node']['back'] or 'none'}\nOlder: {output['node']['older']}",
    }
    tree = {}
    for folder in ("/", "0/", f"0/{session}"):
        tree.update(get(world, folder)["values"])
    assert tree == {name: str(value) for name, value in shown.items()}


# What is there to be named; whatever else is asked of it, it says what it was called with.
STAND_IN = """
cgpu() {
    if [ "$*" = "completion targets" ]; then printf 'node\\n0\\nabcdef\\n'; else echo "ran:$*:"; fi
}
"""
STAND_IN_OF = {
    "bash": STAND_IN,
    "zsh": STAND_IN,
    "fish": """
function cgpu
    test "$argv" = "completion targets"; and printf 'node\\n0\\nabcdef\\n'
end
""",
}


def _bash(script: str, typed: str) -> list[str]:
    words = " ".join(map(repr, typed.split(" ")))
    last = len(typed.split(" ")) - 1
    function = f"_shtab_{typed.split(maxsplit=1)[0].replace('-', '_')}"
    ask = f'COMP_WORDS=({words}); COMP_CWORD={last}; {function}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, check=True)
    return done.stdout.decode().split()


def _fish(script: str, typed: str) -> list[str]:
    ask = f"complete -C {typed!r} | cut -f1"
    done = subprocess.run(["fish", "-c", f"{script}\n{ask}"], capture_output=True, check=True)
    return done.stdout.decode().split()


def _zsh(script: str, typed: str) -> list[str]:
    """Its completion needs a terminal: what the words typed became is what the command got."""
    ours, theirs = pty.openpty()
    with tempfile.NamedTemporaryFile("w", suffix=".zsh") as file:
        file.write(f"PS1=; autoload -Uz compinit; compinit -u -D\n{script}\nprint -r re''ady\n")
        file.flush()
        flags = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        shell = subprocess.Popen(["zsh", "-f", "-i"], env={**os.environ, "TERM": "dumb"}, **flags)
        os.close(theirs)
        os.write(ours, f"source {file.name}\n".encode())
        _read_until(ours, b"ready")
        os.write(ours, f"{typed}\t\n".encode())
        output = _read_until(ours, b":\r\n").decode()
    os.write(ours, b"exit\n")
    shell.wait(20)
    os.close(ours)
    return [output.rpartition("ran:")[2].partition(":")[0].split(" ")[-1]]


def _read_until(end: int, what: bytes) -> bytes:
    found = b""
    while what not in found:
        assert select.select([end], [], [], 20)[0], found
        found += os.read(end, 4096)
    return found


@pytest.mark.parametrize("complete", [_bash, _zsh, _fish])
def test_a_shell_completes_commands_and_what_they_can_name(
    world: World, complete: Callable[[str, str], list[str]]
) -> None:
    """TREE-4."""
    ensure_packages()
    shell = complete.__name__.removeprefix("_")
    script = cgpu(world, "completion", shell)
    assert (script.returncode, script.stderr) == (0, "")
    evaluated = f"eval {shlex.quote(script.stdout)}" if shell == "zsh" else script.stdout
    ours = f"{STAND_IN_OF[shell]}\n{evaluated}"
    assert complete(ours, "cgpu uni") == ["uninstall"]
    assert complete(ours, "cgpu get no") == ["node"]
    assert complete(ours, "cgpu set ab") == ["abcdef"]
    assert complete(ours, "cgpu ls --js") == ["--json"]
    assert complete(ours, "cgpu install cont") == ["containerd"]
    assert complete(ours, "cgpu help doc") == ["doctor"]
    assert complete(ours, "cgpu set all policy=fi") == ["policy=fixed"]
    if complete is not _zsh:  # whose stand-in speaks for cgpu only
        assert complete(ours, "cgpu-smi --query-g") == ["--query-gpu"]
        assert complete(ours, "cgpu-run --high") == ["--high-prio"]
        assert complete(ours, "cgpu-run --policy weighted-f") == ["weighted-fair"]
        assert complete(ours, "cgpud --idle") == ["--idle-exit"]
    if complete is _bash:  # which takes what = divides for three words
        assert complete(ours, "cgpu set 0 policy = fi") == ["fixed"]
        assert complete(ours, "cgpu set 0 policy =")[:2] == ["fair-share", "preemptive"]


def test_what_can_be_named_is_told_without_starting_a_server(world: World, session: str) -> None:
    assert cgpu(world, "completion", "targets").stdout.split() == [
        "node",
        "all",
        "0",
        session,
        "sleep",
    ]
    empty = World()
    assert cgpu(empty, "completion", "targets").returncode == 2
    assert not (empty.state / "cgpud.sock").exists()


@pytest.mark.parametrize("words", [[], ["all"], ["0"], ["--json"]])
def test_get_without_any_gpu_is_refused_as_cgpu_smi_is(words: list[str]) -> None:
    world = World()
    command = [sys.executable, "-m", "cgpu_cli.main", "get", *world.flags()]
    done = world.run_command([*command, *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cgpu: no GPU is known here\n  cgpu doctor says why\n"
    assert world.run_command([*command, "node"]).returncode == 0


@pytest.mark.parametrize("how", ["get", "smi"])
def test_a_server_that_found_no_driver_takes_the_one_that_is_named(how: str) -> None:
    """CLI-8: it was started by a command that named none, and would answer for the others."""
    world = World()
    words = [sys.executable, "-m", "cgpu_cli.main", "set", "0", "policy=2", *world.flags()]
    refused = world.run_command(words)
    assert refused.stderr == (
        "cgpu: '0': no such GPU: expected index or UUID; this node has no GPU\n"
        "  cgpu doctor says why\n"
    )
    output = get(world) if how == "get" else world.smi()
    assert [gpu["index"] for gpu in output["gpus"]] == [0]
    assert cgpu(world, "set", "0", "policy=2").returncode == 0
    assert get(world)["gpus"][0]["policy"] == 2


def test_directories_are_named_by_variables_and_before_the_command_too() -> None:
    """CLI-8: by option before the command, after it, or in the environment; options go first."""
    world = World()
    driver, state = str(world.driver), str(world.state)
    cgpu_words = [sys.executable, "-m", "cgpu_cli.main"]
    smi = [sys.executable, "-m", "cgpu_cli.smi", "--json"]
    run = [sys.executable, "-m", "cgpu_cli.run", *MEM, "--", "true"]
    named = world.environment(CGPU_DRIVER_DIR=driver, CGPU_STATE_DIR=state)
    before = ["--driver-dir", driver, "--state-dir", state]
    wrong = world.environment(CGPU_DRIVER_DIR="/nowhere", CGPU_STATE_DIR="/proc/nowhere")
    for words, environment in (
        ([*cgpu_words, "get", "--json"], named),
        ([*cgpu_words, *before, "get", "--json"], wrong),
        ([*cgpu_words, "get", "--json", *before], wrong),
        (smi, named),
        ([*smi, *before], wrong),
    ):
        done = world.run_command(words, env=environment)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["gpus"]) == 1
    done = world.run_command(run, env=named)
    assert done.returncode == 0, done.stderr
    assert (world.state / "containers").is_dir(), "cgpu-run keeps its state there too"
