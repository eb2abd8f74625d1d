"""DRA-2, DRA-7: rows of claims in cgpu-smi, cgpu top and cgpu get name the claim and its pods."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cgpu_cli.commands import get
from cgpu_cli.show import table
from cgpu_cli.show.query import format_usage
from cgpu_cli.show.trend import Trend
from cgpu_env import GpuShare, Request
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.claimants import add_container
from cgpu_node.shares.record import Owner, PodContainer
from cgpu_node.shares.registry import Registry
from cgpu_node.view.usage import read_usage
from cgpu_node.view.view import parse_usage

if TYPE_CHECKING:
    from pathlib import Path

    from cgpu_node.view.view import Usage

pytestmark = pytest.mark.unit

UUID = "GPU-00000000-1111-2222-3333-444444444444"
UID = "6a1d5e0e-0000-4000-8000-000000000001"
NAMES = ("ml/one/main", "ml/one/side")


@pytest.fixture
def usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Usage:
    """A claim that two containers of a pod have, as a server answers."""
    gpus = (NodeGpu(0, UUID, "Tesla T4", 15109 << 20, 0, ()),)
    node = Node("535.0", "/nowhere", {}, {}, gpus, ())
    monkeypatch.setattr("cgpu_node.view.usage.load_node", lambda *_, **__: node)
    request = Request((GpuShare(0, UUID, 1 << 30),), 6, high_priority=False)
    owner = Owner(0, 0, str(tmp_path))
    registry = Registry(str(tmp_path))
    directory = registry.admit(UID, "claim", request, node, owner, ["ml/part"])
    for pid, container in ((os.getpid(), "main"), (os.getppid(), "side")):
        add_container(directory, pid, PodContainer("uid", "ml", "one", container))
    return parse_usage(read_usage(str(tmp_path), None).as_json())


def test_dra_7_a_row_names_the_claim_and_who_has_it(usage: Usage) -> None:
    [use] = usage.uses
    assert (use.kind, use.name, use.pods) == ("claim", "ml/part", NAMES)
    assert table.format_title(use) == "ml/part (one/main, one/side)"
    assert table.format_title(use._replace(pods=())) == "ml/part"
    [row] = Trend().make_rows(usage)
    assert row.name == "ml/part (one/main, one/side)"


def test_dra_2_a_claim_without_cores_has_no_weight_to_show(usage: Usage) -> None:
    [use] = usage.uses
    use = use._replace(weight=0)
    shown = usage._replace(uses=(use,))
    assert table.format_weight(use.weight, is_high=False) == "-"
    assert table.format_weight(use.weight, is_high=True) == "-!"
    assert table.format_weight(6, is_high=False) == "6"
    lines = [" ".join(line.split()) for line in format_usage(shown)]
    assert "Weight : 0 (what is left, by memory)" in lines


def test_dra_7_all_that_is_known_has_a_line_for_each_container(usage: Usage) -> None:
    lines = [line.split(maxsplit=2) for line in format_usage(usage)]
    assert ["Claim", UID] in lines
    assert [words[2] for words in lines if words[:2] == ["Pod", ":"]] == [*NAMES]


def test_dra_7_cgpu_get_names_them_in_the_claims_line(usage: Usage) -> None:
    [entry] = usage.as_json()["containers"]
    assert entry["pods"] == [*NAMES]
    [line] = get._format_lines({"gpus": [], "containers": [entry]})  # noqa: SLF001 (its text)
    assert line.startswith(
        f"{UID}  weight=6 highprio=0 claim=ml/part pods=ml/one/main,ml/one/side  GPU 0 limit="
    )
