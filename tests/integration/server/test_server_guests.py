"""Sessions of users in the account of the whole node (CLI-2).

By a server as ``cgpud`` is started, and by one that systemd confines.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_cli.running.guest import APART
from cgpu_node import client
from cgpu_node.shares.record import guest_of
from lab.machine import hostile_users
from lab.worlds.cgpu_run import CAP_SIX, NOBODY, Node
from lab.worlds.server import is_arbitrated, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration
SLEEP = ("--", "sleep", "60")
TESLA_T4_BYTES = 15109 << 20


@pytest.fixture(params=[False, True], ids=["started", "service"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(service=request.param)
    yield made
    made.end()


def test_a_users_program_is_in_the_same_account_as_roots(node: Node) -> None:
    """CLI-2: memory, weights and time of a GPU are added up over all."""
    running = node.user.start("--mem", "9/15", "--weight", "7", *SLEEP)
    wait_until(lambda: _admitted(node), "it is admitted")
    (name,) = _admitted(node)
    directory = node.root.state / "containers" / name
    wait_until(lambda: is_arbitrated(directory), "it is arbitrated")
    assert guest_of(str(directory)) == NOBODY
    assert node.user.sessions() == [], "it has no account of its own"
    (seen,) = node.status()["containers"]
    assert (seen["id"], seen["weight"]) == (name, 7)
    assert node.root.smi()["gpus"][0]["free_weight"] == 13
    refused = node.root.run("--mem", "7/15", "--", "true")
    assert "--mem 7/15: 7050 MiB asked on GPU 0, where 6043 of" in refused.stderr
    running.kill()
    running.communicate()
    wait_until(lambda: node.root.sessions() == [], "its share is given back")


def test_a_users_program_is_capped_by_what_the_server_wrote(node: Node) -> None:
    """CLI-2, MEM-1."""
    answer = node.user.fill()
    assert answer["total"] == CAP_SIX


def _cgpu(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the user's."""
    words = [sys.executable, "-m", "cgpu_cli.main", *arguments]
    return node.user.run_command(node.user.as_user(words))


def _smi(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """cgpu-smi of the user's."""
    driver = ("--driver-dir", str(node.user.driver))
    words = [sys.executable, "-m", "cgpu_cli.smi", *driver, *arguments]
    return node.user.run_command(node.user.as_user(words))


def _admitted(node: Node) -> set[str]:
    """The sessions in root's account that are complete."""
    return {name for name in node.root.sessions() if not name.startswith(".")}


def test_a_user_sees_and_changes_their_own_session_only(node: Node) -> None:
    """TREE-4, MEM-8: as root does, beside what others hold."""
    others = node.root.start("--mem", "8/15", *SLEEP)
    wait_until(lambda: len(_admitted(node)) == 1, "root's is admitted")
    (theirs,) = _admitted(node)
    running = node.user.start("--mem", "6/15", *SLEEP)
    wait_until(lambda: len(_admitted(node)) == 2, "the user's is admitted")
    (own,) = _admitted(node) - {theirs}
    shown = json.loads(_cgpu(node, "get", "--json").stdout)
    assert [container["id"] for container in shown["containers"]] == [own]
    assert f"{own}/" in _cgpu(node, "ls", "0").stdout.split()
    assert theirs not in _cgpu(node, "ls", "0").stdout + _cgpu(node, "get", "inst_ctl").stdout
    assert _cgpu(node, "set", own, "weight=3", "memsize=4194304").stderr == ""
    assert _cgpu(node, "get", f"0/{own}/memsize").stdout == "4194304\n"
    free = 7 * TESLA_T4_BYTES // 15
    refusal = _cgpu(node, "set", own, f"memsize={free + (1 << 20)}").stderr
    assert "MiB free beside the other containers" in refusal
    stranger = "cgpu: you are neither root nor the owner of the state directory\n"
    assert _cgpu(node, "set", "0", "policy=5").stderr == stranger
    assert _cgpu(node, "set", "node", "default_memsize=5").stderr == stranger
    missing = f"cgpu: {theirs!r}: no such container or session: cgpu get lists them\n"
    assert _cgpu(node, "set", theirs, "weight=1").stderr == missing
    for program in (running, others):
        program.kill()
        program.communicate()


def test_a_users_share_may_have_a_unit(node: Node) -> None:
    """CLI-2: root's server judges it, and its refusal repeats what was typed."""
    running = node.user.start("--mem", "40%", *SLEEP)
    wait_until(lambda: len(_admitted(node)) == 1, "it is admitted")
    (container,) = node.root.smi()["containers"]
    assert container["gpus"][0]["cap_bytes"] == TESLA_T4_BYTES * 2 // 5
    refused = node.user.run("--mem", "2GB", "--", "true")
    assert refused.stderr.startswith("cgpu-run: --mem 2GB: there is no unit GB: expected from 1MiB")
    refused = node.user.run("--mem", "10GiB", "--", "true")
    assert refused.stderr.startswith("cgpu-run: --mem 10GiB: 10240 MiB asked on GPU 0, where")
    running.kill()
    running.communicate()


@pytest.fixture
def beside(node: Node) -> Iterator[tuple[str, str]]:
    """A session of root's and one of the user's on the same GPU: their ids."""
    program = ("--", "sh", "-c", "exec sleep 60 # secret")
    others = node.root.start("--mem", "8/15", "--weight", "4", "--policy", "2", *program)
    wait_until(lambda: len(_admitted(node)) == 1, "root's is admitted")
    (theirs,) = _admitted(node)
    running = node.user.start("--mem", "6/15", "--weight", "3", *SLEEP)
    wait_until(lambda: len(_admitted(node)) == 2, "the user's is admitted")
    (own,) = _admitted(node) - {theirs}
    yield theirs, own
    for program_run in (running, others):
        program_run.kill()
        program_run.communicate()


def test_a_users_smi_tells_the_truth_about_the_node_and_nothing_more(
    node: Node, beside: tuple[str, str]
) -> None:
    """CLI-3, REL-5: own sessions in full, GPUs' totals, all others as one entry."""
    theirs, own = beside
    output = node.user.smi()
    root = node.root.smi()
    assert [each["id"] for each in output["containers"]] == [own]
    (full,) = (each for each in root["containers"] if each["id"] == own)
    for one, other in zip(full["gpus"], output["containers"][0]["gpus"], strict=True):
        assert one["cap_bytes"] == other["cap_bytes"]
        assert one["limit_percent"] == other["limit_percent"]
    gpu = output["gpus"][0]
    for key in ("promised_bytes", "free_weight", "policy", "max_inst", "prio_ratio"):
        assert gpu[key] == root["gpus"][0][key], key
    assert (gpu["policy"], gpu["free_weight"], gpu["containers"]) == (2, 13, 2)
    assert gpu["promised_bytes"] == TESLA_T4_BYTES * 8 // 15 + TESLA_T4_BYTES * 6 // 15
    others = gpu["others"]
    assert (others["containers"], others["weight"]) == (1, 4)
    assert others["cap_bytes"] == TESLA_T4_BYTES * 8 // 15
    assert root["gpus"][0]["others"] is None, "root sees each of them"
    for form in ([], ["-q"], ["--json"]):
        done = _smi(node, *form)
        assert done.stderr == ""
        assert own[:12] in done.stdout
        assert theirs[:8] not in done.stdout
        assert "secret" not in done.stdout


def test_a_users_table_has_one_line_for_all_others(node: Node, beside: tuple[str, str]) -> None:
    """CLI-3, CLI-5: in cgpu-smi and in cgpu top."""
    _, own = beside
    output = _smi(node).stdout
    assert "2 of 20 containers, weight 7 of 20, 14101MiB of 15109MiB promised" in output
    assert "policy 2 (weighted preemptive)" in output
    (line,) = (line for line in output.splitlines() if "1 other" in line)
    assert "0MiB / 8058MiB" in line
    drawing = node.user.folder / "top.svg"
    drawing.touch(mode=0o666)
    drawing.chmod(0o666)
    done = _cgpu(node, "top", "--driver-dir", str(node.user.driver), "--svg", str(drawing))
    assert done.returncode == 0, done.stderr
    drawn = drawing.read_text(encoding="utf-8").replace("&#160;", " ")
    assert "2 of 20 containers" in drawn
    assert own[:12] in drawn
    assert "1 other" in drawn


def test_a_user_is_told_of_sessions_in_an_account_of_their_own(node: Node) -> None:
    """CLI-2: they are not in the node's account, and are not passed over in silence."""
    alone = node.user.start("--no-namespaces", "--mem", "1/15", *SLEEP)
    wait_until(node.user.sessions, "it is admitted to the user's own account")
    output = _smi(node).stdout
    assert "0 of 20 containers" in output
    state = node.user.state
    assert f"note: 1 more of yours in the account {state}: cgpu-smi --state-dir {state}" in output
    alone.kill()
    alone.communicate()


def test_roots_smi_does_without_a_server(node: Node) -> None:
    """CLI-3, REL-2: the files say as much."""
    running = node.root.start("--mem", "8/15", *SLEEP)
    wait_until(lambda: _admitted(node), "it is admitted")
    with_server = node.root.smi()
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        stopped = node.root.smi()
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    assert [each["id"] for each in stopped["containers"]] == node.root.sessions()
    assert stopped["gpus"][0]["promised_bytes"] == with_server["gpus"][0]["promised_bytes"]
    assert [note for note in stopped["notes"] if "is stopped and does not answer" in note]
    node.end()
    assert [each["id"] for each in node.root.smi()["containers"]] == node.root.sessions()
    running.kill()
    running.communicate()


def test_a_users_request_is_judged_by_the_same_rules(node: Node) -> None:
    """CLI-2, ENV-9."""
    keeper = node.root.start("--mem", "1/15", "--policy", "2", *SLEEP)
    wait_until(lambda: _admitted(node), "it is admitted")
    for flags, sentence in (
        (("--mem", "16/15"), "cgpu-run: --mem 16/15: "),
        (("--mem", "1/15", "--weight", "20"), "--weight 20: GPU 0 has 19 of 20 free"),
        (("--mem", "1/15", "--policy", "1"), "--policy 1: GPU 0 is under policy 2 while"),
    ):
        done = node.user.run(*flags, "--", "true")
        assert done.returncode == 2
        assert sentence in done.stderr
    keeper.kill()
    keeper.communicate()


def test_a_user_brings_no_policy_to_a_gpu_that_is_empty(node: Node) -> None:
    """Policy 0 gives each container a part of the time, and root's that come later would get it."""
    refused = node.user.run("--mem", "1/15", "--policy", "0", "--", "true")
    assert refused.returncode == 2
    sentence = "--policy 0: GPU 0 is under policy 6, which only root can change"
    assert sentence in refused.stderr
    running = node.user.start("--mem", "1/15", "--policy", "6", *SLEEP)
    wait_until(lambda: _admitted(node), "it is admitted")
    assert node.status()["gpus"][0]["policy"] == 6
    others = node.root.start("--mem", "1/15", *SLEEP)
    wait_until(lambda: len(_admitted(node)) == 2, "root's is, too")
    assert {each["policy"] for each in node.status()["containers"]} == {6}
    for process in (running, others):
        process.kill()
        process.communicate()


def test_what_a_user_left_running_keeps_the_session(node: Node) -> None:
    """REL-3: also without memory on the GPU."""
    script = "sleep 60 >&- 2>&- <&- & echo $!"
    done = node.user.run("--mem", "6/15", "--", "sh", "-c", script)
    pid = int(done.stdout)
    wait_until(lambda: len(node.status()["containers"]) == 1, "it is there", 3)
    for _ in range(2):
        node.server.ask({"request": "status"})
    assert len(node.root.sessions()) == 1
    os.kill(pid, 9)
    wait_until(lambda: node.root.sessions() == [], "its share is given back")


def test_a_user_reaches_their_own_pages_and_nobody_elses(node: Node) -> None:
    """REL-5."""
    running = [node.user.start("--mem", "1/15", *SLEEP), node.root.start("--mem", "1/15", *SLEEP)]
    pages = node.root.state / "containers"
    wait_until(
        lambda: {page.stat().st_uid for page in pages.glob("*/ledger")} == {0, NOBODY},
        "each has a ledger of their own",
    )
    modes = {}
    for name in node.root.sessions():
        for path in (node.root.state / "containers" / name, *_files(node, name)):
            facts = path.stat()
            modes[facts.st_uid, path.name.split("-")[0]] = stat.S_IMODE(facts.st_mode)
    assert modes[NOBODY, "ledger"] == 0o600
    assert modes[0, "record.json"] == 0o600
    assert modes[0, "limits"] == 0o644
    assert {m for (uid, name), m in modes.items() if name == "run"} <= {0o710, 0o700}
    others = [pages, node.root.state]
    for path in others:
        listing = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "ls", str(path)]
        assert subprocess.run(listing, capture_output=True, check=False).returncode != 0
    stranger = ["setpriv", "--reuid", "4242", "--regid", "4242", "--clear-groups"]
    for page in pages.glob("*/limits"):
        reading = [*stranger, "cat", str(page)]
        assert subprocess.run(reading, capture_output=True, check=False).returncode != 0
    for process in running:
        process.kill()
        process.communicate()


def _as_nobody(run: Callable[[], object]) -> int:
    """The exit status of a child of that user which does that: 0, or 1 with what was raised."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            run()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 (it is printed, and the child ends)
            os.write(2, f"{error}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_container_that_gives_its_ledger_to_a_user_is_not_theirs(
    node: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    """REL-5: its root may change whose file it is."""
    os.chown(node.server.admit("box") / "ledger", NOBODY, NOBODY)
    change = {"request": "set", "target": "box", "values": {"weight": 5}}
    assert _as_nobody(lambda: node.server.ask(change)) == 1
    assert "no such container" in capfd.readouterr().err
    assert node.status()["containers"][0]["weight"] == 1


def test_a_user_who_connects_again_and_again_leaves_room_for_root(node: Node) -> None:
    """REL-5."""

    def connect() -> None:
        ends = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        for end in ends:
            while end.connect_ex(f"{node.root.state}/cgpud.sock") != 0:
                time.sleep(0.01)
        ends[-1].settimeout(10)
        assert b"too many connections" in ends[-1].recv(1000)
        ends.clear()
        assert node.server.pid() == node.process.pid

    assert _as_nobody(connect) == 0


def test_processes_of_a_user_that_never_stop_asking_make_no_request_of_roots_fail(
    node: Node,
) -> None:
    """REL-8: of twenty, nineteen did."""
    words = [sys.executable, "-SE", hostile_users.__file__, "connections", "/run/cgpu/cgpud.sock"]
    hogs = [subprocess.Popen(node.user.as_user(words), stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"0\n"
        for _ in range(20):
            assert node.status()["pid"] == node.process.pid
            assert node.root.smi()["gpus"]
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


def _files(node: Node, name: str) -> list[Any]:
    return list((node.root.state / "containers" / name).iterdir())


def test_without_the_nodes_server_a_user_has_an_account_of_their_own(node: Node) -> None:
    node.end()
    done = node.user.run("--mem", "6/15", "--", "true")
    assert (done.returncode, done.stderr) == (0, f"cgpu-run: note: {APART}\n")
    assert APART not in node.user.run("--no-namespaces", "--mem", "6/15", "--", "true").stderr
    assert node.root.sessions() == []


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"variables": [], "command": ["x"]},
        {"variables": {}, "command": ["x"]},
        {"variables": {"ALIYUN_COM_GPU_MEM_CONTAINER": 1}, "command": ["x"]},
        {"variables": {"ALIYUN_COM_GPU_MEM_CONTAINER": "1"}, "command": []},
        {"variables": {"ALIYUN_COM_GPU_MEM_CONTAINER": "1"}, "command": ["x"], "policy": "1"},
    ],
)
def test_a_request_of_a_guest_that_makes_no_sense_is_refused(
    node: Node, more: dict[str, Any]
) -> None:
    """REL-5."""
    with pytest.raises(client.CgpuError) as refusal:
        node.server.ask({"request": "admit", **more})
    assert "internal error" not in str(refusal.value)
    assert node.root.sessions() == []
