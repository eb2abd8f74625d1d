"""What people call policies, GPUs and containers, at the command line and in the configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_env import GpuShare, Request
from cgpu_node.facts.node import load_node
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from lab.worlds import server as server_world
from lab.worlds.cgpu_run import World
from lab.worlds.server import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
PATIENCE = 60  # seconds, for a program to start on a busy machine
SLEEP = ("--", "sleep", "60")
A, D = (letter * 64 for letter in "ad")
B, C = (f"{'b' * 12}{digit}{'c' * 51}" for digit in "12")  # whose first 12 characters are alike
POD = "prod/web-0/model"


class Served:
    """Two simulated GPUs, and a server of their own that serves already."""

    def __init__(self, config: str = "") -> None:
        self.world = World(gpus=2)
        self.world.state.mkdir(mode=0o700)
        etc = self.world.folder / "etc" / "cgpu"
        etc.mkdir(parents=True)
        (etc / "config.toml").write_text(config)
        self.server = server_world.World(self.world.state)
        flags = ["--driver-dir", str(self.world.driver)]
        view = f'mount --bind {self.world.folder}/etc /etc && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", view, "sh", *self.server.command(*flags)]
        self._process = subprocess.Popen(command, env=self.world.environment())
        wait_until(lambda: self.server.pid() is not None, "it serves", PATIENCE)

    def admit(self, id_: str, name: str, gpus: int = 1) -> None:
        """A container on the first GPUs, to which its engine gave a name."""
        runtime = self.world.folder / id_
        runtime.mkdir()
        labels = [f"bundle={runtime}"]
        (runtime / "state.json").write_text(json.dumps({"config": {"labels": labels}}))
        config = {"annotations": {"nerdctl/name": name}}
        (runtime / "config.json").write_text(json.dumps(config))
        state = str(self.world.state)
        node = load_node(state, str(self.world.driver))
        shares = (GpuShare(gpu.index, gpu.uuid, 1 << 20) for gpu in node.gpus[:gpus])
        request = Request(tuple(shares), 1, high_priority=False)
        owner = Owner(os.getpid(), start_time(os.getpid()) or 0, str(runtime))
        Registry(state).admit(id_, "container", request, node, owner, ["true"])

    def smi(self, *words: str) -> dict[str, Any]:
        """What ``cgpu-smi --json`` says."""
        command = [sys.executable, "-m", "cgpu_cli.smi", "--json", *words, *self.world.flags()]
        done = self.world.run_command(command)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def cgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``cgpu``."""
        return self.world.run_command(
            [sys.executable, "-m", "cgpu_cli.main", *words, *self.world.flags()]
        )

    def get(self, *words: str) -> dict[str, Any]:
        """What ``cgpu get --json`` says."""
        done = self.cgpu("get", "--json", *words)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def rules(self) -> list[tuple[int, int]]:
        """Policy and max_inst of each GPU."""
        return [(gpu["policy"], gpu["max_inst"]) for gpu in self.get()["gpus"]]

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    """Four containers on GPU 0: two are called web; the last one has the name of a pod's."""
    made = Served()
    for id_, name in ((A, "db"), (B, "web"), (C, "web"), (D, POD)):
        made.admit(id_, name)
    yield made
    made.close()


@pytest.mark.parametrize(("word", "id_"), [("db", A), (A, A), (A[:4], A), (B[:13], B), (POD, D)])
def test_a_container_is_named_by_its_name_its_id_or_the_beginning_of_that(
    named: Served, word: str, id_: str
) -> None:
    """CLI-10, TREE-4, CLI-3."""
    assert [each["id"] for each in named.get(word)["containers"]] == [id_]
    assert named.cgpu("set", word, "weight=4").stderr == ""
    assert named.cgpu("set", f"0/{word}", "memsize=8MiB").stderr == ""
    (shown,) = named.get(word)["containers"]
    assert (shown["weight"], shown["gpus"][0]["cap_bytes"]) == (4, 8 << 20)
    assert [each["id"] for each in named.smi("-i", word)["containers"]] == [id_]
    nodes = ["highprio", "id", "memsize", "meminfo", "weight"]
    if "/" not in word:
        assert named.cgpu("get", f"0/{word}/weight").stdout == "4\n"
        assert named.cgpu("ls", f"0/{word}").stdout.split() == nodes
    for place in (word, f"{word}/"):
        assert named.cgpu("ls", place).stdout.split() == nodes
    assert named.cgpu("ls", "-R", word).stdout.split() == [f"0/{_folder(id_)}:", *nodes]
    assert named.cgpu("get", f"{word}/weight").stdout == "4\n"
    assert named.cgpu("get", f"{word}/memsize").stdout == f"{8 << 20}\n"
    assert f"id: {id_}\n" in named.cgpu("get", f"{word}/").stdout


def _folder(id_: str) -> str:
    """As the control tree shows it, beside those of the module."""
    return id_ if id_ in {B, C} else id_[:12]


def test_a_gpu_goes_before_a_container_whose_id_begins_alike(served: Served) -> None:
    """CLI-10."""
    served.admit(f"0{A[1:]}", "db")
    for command in ("get", "ls"):
        text = "cgpu: '0/weight': no such node: cgpu ls 0 lists what is there\n"
        assert served.cgpu(command, "0/weight").stderr == text
    assert served.cgpu("get", "0a/weight").stdout == "1\n"


def test_a_number_is_a_gpu_and_never_the_beginning_of_an_id(served: Served) -> None:
    """CLI-10: whoever types it means the GPU, also one that is not there."""
    served.admit(f"0{A[1:]}", "db")
    served.admit(f"7{A[1:]}", "web")
    for _ in range(2):
        done = served.cgpu("set", "0", "weight=4")
        assert done.stderr.startswith("cgpu: set 0 weight: a GPU has max_inst, policy, prio_ratio;")
        assert "\n  that is a GPU; name a container by its name, by more of its id" in done.stderr
        refusal = served.cgpu("set", "7", "weight=4").stderr
        assert refusal.startswith("cgpu: '7': no such GPU: expected index or UUID")
        assert [each["weight"] for each in served.get()["containers"]] == [1, 1]
    assert served.cgpu("set", "0", "max_inst=9").stderr == ""
    assert served.rules()[0][1] == 9
    assert served.cgpu("set", "0/0", "weight=4").stderr == ""
    assert served.cgpu("set", "7a", "weight=5").stderr == ""
    assert [each["weight"] for each in served.get()["containers"]] == [4, 5]


def test_a_node_that_is_another_on_each_gpu_is_asked_of_one(served: Served) -> None:
    """CLI-10: nothing is guessed."""
    served.admit(A, "db", gpus=2)
    assert served.cgpu("get", "db/weight").stdout == "1\n"
    assert served.cgpu("ls", "db").stdout.split()[0] == "highprio"
    for asked, node in (("db/memsize", "/memsize"), ("db/", "")):
        forms = f"0/{A[:12]}{node} or 1/{A[:12]}{node}"
        text = f"cgpu: '{asked}' differs between its GPUs: cgpu get {forms}\n"
        assert served.cgpu("get", asked).stderr == text
    assert served.cgpu("get", f"1/{A[:12]}/memsize").stdout == f"{1 << 20}\n"


def test_a_name_like_a_gpu_and_a_name_is_not_taken_for_them(served: Served) -> None:
    """CLI-10: whoever makes a container may choose its name."""
    served.admit(A, "db")
    served.admit(B, "0/db")
    text = served.cgpu("set", "0/db", "weight=2").stderr
    assert f"'0/db' may be container 'db' on GPU 0, and is the name of {B[:12]}" in text
    assert served.cgpu("set", f"0/{A}", "memsize=8MiB").stderr == ""
    assert served.cgpu("set", B, "weight=2").stderr == ""


BOTH = f"{B} (web), {C} (web)"
WEB = f"'web' means 2 containers: {BOTH}: name one by its id"
SHORT = f"'bbbb' means 2 containers: {BOTH}: name one by its id"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["get", "web"], WEB),
        (["set", "web", "weight=2"], WEB),
        (["set", "0/web", "memsize=8MiB"], WEB),
        (["get", "0/web/weight"], WEB),
        (["ls", "0/bbbb"], SHORT),
        (["ls", "web"], WEB),
        (["ls", "nobody"], "'nobody': no such node: cgpu ls lists what is there"),
        (["get", "web/weight"], WEB),
        (["get", "db/nothing"], "'0/aaaaaaaaaaaa/nothing': no such node: cgpu ls 0/aaaaaaaaaaaa l"),
        (["get", "nobody/weight"], "'nobody/weight': no such GPU or container: cgpu get shows"),
        (["get", "\udcff"], "'\\udcff': no such GPU or container: cgpu get shows all"),
        (["ls", "\udcff"], "'\\udcff': no such node: cgpu ls lists what is there"),
        (["set", "\udcff", "weight=2"], "'\\udcff': no such container or session: cgpu get"),
        (["set", "node", "max_inst=3"], "set node max_inst: a GPU has max_inst, policy, prio_ra"),
        (["set", "node", "weight=3"], "set node weight: a GPU has max_inst, policy, prio_ratio;"),
        (["set", "0", "weight=3"], "set 0 weight: a GPU has max_inst, policy, prio_ratio; a con"),
        (["set", "db", "policy=3"], "set db policy: a GPU has max_inst, policy, prio_ratio; a c"),
        (["set", "0/db", "policy=3"], "set 0/db policy: a GPU has max_inst, policy, prio_ratio;"),
        (["set", "nobody", "policy=3"], "'nobody': no such GPU: expected index or UUID"),
        (["set", "default_memsize=2GiB"], "set default_memsize=2GiB: the target is missing: node"),
        (["set", "policy=3"], "set policy=3: the target is missing: a GPU's index or UUID, or all"),
        (["set", "weight=3", "highprio=1"], "set weight=3: the target is missing: a container's"),
        (["set", "node", "overcommit=1"], "set overcommit: there is no such setting: a GPU has"),
        (["get", "bbbb"], SHORT),
        (["set", "bbbb", "weight=2"], SHORT),
        (["get", "nobody"], "'nobody': no such GPU or container: cgpu get shows all, cgpu ls what"),
        (["get", "prod/web-1/model"], "'prod/web-1/model': no such GPU or container: cgpu get"),
        (["set", "nobody", "weight=2"], "'nobody': no such container or session: cgpu get lists"),
        (["set", "7/db", "memsize=8MiB"], "'7': no such GPU: expected index or UUID"),
        (["set", "GPU-", "policy=3"], "'GPU-' is the beginning of 2 UUIDs, write more of one: "),
    ],
)
def test_what_could_mean_more_than_one_or_none_is_refused_with_what_there_is(
    named: Served, words: list[str], sentence: str
) -> None:
    """CLI-10: nothing is guessed."""
    done = named.cgpu(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cgpu: {sentence}")


def test_a_name_that_is_the_beginning_of_an_id_takes_no_command_from_its_owner(
    served: Served,
) -> None:
    """CLI-10, REL-5: an image chooses the name of its container."""
    served.admit(A, A[:6])
    served.admit(D, A[:6])
    done = served.cgpu("set", A[:6], "weight=9")
    assert done.stderr.startswith(
        f"cgpu: '{A[:6]}' means 2 containers: {A[:12]} ({A[:6]}), {D[:12]}"
    )
    assert [each["weight"] for each in served.get()["containers"]] == [1, 1]


def test_a_gpu_is_named_by_the_beginning_of_its_uuid(served: Served) -> None:
    """CLI-10, SCH-9."""
    (_, gpu) = served.get()["gpus"]
    word = gpu["uuid"][:-1].upper()
    assert served.cgpu("set", word, "policy=soft").stderr == ""
    assert [each["policy"] for each in served.get(word)["gpus"]] == [4]
    assert served.cgpu("get", f"{gpu['uuid']}/policy").stdout == "4\n"
    assert [each["index"] for each in served.get("all")["gpus"]] == [0, 1]
    assert [each["index"] for each in served.smi("-i", word)["gpus"]] == [1]


def test_a_shell_is_told_the_names_that_mean_one_container(named: Served) -> None:
    done = named.cgpu("completion", "targets")
    assert done.stdout.split() == ["node", "all", "0", "1", A, B, C, D, "db", POD]


def test_policies_are_chosen_by_name_and_for_all_gpus_at_once(served: Served) -> None:
    """CLI-10, SCH-9: all change, or none."""
    assert served.cgpu("set", "all", "policy=fixed", "max_inst=8").stderr == ""
    assert served.rules() == [(3, 8)] * 2
    words = ("--mem", "6/15", "--gpus", "1")
    heavy = served.world.start(*words, "--policy", "Fixed", "--weight", "5", *SLEEP)
    wait_until(lambda: served.get()["containers"], "it is admitted", PATIENCE)
    done = served.cgpu("set", "all", "policy=soft", "max_inst=4")
    sentence = "max_inst=4: the containers on GPU 1 have weight 5 together"
    assert (done.returncode, done.stderr) == (2, f"cgpu: {sentence}\n")
    assert served.rules() == [(3, 8)] * 2
    assert served.cgpu("set", "0", "policy=weighted fair").stderr == ""
    assert served.rules() == [(6, 8), (3, 8)]
    (session,) = (container["id"] for container in served.get()["containers"])
    other = served.world.run(*words, "--policy", "weighted-fair", "--", "true")
    text = f"--policy weighted-fair: GPU 1 is under policy 3 while {session} runs"
    assert (other.returncode, text in other.stderr) == (2, True), other.stderr
    heavy.kill()
    heavy.communicate()


def test_a_gpu_has_the_policy_that_the_configuration_gives_it() -> None:
    """SCH-9: until somebody changes it."""
    served = Served('[node]\npolicy = "soft"\n[gpu.0]\npolicy = "fixed"\nmax_inst = 10\n')
    try:
        assert served.rules() == [(3, 10), (4, 20)]
        assert served.cgpu("set", "0", "policy=native").stderr == ""
        assert served.rules() == [(5, 10), (4, 20)]
    finally:
        served.close()
