"""What cgpu-smi says about containers and sessions (CLI-3)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from cgpu_cli import smi
from cgpu_cli.show import screen, table
from cgpu_cli.show.query import format_usage
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.rules import Defaults
from cgpu_node.shares import names
from cgpu_node.shares.admission import sum_owed
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from cgpu_node.view import marks
from cgpu_node.view.usage import read_usage
from cgpu_node.view.view import Others, parse_usage
from lab.driver.attached import AttachedLedger
from lab.shares.changing import change_container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgpu_node.view.view import Usage

pytestmark = pytest.mark.unit

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
TOTAL = 15109 * MIB
UNMEASURED = {
    "measured_percent": None,
    "charged_ns": 0,
    "arbitrated": False,
    "waits": 0,
    "throttled_ns": 0,
    "heartbeat_age_ns": None,
    "heartbeat_ns": 0,
    "estimated_percent": None,
    "estimated_ns": 0,
}
CAPS = (TOTAL * 6 // 15, TOTAL * 9 // 15)


@pytest.fixture
def usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Usage]:
    """A container on both GPUs that holds 100 MiB of the second, and an idle session."""
    gpus = tuple(NodeGpu(i, uuid, "Tesla T4", TOTAL, 0, ()) for i, uuid in enumerate(UUIDS))
    node = Node("535.0", "/nowhere", {}, {}, gpus, ())
    monkeypatch.setattr("cgpu_node.view.usage.load_node", lambda *_, **__: node)
    names._find_name.cache_clear()  # noqa: SLF001
    registry = Registry(str(tmp_path))
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "config.json").write_text(json.dumps({"hostname": "\x1b]0;t\x07"}))
    (tmp_path / "status").write_text(json.dumps({"bundle": f"{tmp_path}/bundle"}))
    owner = Owner(os.getpid(), start_time(os.getpid()) or 0, str(tmp_path))
    both = tuple(GpuShare(i, UUIDS[i], CAPS[i]) for i in (1, 0))
    request = Request(both, 3, high_priority=True)
    command = ["\x1b]0;t\x07", "train.py"]
    directory = registry.admit("0123456789abcdef", "container", request, node, owner, command)
    one = Request((GpuShare(0, UUIDS[0], MIB),), 1, high_priority=False)
    registry.admit("run-1", "session", one, node, owner, ["sleep", "9"])
    with AttachedLedger.attach(f"{directory}/ledger") as ledger:
        ledger.charge(0, CAPS[1], 100 * MIB)
        yield read_usage(str(tmp_path), None)


def test_json_gives_every_gpu(usage: Usage) -> None:
    """CLI-3: the schema that programs rely on."""
    shown = json.loads(json.dumps(usage.as_json()))
    assert shown["driver_version"] == "535.0"
    assert shown["gpus"][1] == {
        "index": 1,
        "uuid": UUIDS[1],
        "name": "Tesla T4",
        "total_bytes": TOTAL,
        "memory_bytes": TOTAL,
        "promised_bytes": CAPS[1],
        "used_bytes": 100 * MIB,
        "max_inst": 20,
        "free_weight": 17,
        "policy": 6,
        "policy_name": "weighted fair",
        "prio_ratio": 80,
        "measured_percent": None,
        "containers": 1,
        "weight": 3,
        "others": None,
        "utilisation_percent": None,
        "lost": None,
        "foreign_bytes": None,
    }
    assert shown["gpus"][0].items() >= {"free_weight": 16, "promised_bytes": CAPS[0] + MIB}.items()


def test_json_gives_every_container_with_its_gpus_in_visible_order(usage: Usage) -> None:
    """CLI-3: the schema that programs rely on."""
    first, second = json.loads(json.dumps(usage.as_json()))["containers"]
    assert first == {
        "id": "0123456789abcdef",
        "name": "\x1b]0;t\x07",
        "kind": "container",
        "command": ["\x1b]0;t\x07", "train.py"],
        "weight": 3,
        "high_priority": True,
        "policy": 6,
        "pods": [],
        "gpus": [
            {
                "index": 1,
                "uuid": UUIDS[1],
                "cap_bytes": CAPS[1],
                "memory_bytes": CAPS[1],
                "free_bytes": CAPS[1] - 100 * MIB,
                "used_bytes": 100 * MIB,
                "outside_bytes": 0,
                "refused": 0,
                "mark": None,
                "promised_bytes": CAPS[1],
                "processes": [
                    {"pid": os.getpid(), "used_bytes": 100 * MIB, "container_pid": os.getpid()}
                ],
                **UNMEASURED,
                "limit_percent": 100.0,
                "share_percent": 100.0,
            },
            {
                "index": 0,
                "uuid": UUIDS[0],
                "cap_bytes": CAPS[0],
                "memory_bytes": CAPS[0],
                "free_bytes": CAPS[0],
                "used_bytes": 0,
                "outside_bytes": 0,
                "refused": 0,
                "mark": None,
                "promised_bytes": CAPS[0],
                "processes": [],
                **UNMEASURED,
                "limit_percent": 75.0,
                "share_percent": 75.0,
            },
        ],
    }
    assert (second["id"], second["kind"]) == ("run-1", "session")


def test_a_wrong_configuration_hides_nobody(
    usage: Usage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CLI-3: also without a server."""

    def wrong() -> None:
        raise CgpuError("/etc/cgpu/config.toml: policy = 9: expected 0 to 6")

    monkeypatch.setattr("cgpu_node.view.usage.load_config", wrong)
    again = read_usage(str(tmp_path), None)
    assert [use.id for use in again.uses] == [use.id for use in usage.uses]
    assert again.notes == (
        "/etc/cgpu/config.toml: policy = 9: expected 0 to 6; the defaults are shown",
    )


def test_whoever_asked_the_server_reads_what_it_described(usage: Usage) -> None:
    """CLI-3: also fields of a later release, which mean nothing to this one."""
    shown = json.loads(json.dumps(usage.as_json()))
    again = parse_usage(shown)
    assert again.as_json() == usage.as_json()
    shown["later"] = shown["gpus"][0]["later"] = shown["containers"][0]["later"] = 1
    assert parse_usage(shown) == again


def test_what_a_server_of_release_0_1_describes_is_read_too(usage: Usage) -> None:
    """CLI-3: it has other names for a cap and for a GPU's memory."""
    others = Others(1, 1, MIB, 0, None)
    usage = usage._replace(gpus=(usage.gpus[0]._replace(others=others), usage.gpus[1]))
    answer = json.loads(json.dumps(usage.as_json()))
    for gpu in answer["gpus"]:
        del gpu["total_bytes"]
    del answer["gpus"][0]["others"]["cap_bytes"]
    for gpu in (gpu for container in answer["containers"] for gpu in container["gpus"]):
        del gpu["cap_bytes"]
    assert parse_usage(answer).as_json() == usage.as_json()
    del answer["gpus"][0]["memory_bytes"]
    with pytest.raises(KeyError):
        parse_usage(answer)


def test_the_table_shows_what_is_used_of_what_is_allowed(
    usage: Usage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.print_tables(usage)
    text = capsys.readouterr().out
    assert re.search(r"\|0123456789ab +\| +3! \| *- / 75.0% \| *0MiB / 6043MiB +\| +0 \|", text)
    assert re.search(r"\|run-1 +\| +1 \| *- / 25.0% \| *0MiB / 1MiB +\| +0 \|sleep 9", text)
    assert "2 of 20 containers, weight 4 of 20, 6044MiB of 15109MiB promised" in text
    assert "policy 6 (weighted fair), prio_ratio 80" in text
    assert max(map(len, text.splitlines())) <= 80


def test_in_a_narrow_terminal_a_name_takes_several_lines(
    usage: Usage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "prod/training-of-the-largest-model/worker"
    first, _ = usage.uses
    full = tuple(g._replace(used_bytes=TOTAL, cap_bytes=TOTAL) for g in first.gpus)
    usage = usage._replace(uses=(first._replace(gpus=full, name=long),))
    plain = f"{long[:37]}..."
    for columns, name in ((80, f"{long[:39]}…"), (99, f"{long[:39]}…"), (150, long), (110, plain)):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(screen, "is_ascii", lambda name=name: name == plain)
        table.print_tables(usage)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        cells = [line.split("|")[6].strip() for line in lines if line.startswith("|")]
        after = cells[cells.index("Name") + 1 :]
        text = "".join(after[: after.index("Name")])
        assert text == name


def test_a_long_name_of_a_gpu_has_a_line_of_its_own(
    usage: Usage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, identity = "GPU 0  Tesla V100-SXM2-16GB", f"{UUIDS[0]}  Driver 535.0"
    usage = usage._replace(gpus=(usage.gpus[0]._replace(name="Tesla V100-SXM2-16GB"),))
    for columns, expected in ((80, [name, identity]), (100, [f"{name}  {identity}"])):
        monkeypatch.setenv("COLUMNS", str(columns))
        table.print_tables(usage)
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert lines[: len(expected)] == expected


def test_what_is_promised_is_what_admission_gives_nobody_else(
    tmp_path: Path, usage: Usage, capsys: pytest.CaptureFixture[str]
) -> None:
    """CLI-3, MEM-8: a lowered cap frees what the container has given back, and no more."""
    registry = Registry(str(tmp_path))
    owed = sum_owed(registry.list_records(), UUIDS[1])
    assert usage.as_json()["gpus"][1]["promised_bytes"] == owed
    change_container(registry, "0123456789abcdef", {"memsize": 40 * MIB}, Defaults(), uuid=UUIDS[1])
    again = read_usage(str(tmp_path), None)
    shown = again.as_json()
    (held,) = (gpu for gpu in shown["containers"][0]["gpus"] if gpu["index"] == 1)
    assert held["cap_bytes"] == 40 * MIB
    owed = sum_owed(registry.list_records(), UUIDS[1])
    assert shown["gpus"][1]["promised_bytes"] == 100 * MIB == owed
    table.print_tables(again)
    assert "100MiB of 15109MiB promised" in capsys.readouterr().out
    assert any(re.search(r"Promised +: 100 MiB", line) for line in format_usage(again))


def test_a_measured_share_is_shown_while_an_arbiter_lives(
    tmp_path: Path, usage: Usage, capsys: pytest.CaptureFixture[str]
) -> None:
    """CLI-3."""
    folder = tmp_path / "containers"
    for name, place, share in (("0123456789abcdef", 1, 612345), ("run-1", 0, 250000)):
        _measure(folder / name / "limits", place, share, time.monotonic_ns())
    again = read_usage(str(tmp_path), None)
    assert again.as_json()["gpus"][0]["measured_percent"] == 86.23
    assert again.as_json()["containers"][0]["gpus"][1]["measured_percent"] == 61.2345
    table.print_tables(again)
    text = capsys.readouterr().out
    assert "61.2% / 75.0%" in text
    assert "prio_ratio 80, 86.2% of its time measured" in text
    _measure(folder / "run-1" / "limits", 0, 250000, 1)
    assert read_usage(str(tmp_path), None).as_json()["gpus"][0]["measured_percent"] is None
    assert len(usage.uses) == 2


def _measure(path: Path, place: int, share: int, heartbeat: int) -> None:
    """Write what an arbiter would."""
    page = cgpu_native.read_limits(path)
    gpus = list(page.gpus)
    new = gpus[place]._replace(measured_ppm=share, metered=True, heartbeat_ns=heartbeat)
    gpus[place] = new
    path.write_bytes(cgpu_native.pack_limits(page.id, gpus, policy=page.policy))


def test_what_a_container_calls_itself_cannot_drive_the_terminal(
    usage: Usage, capsys: pytest.CaptureFixture[str]
) -> None:
    """REL-5."""
    table.print_tables(usage)
    text = capsys.readouterr().out + "\n".join(format_usage(usage))
    assert "\x1b" not in text
    assert text.count("\\x1b]0;t\\x07") == 6, "table, name and command, on each of two GPUs"


def test_a_ledger_that_its_container_ruined_is_shown_as_empty(tmp_path: Path, usage: Usage) -> None:
    """REL-5: a container can ruin its own figures only."""
    ledger = tmp_path / "containers" / "0123456789abcdef" / "ledger"
    ledger.unlink()  # the fixture's own process has the old one mapped
    ledger.write_bytes(b"nonsense")
    again = read_usage(str(tmp_path), None)
    assert [gpu.used_bytes for use in again.uses for gpu in use.gpus] == [0, 0, 0]
    assert len(again.uses) == len(usage.uses)


def test_what_keeps_a_container_from_being_seen_is_told_once(
    usage: Usage, capsys: pytest.CaptureFixture[str]
) -> None:
    """REL-7."""
    first, second = usage.uses
    its = tuple(gpu._replace(mark=marks.LOCKS) for gpu in first.gpus)
    usage = usage._replace(uses=(first._replace(gpus=its), second))
    table.print_tables(usage)
    note = f"note: 0123456789abcdef: {marks.SENTENCES[marks.LOCKS]}"
    assert capsys.readouterr().out.count(note) == 1
    text = [*format_usage(usage)]
    assert text[-1] == note
    assert sum(line.split(":")[0].strip() == "Mark" for line in text) == len(its)


def test_a_query_tells_everything_a_line_each(usage: Usage) -> None:
    """CLI-3."""
    text = [re.sub(r" {2,}: ", ": ", line) for line in format_usage(usage)]
    first, second = text.index("GPU 0"), text.index("GPU 1")
    assert text[2:4] == ["Driver Version: 535.0", "Attached GPUs: 2"]
    assert "    Policy: 6 (weighted fair)" in text[first:second]
    assert "    Session run-1" in text[first:second]
    container = text[second:]
    assert "    Container 0123456789abcdef" in container
    for line in ("Weight: 3", "High Priority: Yes", "Processes: 1"):
        assert f"        {line}" in container
    for line in ("Cap: 9065 MiB", "Used: 100 MiB", "Refused Requests: 0", "Limit: 100.0 %"):
        assert f"            {line}" in container
    assert f"            Process ID {os.getpid()}: 100 MiB" in container
    assert f"                Process ID In Container: {os.getpid()}" in container


class _InterruptError(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("form", ["--json", "-q", None])
def test_a_loop_shows_it_again_until_it_is_interrupted(
    tmp_path: Path,
    usage: Usage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str | None,
) -> None:
    """CLI-3: exit status 0; JSON is one line each time."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise _InterruptError

    monkeypatch.setattr("time.sleep", sleep)
    words = ["cgpu-smi", "--state-dir", str(tmp_path), "--loop", "0.5", *([form] if form else [])]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        smi.main()
    assert end.value.code == 0
    assert slept == [0.5] * 3
    text = capsys.readouterr().out
    if form == "--json":
        looks = [json.loads(line) for line in text.splitlines()]
        assert [look.pop("version") for look in looks] == [1] * 3
        assert all(look.pop("time") for look in looks)
        assert looks == [json.loads(json.dumps(usage.as_json()))] * 3
    else:
        assert text.count("Session run-1" if form else "|run-1 ") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--state-dir", "/proc/nowhere"],
        ["--wrong"],
        ["--json", "-q"],
        *(["--loop", seconds] for seconds in ("0", "x", "nan", "1e9")),
    ],
)
def test_a_refusal_is_exit_status_two(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cgpu-smi", *arguments])
    with pytest.raises(SystemExit) as end:
        smi.main()
    assert end.value.code == 2
    text = capsys.readouterr()
    assert text.out == ""
    if "--loop" in arguments:
        allowed = "expected a number of seconds from 0.1 to 86400"
        assert f"{arguments[1]!r}: {allowed}" in text.err
