"""What commands tell a user of a node that is root's, whose files they may not read.

Its server may answer, be killed, or not have begun to listen (CLI-3, CLI-4, CLI-7, TREE-4).
"""

from __future__ import annotations

import html
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env.version import VERSION
from cgpu_node import server
from cgpu_node.paths import ROOT_STATE
from lab.worlds.cgpu_run import Node
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
SLEEP = ("--", "sleep", "3600")
UNSERVED = (
    "root's cgpud does not answer, so others' containers, and yours in /run/cgpu, are not shown;"
    " as root, cgpu get starts it"
)
QUERY = "--query-gpu=containers,memory.used"


@pytest.fixture(scope="module")
def served() -> Iterator[Node]:
    """Root's server answers, and a container of root's and one of the user's live there."""
    made = Node()
    programs = [
        made.root.start("--mem", "8/15", *SLEEP),
        made.user.start("--mem", "6/15", *SLEEP),
    ]
    wait_until(lambda: len(made.status()["containers"]) == 2, "both are admitted")
    yield made
    made.end()
    for program in programs:
        program.kill()
        program.communicate()


@pytest.fixture(scope="module", params=["killed", "starting"])
def unserved(request: pytest.FixtureRequest) -> Node:
    """Root's server does not answer: it was killed beside a container, or does not listen yet."""
    made = Node()
    made.server.admit("box")  # a session's keeper would start another server
    made.end()
    if request.param == "starting":
        (made.root.state / "cgpud.sock").unlink()
        made.root.state.chmod(0o700)
    return made


def cgpu(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the user's."""
    driver = ("--driver-dir", str(node.user.driver))
    command = [sys.executable, "-m", "cgpu_cli.main", words[0], *driver, *words[1:]]
    return node.user.run_command(node.user.as_user(command))


def smi(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    driver = ("--driver-dir", str(node.user.driver))
    command = [sys.executable, "-m", "cgpu_cli.smi", *driver, *words]
    return node.user.run_command(node.user.as_user(command))


def drawn(node: Node) -> str:
    """The screen of ``cgpu top``."""
    drawing = node.user.folder / "top.svg"
    drawing.touch(mode=0o666)
    drawing.chmod(0o666)
    done = cgpu(node, "top", "--svg", str(drawing))
    assert done.returncode == 0, done.stderr
    return html.unescape(drawing.read_text(encoding="utf-8")).replace("\xa0", " ")


def doctor(node: Node, *words: str) -> dict[str, list[dict[str, Any]]]:
    """What the user's doctor finds, by check."""
    done = cgpu(node, "doctor", "--json", *words)
    assert done.stderr == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["check"], []).append(each)
    return found


def write_config(node: Node, *variables: str) -> str:
    """The configuration of a container, where the user can read it; its path."""
    bundle = node.user.folder / "bundle"
    (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["true"], "env": [*variables], "cwd": "/"},
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    (bundle / "config.json").write_text(json.dumps(config))
    return str(bundle / "config.json")


def test_without_roots_server_smi_says_that_containers_are_not_shown(unserved: Node) -> None:
    for form in ([], ["-q"]):
        done = smi(unserved, *form)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"note: {UNSERVED}" in done.stdout
    assert unserved.user.smi()["notes"] == [UNSERVED]
    csv = smi(unserved, QUERY, "--format=csv,noheader")
    assert (csv.returncode, csv.stdout) == (0, "0, 0 MiB\n")
    assert csv.stderr == f"cgpu-smi: note: {UNSERVED}\n"


def test_without_roots_server_top_says_that_containers_are_not_shown(unserved: Node) -> None:
    assert UNSERVED in drawn(unserved)


@pytest.mark.parametrize("words", [("get",), ("ls",), ("get", "node"), ("set", "0", "policy=5")])
def test_without_roots_server_a_command_says_whose_account_it_is_about(
    unserved: Node, words: tuple[str, ...]
) -> None:
    for form in ([], ["--json"]):
        done = cgpu(unserved, *words, *form)
        assert (done.returncode, done.stderr) == (0, f"cgpu: note: {UNSERVED}\n")


def test_with_roots_server_there_is_no_such_note(served: Node) -> None:
    csv = smi(served, QUERY, "--format=csv,noheader")
    assert (csv.stdout, csv.stderr) == ("2, 0 MiB\n", "")
    assert served.user.smi()["notes"] == []
    assert "does not answer" not in drawn(served)
    assert cgpu(served, "get").stderr == ""
    assert cgpu(served, "ls").stderr == ""


def test_who_names_an_account_is_told_of_no_other(unserved: Node) -> None:
    state = unserved.user.state.with_name("another")
    assert cgpu(unserved, "get", "--state-dir", str(state)).stderr == ""


def test_a_users_doctor_asks_roots_server(served: Node) -> None:
    found = doctor(served)
    (output,) = found["server"]
    assert output["level"] == "ok"
    assert output["what"] == "cgpud runs; containers and sessions: 2 on GPU 0; yours: 1"
    (closed,) = found["state directory"]
    assert (closed["level"], closed["value"]) == ("note", ROOT_STATE)
    assert "not readable by you" in closed["what"]
    assert closed["mend"] == "as root: cgpu doctor"
    assert "leftovers" not in found
    assert "shares" not in found


def test_a_users_doctor_says_that_roots_server_is_not_there(unserved: Node) -> None:
    found = doctor(unserved)
    assert [each["level"] for each in found["state directory"]] == ["note"]
    (output,) = found["server"]
    was_killed = (unserved.root.state / "cgpud.sock").exists()
    assert output["level"] == ("warning" if was_killed else "note")
    assert output["mend"] == "as root: cgpu get"
    assert output["what"].startswith(f"no cgpud answers at {ROOT_STATE}/cgpud.sock")


def test_a_users_doctor_tells_of_an_account_of_their_own(served: Node) -> None:
    alone = served.user.start("--no-namespaces", "--mem", "1/15", *SLEEP)
    wait_until(served.user.sessions, "it is admitted to the user's own account")
    own = str(served.user.state)
    wait_until(lambda: server.is_listening(own), "its keeper has started a server")
    more = [each for each in doctor(served)["state directory"] if each["value"] == own]
    assert [(each["level"], each["mend"]) for each in more] == [
        ("note", f"cgpu doctor --state-dir {own}")
    ]
    (output,) = doctor(served, "--state-dir", own)["server"]
    assert output["what"] == "cgpud runs; containers and sessions: 1"
    alone.kill()
    alone.communicate()


def test_a_users_doctor_says_who_can_mend_a_stopped_server(served: Node) -> None:
    pid = served.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        (output,) = doctor(served)["server"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (output["level"], output["mend"]) == ("error", f"as root: kill -CONT {pid}")


def test_a_user_is_told_how_many_containers_another_release_made(served: Node) -> None:
    """TREE-4: of all, as the other figures of the node are."""
    with (served.server.admit("older") / "limits").open("r+b") as page:
        page.seek(page.read().index(VERSION.encode()))
        page.write(b"0.0.1")
    assert "Older: 1" in cgpu(served, "get", "upgrade").stdout
    assert json.loads(cgpu(served, "get", "--json").stdout)["node"]["older"] == 1
    served.server.registry.remove("older")


def test_a_users_plan_goes_by_what_root_has_set(served: Node) -> None:
    """CLI-7: rules and the default cap that only the server's own file has."""
    root = {"request": "set", "target": "0", "values": {"max_inst": 25}}
    served.server.ask(root)
    heavy = write_config(
        served,
        "ALIYUN_COM_GPU_MEM_CONTAINER=6",
        "ALIYUN_COM_GPU_MEM_DEV=15",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=22",
    )
    done = cgpu(served, "plan", heavy)
    assert (done.returncode, done.stderr) == (0, "")
    assert "weight 22" in done.stdout
    assert f"{ROOT_STATE}/containers/CONTAINER/limits" in done.stdout
    served.server.ask({"request": "set", "target": "node", "values": {"default_memsize": 3 << 30}})
    done = cgpu(served, "plan", write_config(served))
    assert "3072 MiB" in done.stdout
    served.server.ask({"request": "set", "target": "node", "values": {"default_memsize": 0}})


def test_without_roots_server_a_users_plan_says_what_it_does_not_know(unserved: Node) -> None:
    heavy = write_config(
        unserved,
        "ALIYUN_COM_GPU_MEM_CONTAINER=6",
        "ALIYUN_COM_GPU_MEM_DEV=15",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=22",
    )
    for config in (heavy, write_config(unserved)):
        done = cgpu(unserved, "plan", config)
        assert (done.returncode, done.stderr) == (0, "")
        assert "note    root's cgpud does not answer" in done.stdout
