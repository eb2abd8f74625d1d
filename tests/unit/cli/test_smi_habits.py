"""cgpu-smi knows the options that people know from nvidia-smi (CLI-3)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_cli import smi
from cgpu_cli.show import fields
from cgpu_cli.show.words import filter_usage
from cgpu_env import CgpuError, GpuShare
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.rules import Rules
from cgpu_node.view.processes import Holding
from cgpu_node.view.usage import usage_of
from cgpu_node.view.view import Compute, GpuUse, Usage, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[..., list[str]]

pytestmark = pytest.mark.unit

MIB = 1 << 20
UUIDS = [f"GPU-{i}0000000-1111-2222-3333-444444444444" for i in range(3)]
GPUS = tuple(NodeGpu(i, uuid, "Tesla T4", 15109 * MIB, 0, ()) for i, uuid in enumerate(UUIDS))
NODE = Node("535.0", "/nowhere", {}, {}, GPUS, ())


def held(gpu: int, percent: float | None, *processes: Holding) -> GpuUse:
    share = GpuShare(gpu, UUIDS[gpu], 6000 * MIB)
    its = Compute(50.0, percent, 0, arbitrated=True, share_percent=10.0, waits=0, throttled_ns=0,
                  heartbeat_age_ns=None)  # fmt: skip
    used = sum(each.used_bytes for each in processes)
    return GpuUse(*share, used, processes, its, 2, promised_bytes=share.cap_bytes)


BOTH = Use("aa11", "container", 'say "a, b"', ("x",), 3, high_priority=True, policy=6,
           gpus=(held(1, 31.94, Holding(os.getpid(), 100 * MIB, 7)), held(0, None)))  # fmt: skip
ONE = Use("bb22", "session", "", ("y",), 1, high_priority=False, policy=6,
          gpus=(held(0, 12.5, Holding(0, MIB, 9)),))  # fmt: skip


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """What cgpu-smi prints about this node."""
    usage = usage_of(NODE, [BOTH, ONE], lambda _: Rules())
    monkeypatch.setattr("cgpu_cli.show.look.query_usage", lambda *_: usage)

    def run(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["cgpu-smi", *words])
        with pytest.raises(SystemExit) as end:
            smi.main()
        assert end.value.code == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_gpus_are_listed_as_nvidia_smi_lists_them(say: Say) -> None:
    assert say("-L") == [f"GPU {i}: Tesla T4 (UUID: {uuid})" for i, uuid in enumerate(UUIDS)]
    assert say("--list-gpus", "--id=2,0") == [say("-L")[0], say("-L")[2]]


def test_a_lost_gpu_is_named_with_what_to_do(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """REL-10: its containers are shown; one that was never known is a note."""
    why = "GPU is lost (error 15); reboot"
    gpus = (GPUS[0], GPUS[1]._replace(lost=why), NodeGpu(2, "", "", 0, 0, (), why))
    usage = usage_of(NODE._replace(gpus=gpus), [BOTH], lambda _: Rules())
    monkeypatch.setattr("cgpu_cli.show.look.query_usage", lambda *_: usage)
    assert say("-L")[1:] == [
        f"GPU 1: (UUID: {UUIDS[1]}) does not answer: {why}",
        f"GPU 2: (UUID: not known) does not answer: {why}",
    ]
    table = say()
    assert [line.split()[1] for line in table if line.startswith("GPU")] == ["0", "1"]
    assert sum("aa11" in line for line in table) == 2
    notes = [
        f"note: GPU 1 ({UUIDS[1]}) does not answer: {why}",
        f"note: GPU 2 does not answer: {why}",
    ]
    assert table[-2:] == notes
    assert say("-q")[-2:] == notes
    assert say("--query-gpu=index,uuid,utilization.gpu", "--format=csv,noheader", "-i", "2") == [
        "2, [N/A], [N/A]"
    ]


def test_fields_of_gpus_are_printed_as_csv(say: Say) -> None:
    query = "--query-gpu=index,name,memory.used,memory.total,utilization.gpu"
    assert say(query, "--format=csv") == [
        "index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]",
        "0, Tesla T4, 1 MiB, 15109 MiB, [N/A]",
        "1, Tesla T4, 100 MiB, 15109 MiB, 32 %",
        "2, Tesla T4, 0 MiB, 15109 MiB, [N/A]",
    ]
    assert say(query) == say(query, "--format=csv")
    assert say(query, "--format=csv,noheader,nounits", "-i", UUIDS[1]) == [
        "1, Tesla T4, 100, 15109, 32"
    ]


def test_what_scripts_ask_nvidia_smi_for_is_answered(say: Say) -> None:
    """memory.free is what no container holds, promised or not."""
    query = "--query-gpu=index,uuid,memory.total,memory.used,memory.free"
    assert say(query, "--format=csv,noheader,nounits", "-i", "1") == [
        f"1, {UUIDS[1]}, 15109, 100, 15009"
    ]
    assert say(query, "--format=csv", "-i", "1")[0].endswith("memory.free [MiB]")
    assert say("--query-compute-apps=pid,name") == [
        "pid, name",
        *(line for line in say("--query-compute-apps=pid,process_name")[1:]),
    ]


def test_fields_of_containers_and_processes_are_printed_as_csv(say: Say) -> None:
    assert say("--query-containers=id,name,gpu_index,utilization.gpu", "--format=nounits,csv") == [
        "id, name, gpu_index, utilization.gpu [%]",
        'aa11, "say ""a, b""", 0, [N/A]',
        "bb22, [N/A], 0, 12.5",
        'aa11, "say ""a, b""", 1, 31.9',
    ]
    assert say("--query-compute-apps=pid,process_name,used_memory,container") == [
        "pid, process_name, used_memory [MiB], container",
        "[N/A], [N/A], 1 MiB, bb22",
        f"{os.getpid()}, {_own_program()}, 100 MiB, aa11",
    ]


def test_the_timestamp_has_milliseconds_as_in_nvidia_smi(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_795_342_272_007_999_999)
    monkeypatch.setattr("time.localtime", time.gmtime)
    (row,) = say("--query-gpu=timestamp", "--format=csv,noheader", "-i", "0")
    assert row == "2026/11/22 10:11:12.007"


def _own_program() -> str:
    return Path("/proc/self/cmdline").read_bytes().partition(b"\0")[0].decode()


@pytest.mark.parametrize("name", fields.QUERIES)
def test_every_field_can_be_asked_for(say: Say, name: str) -> None:
    known = fields.QUERIES[name].known
    head, *rows = say(f"--query-{name}", ",".join(known))
    assert [word.partition(" ")[0] for word in head.split(", ")] == [*known]
    assert rows


def test_a_loop_without_a_number_is_of_five_seconds_and_has_one_header(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert say("--query-gpu=index", "-i", "1", "-l") == ["index", "1", "1", "1"]
    assert slept == [5.0] * 3


@pytest.mark.usefixtures("say")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--query-gpu=index,power.draw"], "'power.draw' is no field: expected some of timestamp,"),
        (["--query-gpu=index", "--format=xml"], "'xml': expected csv, with ,noheader and"),
        (["--query-gpu=index", "--format=csv,"], "'csv,': expected csv, with ,noheader and"),
        (["--query-gpu=index", "--format=csv,nounit"], " if you like: did you mean nounits?"),
        (["-i", "3"], "--id 3: expected a GPU's index or UUID, or a container; this node has GPUs"),
        (["-i", "GPU-"], "'GPU-' is the beginning of 3 UUIDs, write more of one: "),
        (["-L", "-q"], "not allowed with"),
        *(
            (words, "--format: expected only with --query-gpu, --query-compute-apps or")
            for words in (["--format=csv"], ["-q", "--format=csv"], ["--json", "--format=csv"])
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["cgpu-smi", *words])
    with pytest.raises(SystemExit) as end:
        smi.main()
    assert end.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_the_description_of_some_gpus_leaves_out_the_others() -> None:
    usage: Usage = usage_of(NODE, [BOTH, ONE], lambda _: Rules())
    assert filter_usage(usage, None) is usage
    second = filter_usage(usage, [UUIDS[1][:5]])
    assert [gpu.index for gpu in second.gpus] == [1]
    assert [(use.id, [gpu.index for gpu in use.gpus]) for use in second.uses] == [("aa11", [1])]
    assert filter_usage(usage, ["2"]).uses == ()
    with pytest.raises(CgpuError, match="this node has GPUs 0, 1, 2"):
        filter_usage(usage, ["01"])


# In UTF-8 mode under every locale, as Python 3.15.
AS_3_15 = """
import locale, sys
from types import SimpleNamespace
locale.getencoding = lambda: locale.nl_langinfo(locale.CODESET)
flags = SimpleNamespace(utf8_mode=1)
screen.sys = SimpleNamespace(flags=flags, stdout=sys.stdout, version_info=(3, 15))
"""


@pytest.mark.parametrize("python", ["", AS_3_15], ids=["this Python", "3.15"])
@pytest.mark.parametrize(
    ("variables", "is_ascii"),
    [
        ({"LANG": "C"}, True),
        ({"LC_CTYPE": "C", "LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, True),
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ({"LANG": "C", "PYTHONUTF8": "1"}, False),
        ({"LANG": "C.UTF-8", "PYTHONIOENCODING": "latin-1"}, True),
    ],
)
def test_nothing_is_drawn_that_the_locale_cannot_show(
    variables: dict[str, str], python: str, *, is_ascii: bool
) -> None:
    code = f"from cgpu_cli.show import screen\n{python}\nprint(screen.is_ascii())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{is_ascii}\n"
