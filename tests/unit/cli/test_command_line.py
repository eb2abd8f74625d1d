"""What the command lines of all programs have in common."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cgpu_cli import main, smi
from cgpu_cli.commands import commands
from cgpu_cli.running import options
from cgpu_server import main as server

if TYPE_CHECKING:
    import argparse

pytestmark = pytest.mark.unit

PARSERS = {"cgpu": commands, "cgpu-smi": smi, "cgpud": server}


def parse(command: str) -> argparse.Namespace:
    """What a program makes of its command line."""
    name, *words = command.split()
    given: argparse.Namespace = PARSERS[name].build_parser().parse_args(words)
    return given


def refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The line behind the usage."""
    with pytest.raises(SystemExit) as end:
        parse(command)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("cgpu doctr", "doctor"),
        ("cgpu help doctr", "doctor"),
        ("cgpu completion bsh", "bash"),
        ("cgpu --stat-dir=/x get", "--state-dir"),
        ("cgpu --versoin", "--version"),
        ("cgpu --driverdir /x get", "--driver-dir"),
        ("cgpu --state-dir /a --driverdir /x get", "--driver-dir"),
        ("cgpu completion --driverdir bash", "--driver-dir"),
        ("cgpu set --statedir /x", "--state-dir"),
        ("cgpu get --jsno", "--json"),
        ("cgpu set 0 policy=2 --jsno", "--json"),
        ("cgpu ls --recrusive", "--recursive"),
        ("cgpu-smi --formt csv", "--format"),
        ("cgpu-smi --formt=csv", "--format"),
        ("cgpu-smi -json", "--json"),
        ("cgpu-smi --query-cpu=index", "--query-gpu"),
        ("cgpu-smi --query-gpu=memory.fre", "memory.free"),
        ("cgpud --metric-port=9", "--metrics"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_one_that_was_probably_meant(
    command: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(command, capsys).endswith(f": did you mean {meant}?")


@pytest.mark.parametrize(
    "command",
    ["cgpu get --colour", "cgpu colour", "cgpu colour --json", "cgpu-smi -x", "cgpu-smi 0"],
)
def test_a_word_that_is_like_none_is_refused_without_a_guess(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = refusal(command, capsys)
    assert command.removesuffix(" --json").rpartition(" ")[2] in output
    assert "did you mean" not in output


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["cgpu", "--state-dir", "", "get"], "--state-dir"),
        (["cgpu", "get", "--driver-dir="], "--driver-dir"),
        (["cgpu", "upgrade", "--prefix", "", "x"], "--prefix"),
        (["cgpu", "uninstall", "--root", "", "docker"], "--root"),
        (["cgpu-smi", "--state-dir="], "--state-dir"),
        (["cgpu-smi", "-i", ""], "-i/--id"),
        (["cgpud", "--log", ""], "--log"),
    ],
)
def test_an_empty_value_of_an_option_is_not_taken_for_the_default(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `--state-dir "$DIR"` where nobody has set that."""
    with pytest.raises(SystemExit):
        PARSERS[words[0]].build_parser().parse_args(words[1:])
    assert capsys.readouterr().err.endswith(f"argument {option}: the value is empty\n")


def test_an_empty_value_may_mean_none() -> None:
    for words in (["demo", "--nvidia-smi", ""], ["upgrade", "--pip="]):
        assert "" in vars(commands.build_parser().parse_args(words)).values()


@pytest.mark.parametrize("name", ["smi", "cgpu-smi", "run", "cgpu-run"])
def test_cgpu_help_shows_the_help_of_the_other_programs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = parse(f"cgpu help {name}")
    assert given.command.run(given) == 0
    program = f"cgpu-{name.removeprefix('cgpu-')}"
    assert capsys.readouterr().out.startswith(f"usage: {program} ")


def test_cgpu_help_shows_where_a_clone_has_its_documents(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse("cgpu help").command.run(parse("cgpu help"))
    *_, page, documents, settings = capsys.readouterr().out.splitlines()
    assert Path(page.split()[3]).is_file()
    for line, name in ((documents, "operating.md"), (settings, "config.toml")):
        assert Path(line.partition(": ")[2], name).is_file()


def test_what_was_typed_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in refusal("cgpu-smi --formt\x1b[31m", capsys)
    assert "\x1b" not in refusal("cgpu doctr\x1b[31m", capsys)


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("cgpu --state-dir /a --state-dir /b get", "state_dir", "/b"),
        ("cgpu --state-dir /a get --state-dir /b", "state_dir", "/b"),
        ("cgpu-smi -i 0 --id 1", "id", ["1"]),
        ("cgpu-smi -l 5 -l", "loop", 5.0),
        ("cgpud --idle-exit 1 --idle-exit 2", "idle_exit", 2.0),
    ],
)
def test_of_an_option_that_is_given_twice_the_last_counts(
    command: str, name: str, value: object
) -> None:
    assert getattr(parse(command), name) == value


def test_of_an_option_of_cgpu_run_that_is_given_twice_the_last_counts() -> None:
    words = ["--mem", "1/15", "--weight=1", "--mem=6/15", "--weight", "2", "true"]
    given = options.parse(words)
    assert (given.mem, given.weight) == ("6/15", "2")


def test_top_is_refused_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cgpu", "top", "--state-dir", str(tmp_path)])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert "top: this is no terminal" in capsys.readouterr().err


def test_top_is_refused_without_room_for_its_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cgpu", "top", "--svg", f"{tmp_path}/x.svg", "--state-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60 << 20, 60 << 20))
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    sentence = "cgpu: top: needs 128 MiB of address space, and this shell allows 60 MiB\n"
    assert capsys.readouterr().err.startswith(sentence)
