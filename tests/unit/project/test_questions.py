"""What docs/faq.md answers is what programs and results say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from cgpu_cli.commands import commands
from cgpu_cli.running import options
from cgpu_env import Gpu, parse_request
from cgpu_env.request import parse_environment

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "faq.md").read_text()
TEXT = " ".join(PAGE.split())
RESULT = ROOT / "bench" / "results" / "2026-11-27-nvidia-h200-driver580.159.04.json"
MIB = 1 << 20
T4, LARGE = Gpu(0, "GPU-0", 15109 * MIB), Gpu(0, "GPU-0", 80 << 30)


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("command", re.findall(r"`(cgpu(?:-run)? [^` ]+ [^`]+)`", TEXT))
def test_a_command_is_understood_by_its_program(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "cgpu":
        assert commands.build_parser().parse_args(words)
    else:
        assert parse_request(options.to_variables(options.parse(words)), [T4], has_units=True)


def test_the_service_of_compose_gets_the_share() -> None:
    service = yaml.safe_load(block("yaml"))["services"]["train"]
    assert service["runtime"] == "cgpu"
    given = parse_environment(f"{name}={value}" for name, value in service["environment"].items())
    for gpu, cap in ((T4, "6,043 MiB"), (LARGE, "32 GiB")):
        request = parse_request(given, [gpu])
        assert request is not None
        number, unit = cap.replace(",", "").split()
        assert request.gpus[0].cap_bytes // (MIB if unit == "MiB" else 1 << 30) == int(number)
        assert cap in TEXT
        assert request.weight == service["environment"]["ALIYUN_COM_GPU_SCHD_WEIGHT"]


def test_the_command_of_the_kernel_is_a_program_with_a_share() -> None:
    program, *words = json.loads(block("json"))["argv"]
    assert program == "cgpu-run"
    assert options.parse(words).program[0] == "python"


def test_the_figures_are_those_of_the_result() -> None:
    checks = json.loads(RESULT.read_text())["checks"]
    found = {each["name"]: each["measured"] for each in checks if each["cage"] != "runc"}
    [context] = found["a_context_costs_about_100_to_620_mib"]["mib"]
    assert f"{context:.0f} MiB on an H200" in TEXT
    training = found["the_ledger_is_right_after_a_training"]["stages"]["training"]
    assert f"{(training['driver'] - training['reserved']) // MIB} MiB after a small" in TEXT
    stops = [found[name] for name in found if name.endswith("_at_the_cap")]
    assert {each["torch"].partition("+")[0] for each in stops} == {"2.11.0"}
