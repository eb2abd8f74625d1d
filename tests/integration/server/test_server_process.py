"""cgpud as a process: one for a state directory, there when it is needed (REL-2, SCH-9)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cgpu_doctor import state
from cgpu_doctor.finding import Ground
from cgpu_env import CgpuError
from cgpu_env.version import VERSION
from cgpu_install.machine import Machine
from cgpu_node import client, server
from cgpu_sim import make_driver_dir
from lab.machine import folders
from lab.machine.servers import end_servers, serving
from lab.worlds.server import World, environment, is_arbitrated, page, wait_until

pytestmark = pytest.mark.integration


def test_an_admission_starts_the_server_and_its_page_comes_to_life(world: World) -> None:
    """REL-2: nothing needs an extra command."""
    directory = world.admit("a")
    assert page(directory).heartbeat_ns == 0
    server.wake_server(str(world.state))
    wait_until(lambda: is_arbitrated(directory), "the page has a heartbeat")
    assert page(directory).gate & 3, "a lone container's gate is open"


@pytest.mark.parametrize("is_named", [False, True])
def test_directories_are_named_by_variables_or_options(tmp_path: Path, *, is_named: bool) -> None:
    """CLI-8: as for the commands, options go first."""
    state, other = tmp_path / "state", tmp_path / "other"
    driver = make_driver_dir(tmp_path / "driver")
    places = (state, driver) if not is_named else (other, tmp_path / "nothing")
    variables = dict(zip(("CGPU_STATE_DIR", "CGPU_DRIVER_DIR"), map(str, places), strict=True))
    flags = ["--state-dir", str(state), "--driver-dir", str(driver)] if is_named else []
    words = [sys.executable, "-m", "cgpu_server.main", *flags]
    process = subprocess.Popen(words, env={**environment(), **variables})
    try:
        wait_until(lambda: state.exists() and server.is_listening(str(state)), "it serves there")
        answer = client.send_request(str(state), {"request": "status"})
        assert len(answer["gpus"]) == 1, "of the simulated driver"
    finally:
        process.terminate()
        process.wait()
    assert not other.exists()


def test_the_server_that_was_started_keeps_nothing_of_its_starter(world: World) -> None:
    """REL-5: no descriptor, terminal, directory or environment."""
    code = "import sys; from cgpu_node import server; server.wake_server(sys.argv[1])"
    reader, writer = os.pipe()
    command = [sys.executable, "-c", code, str(world.state)]
    subprocess.run(
        command, check=True, env={**environment(), "SECRET": "x"}, pass_fds=[writer], cwd="/tmp"
    )
    os.close(writer)
    wait_until(lambda: world.pid() is not None, "it serves")
    (pid,) = serving(world.state)
    assert os.read(reader, 1) == b"", "nobody else holds the pipe"
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert os.getsid(pid) == pid
    assert {str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in range(3)} == {"/dev/null"}


def test_a_server_killed_with_9_is_followed_by_one_that_picks_everything_up(world: World) -> None:
    """REL-2."""
    directory = world.admit("a")
    first = world.start()
    world.ask({"request": "set", "target": "a", "values": {"weight": 5}})
    world.ask({"request": "set", "target": "0", "values": {"policy": 3, "prio_ratio": 40}})
    first.kill()
    first.wait()
    wait_until(lambda: not is_arbitrated(directory), "the heartbeat has stopped")
    server.wake_server(str(world.state))
    wait_until(lambda: is_arbitrated(directory), "another one arbitrates")
    status = world.ask({"request": "status"})
    assert [(c["id"], c["weight"]) for c in status["containers"]] == [("a", 5)]
    assert (status["gpus"][0]["policy"], status["gpus"][0]["prio_ratio"]) == (3, 40)
    assert status["gpus"][0]["figures"]["tenants"] == 1
    assert page(directory).limit_ppm == 250_000


def test_many_starters_at_once_make_one_server(world: World) -> None:
    command = world.command()
    starts = [
        subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    wait_until(lambda: sum(s.poll() is not None for s in starts) == 4, "four have given up")
    (left,) = [start for start in starts if start.poll() is None]
    assert world.pid() == left.pid
    for start in starts:
        if start is not left:
            assert start.stderr is not None
            assert start.returncode == 0
            sentence = f"cgpud: another one serves {world.state} already\n"
            assert start.stderr.read() == sentence


def test_sigterm_is_a_clean_end(world: World) -> None:
    world.admit("a")
    running = world.start()
    running.send_signal(signal.SIGTERM)
    _, output = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "Traceback" not in output
    assert not (world.state / server.SOCKET).exists()
    assert world.containers() == ["a"]


def test_a_service_takes_the_place_of_a_server_that_a_container_started(world: World) -> None:
    directory = world.admit("a")
    server.wake_server(str(world.state))
    wait_until(lambda: world.pid() is not None, "it serves")
    (old,) = serving(world.state)
    service = world.start("--replace")
    assert world.pid() == service.pid != old
    wait_until(lambda: serving(world.state) == [service.pid], "the old one is gone")
    wait_until(lambda: is_arbitrated(directory), "the new one arbitrates")


def test_a_server_ends_when_nothing_has_lived_for_a_while(world: World) -> None:
    world.admit("a")
    running = world.start("--idle-exit", "0.5")
    time.sleep(2.5)
    assert running.poll() is None, "somebody lives"
    world.registry.remove("a")
    assert running.wait(20) == 0
    assert not (world.state / server.SOCKET).exists()


def test_an_admission_while_the_server_is_about_to_end_finds_one(world: World) -> None:
    """REL-2: whatever the moment, somebody arbitrates."""
    moments = random.Random(3)
    for number in range(8):
        directory = world.admit(f"c{number}")
        if not server.is_listening(str(world.state)):
            subprocess.Popen(
                world.command("--idle-exit", "0.1"),
                env=environment(),
                stderr=subprocess.DEVNULL,
            )
        wait_until(lambda d=directory: is_arbitrated(d), "it is arbitrated")  # type: ignore[misc]
        world.registry.remove(f"c{number}")
        time.sleep(moments.uniform(0.9, 1.4))


def test_a_container_of_which_nobody_told_the_server_is_found(world: World) -> None:
    """REL-2: a notification can get lost."""
    world.start()
    first = world.admit("a")
    wait_until(lambda: is_arbitrated(first), "it is found")
    second = world.admit("b")
    wait_until(lambda: is_arbitrated(second), "so is the next")


def test_a_container_whose_owner_is_killed_is_given_back_soon(world: World) -> None:
    """REL-3."""
    world.start()
    with subprocess.Popen(["/bin/sleep", "60"]) as owner:
        world.admit("dead", owner=owner.pid)
        world.admit("alive")
        owner.kill()
    wait_until(lambda: world.containers() == ["alive"], "its share is given back")
    assert world.ask({"request": "status"})["gpus"][0]["figures"]["tenants"] == 1


def test_a_server_whose_state_directory_is_removed_ends(world: World) -> None:
    running = world.start()
    shutil.rmtree(world.state)
    assert running.wait(20) == 0


def test_a_state_directory_with_a_long_name_is_served(tmp_path: Path) -> None:
    """The address of a socket holds 107 bytes."""
    state = tmp_path / ("x" * 120)
    state.mkdir(mode=0o700)
    world = World(state)
    try:
        directory = world.admit("a")
        server.wake_server(str(state))
        wait_until(lambda: is_arbitrated(directory), "the page has a heartbeat")
    finally:
        end_servers(tmp_path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"x", "expected a JSON object on a line"),
        (b"[]", "expected a JSON object on a line"),
        (b"\xff", "expected a JSON object on a line"),
        (b"[" * 9999, "expected a JSON object on a line"),
        (b"{}", "request 'None': expected one of status, usage, set, ls, get, tree, mounted, stop"),
        (b'{"request": ["set"]}', "expected one of status, usage, set, ls, get, tree"),
        (b'{"request": "set"}', "set: expected a target and values"),
        (
            b'{"request": "set", "target": "node", "values": {"weight": 1, "policy": 2}}',
            "set node weight, policy: a GPU has max_inst, policy, prio_ratio; a container has",
        ),
        (b'{"request": "set", "target": "9", "values": {"policy": 2}}', "'9': no such GPU"),
        (b'{"request": "set", "target": "x", "values": {"weight": 2}}', "no such container"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_by_a_sentence(
    world: World, line: bytes, sentence: str
) -> None:
    running = world.start()
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(world.state / server.SOCKET))
        end.sendall(line + b"\n")
        answer = json.loads(end.makefile().readline())
    assert sentence in answer["error"]
    assert world.pid() == running.pid


def test_a_client_that_sends_without_end_is_cut_off(world: World) -> None:
    """REL-5."""
    running = world.start()
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(world.state / server.SOCKET))
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            end.sendall(b"x" * (1 << 26))
    assert world.pid() == running.pid


def test_another_user_is_refused() -> None:
    """REL-5: also if somebody opened the state directory to all."""
    folder = folders.make("cgpud-")
    (folder / "state").mkdir(mode=0o755)
    world = World(folder / "state")
    address = world.state / server.SOCKET
    code = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(address)!r}); "
        's.sendall(b\'{"request": "stop"}\\n\'); print(s.makefile().readline())'
    )
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    try:
        running = world.start()
        address.chmod(0o777)
        command = [*user, "/usr/bin/python3", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "neither root nor the owner" in done.stdout, done.stderr
        assert world.pid() == running.pid
    finally:
        folders.remove(folder)


def test_asking_where_nobody_serves_is_a_sentence(world: World) -> None:
    with pytest.raises(CgpuError, match="no cgpud serves"):
        client.send_request(str(world.state), {"request": "status"})


def test_a_stopped_server_is_named_with_the_command_that_lets_it_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SOON", 0.2)
    running = world.start()
    running.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(client.SilentError) as refusal:
            client.send_request(str(world.state), {"request": "status"})
        (found,) = state.check_server(Ground(Machine("/"), str(world.state), None))
    finally:
        running.send_signal(signal.SIGCONT)
    output = f"cgpud (pid {running.pid}) is stopped and does not answer"
    assert (str(refusal.value), refusal.value.hint) == (output, f"kill -CONT {running.pid}")
    assert (found.level, found.what, found.mend) == ("error", output, f"kill -CONT {running.pid}")
    assert world.pid() == running.pid


def test_a_server_that_hangs_is_named_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as soon as one that is stopped: it may wait for the driver."""
    monkeypatch.setattr(client, "_SOON", 0.1)
    monkeypatch.setattr(client, "_TIMEOUT", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.state / server.SOCKET))
        listener.listen()
        with pytest.raises(client.SilentError) as refusal:
            client.send_request(str(world.state), {"request": "status"})
    assert str(refusal.value) == f"cgpud (pid {os.getpid()}) does not answer within 0.3 s"
    assert refusal.value.hint == f"kill -KILL {os.getpid()}"


def test_a_server_that_holds_the_lock_and_does_not_answer_is_named(world: World) -> None:
    running = world.start()
    running.send_signal(signal.SIGSTOP)
    for name in (server.SOCKET, server.ROOT_SOCKET):
        (world.state / name).unlink(missing_ok=True)
    try:
        done = subprocess.run(
            world.command(), env=environment(), capture_output=True, text=True, check=False
        )
    finally:
        running.send_signal(signal.SIGCONT)
    assert done.returncode == 2
    first, hint = done.stderr.splitlines()
    assert first == f"cgpud: another cgpud holds {world.state}/cgpud.lock and does not answer"
    assert hint == "  its process id is in that file"


def test_a_container_of_another_layout_is_told_once_and_left_to_itself(world: World) -> None:
    """CLI-4: the server's side of it; the proxies have theirs."""
    foreign, own = world.admit("foreign"), world.admit("own")
    limits = foreign / "limits"
    text = limits.read_bytes().replace(VERSION.encode() + b"\0", b"0.99\0".ljust(len(VERSION) + 1))
    limits.write_bytes(text[:4] + (99).to_bytes(4, "little") + text[8:])
    before = limits.read_bytes()
    server = world.start()
    wait_until(lambda: is_arbitrated(own), "the other one is arbitrated")
    for _ in range(3):
        world.ask({"request": "set", "target": "node", "values": {"inst_ctl": "reap"}})
    server.terminate()
    output = server.communicate(timeout=20)[1]
    assert output.count("WARNING container_foreign container=foreign release=0.99 ") == 1
    assert "container_not_taken_on" not in output
    assert limits.read_bytes() == before


def test_rules_are_in_force_when_the_answer_comes(world: World) -> None:
    """SCH-9, SCH-10."""
    directory = world.admit("a", weight=2)
    world.admit("b", weight=2)
    world.start()
    world.ask({"request": "set", "target": "0", "values": {"policy": 3, "max_inst": 8}})
    wait_until(lambda: page(directory).limit_ppm == 250_000, "the arbiter has worked it out")
    with pytest.raises(CgpuError, match="weight=7: GPU 0 has 6 of 8 free"):
        world.ask({"request": "set", "target": "a", "values": {"weight": 7}})
    world.ask({"request": "set", "target": "a", "values": {"weight": 6, "highprio": 1}})
    (a, b) = world.ask({"request": "status"})["containers"]
    assert (a["weight"], a["high_priority"], b["weight"]) == (6, True, 2)
    assert world.ask({"request": "status"})["gpus"][0]["free_weight"] == 0
