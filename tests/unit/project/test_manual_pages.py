"""The manual pages say what the programs say of themselves."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from cgpu_cli import smi
from cgpu_cli.commands import commands
from cgpu_cli.running import options
from cgpu_env import Gpu, parse_request
from cgpu_env.request import parse_environment
from cgpu_native import policies
from cgpu_node import installation
from cgpu_server import main as server

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "man"


def test_the_pages_are_those_of_these_programs() -> None:
    """``make man`` writes them."""
    made = runpy.run_path(str(ROOT / "deploy" / "man"))["pages"]()
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == made


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_a_page_is_understood_by_man(name: str) -> None:
    section = name.rpartition(".")[2]
    text = (FOLDER / name).read_text()
    if text.startswith(".so "):
        assert text == ".so man8/cgpu-runtime.8\n"
        return
    assert text.startswith(f".TH {name.removesuffix('.' + section).upper()} {section} ")
    words = ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(FOLDER / name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_says_how_to_read_the_pages_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands may be links in a folder that man looks for no pages beside."""
    shared = tmp_path / "an environment" / "share"
    pages = shared / "man" / "man7"
    pages.mkdir(parents=True)
    shutil.copy(FOLDER / "cgpu.7", pages)
    monkeypatch.setattr(installation, "find_shared_folder", lambda: str(shared))
    output = commands.build_parser().format_help()
    [line] = [line for line in output.splitlines() if line.startswith("manual pages: ")]
    command, *words = shlex.split(line.removeprefix("manual pages: ").partition(" (")[0])
    asked = [command, "--where", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.stdout == f"{pages}/cgpu.7\n"
    monkeypatch.setattr(installation, "find_shared_folder", lambda: "/usr/share")
    assert "manual pages: man 7 cgpu (" in commands.build_parser().format_help()


def section(name: str, title: str) -> str:
    """A section of a page, as it is read: without the marks of roff."""
    text = (FOLDER / name).read_text().partition(f".SH {title}\n")[2].partition("\n.SH ")[0]
    return text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\e", "\\")


PAGES = sorted(path.name for path in FOLDER.iterdir() if path.name != "cgpu-hook.8")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_variables_and_examples(name: str) -> None:
    assert section(name, "ENVIRONMENT")
    assert section(name, "EXAMPLES").count(".nf") >= (10 if name == "cgpu.7" else 1)


def test_the_overview_has_every_variable_of_the_code() -> None:
    sources = [
        path.read_text()
        for folder in ("cgpu_env", "cli", "hook", "native", "node", "server", "shim")
        for path in (ROOT / folder).rglob("*.[pch]*")
        if path.suffix in {".py", ".c", ".h"}
    ]
    read = set(re.findall(r'"((?:ALIYUN_COM_GPU|CGPU)_[A-Z_]+[A-Z])"', "\n".join(sources)))
    read -= {"ALIYUN_COM_GPU_MEM_UNIT", "CGPU_SIM_TAG"}  # of other tools; of the simulated driver
    read -= {"ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"}  # for programs in pods to read
    listed = re.findall(r"^(?:\.B )?([A-Z_]{5,})$", section("cgpu.7", "ENVIRONMENT"), re.MULTILINE)
    others = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
    assert set(listed) - {*others, "XDG_RUNTIME_DIR"} == read
    for name in PAGES:
        named = re.findall(r"\b(?:ALIYUN_COM_GPU|CGPU)_[A-Z_]+[A-Z]\b", (FOLDER / name).read_text())
        assert set(named) <= read, name


def test_the_overview_has_the_policies_of_the_code() -> None:
    listed = re.findall(r"^\.B (\d) (.+)$", section("cgpu.7", "POLICIES"), re.MULTILINE)
    output = {int(number): name.removesuffix(" (default)") for number, name in listed}
    assert output == policies.POLICIES


def commands_of(name: str) -> list[str]:
    """What the examples of a page type."""
    blocks = re.findall(r"^\.nf\n(.*?)\n\.fi", section(name, "EXAMPLES"), re.MULTILINE | re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


COMMANDS = [each for name in PAGES if name != "cgpu.toml.5" for each in commands_of(name)]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_understood_by_its_program(command: str) -> None:
    program, *words = shlex.split(command)
    gpus = [Gpu(index, f"GPU-{index}", 15 << 30) for index in range(2)]
    if program == "docker":
        given = parse_environment(value for flag, value in pairwise(words) if flag == "-e")
        asked = parse_request(given, gpus)
        assert (asked is None) == ("CGPU_DISABLE" in given)
    elif program == "cgpu-run":
        assert parse_request(options.to_variables(options.parse(words)), gpus, has_units=True)
    elif program == "cgpu-runtime":
        flags = section("cgpu-runtime.8", "OPTIONS")
        assert all(word in flags for word in words if word.startswith("--"))
    else:
        parsers = {"cgpu": commands, "cgpu-smi": smi, "cgpud": server}
        assert parsers[program].build_parser().parse_args(words)
