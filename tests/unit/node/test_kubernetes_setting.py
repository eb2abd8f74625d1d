"""The file that makes a node's pods follow decisions, and the rules that its mode stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects.gpus import MODES
from cgpu_node.settings import kubernetes
from cgpu_node.settings.config import KUBERNETES, Config, identify_config, load_config
from cgpu_node.settings.kubernetes import (
    CGPU,
    CORE_MEM,
    RULES,
    SHARE,
    Kubernetes,
    read_setting,
    write_setting,
)
from cgpu_node.settings.rules import POLICIES

pytestmark = pytest.mark.unit

SETTING = Kubernetes("gpu-a.example", CORE_MEM, ("monitoring", "kube-system"))


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> str:
    return str(tmp_path / "cgpu" / KUBERNETES)


def test_what_the_agent_writes_is_read_again(path: str) -> None:
    assert not Path(path).exists()
    write_setting(path, SETTING)
    assert read_setting(path) == SETTING
    write_setting(path, SETTING._replace(mode=SHARE, pass_through=()))
    assert read_setting(path) == Kubernetes("gpu-a.example", SHARE)
    assert [each.name for each in Path(path).parent.iterdir()] == [KUBERNETES]


def test_without_the_file_pods_are_like_other_containers(path: str) -> None:
    assert read_setting(path) is None
    assert load_config(str(Path(path).with_name("config.toml"))).kubernetes is None


FIELDS = {"version": 1, "node": "gpu-a", "mode": "cgpu"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not JSON: "),
        ("[]", "expected a JSON object"),
        ({**FIELDS, "version": 2}, "version = 2: expected 1"),
        ({**FIELDS, "version": True}, "version = True: expected 1"),
        ({**FIELDS, "node": ""}, "node = : expected the node's name"),
        ({"version": 1, "mode": "cgpu"}, "node = None: expected the node's name"),
        ({**FIELDS, "mode": "core"}, "mode = core: expected one of share, cgpu, core_mem"),
        ({**FIELDS, "mode": ["cgpu"]}, "mode = ['cgpu']: expected one of share, cgpu, core_mem"),
        ({**FIELDS, "pass_through": "default"}, "pass_through: expected a list of namespaces"),
        ({**FIELDS, "pass_through": [""]}, "pass_through: expected a list of namespaces"),
        ({**FIELDS, "passthrough": []}, "passthrough: expected the fields version, node, mode, p"),
    ],
)
def test_a_damaged_file_stops_every_start_and_names_its_field(
    path: str, content: Any, sentence: str
) -> None:
    write_setting(path, SETTING)
    Path(path).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CgpuError) as error:
        load_config(str(Path(path).with_name("config.toml")))
    assert str(error.value).startswith(f"{path}: {sentence}")


def test_a_file_that_others_could_change_counts_for_nothing(path: str) -> None:
    write_setting(path, SETTING)
    Path(path).chmod(0o666)
    with pytest.raises(CgpuError, match="others could change it"):
        read_setting(path)


def test_nothing_is_written_that_would_not_be_read(path: str) -> None:
    with pytest.raises(CgpuError, match="mode = mig"):
        write_setting(path, SETTING._replace(mode="mig"))
    assert not Path(path).exists()


def test_modes_are_those_of_the_allocator() -> None:
    assert [*RULES] == [*MODES]
    assert [POLICIES[RULES[mode]["policy"]] for mode in (CGPU, CORE_MEM)] == ["native", "fixed"]


def test_a_mode_sets_its_rules_and_leaves_the_others(path: str) -> None:
    folder = Path(path).parent
    write_setting(path, SETTING)
    config = folder / "config.toml"
    config.write_text(
        "[node]\npolicy = 6\nmax_inst = 9\nprio_ratio = 70\n[gpu.0]\npolicy = 1\nprio_ratio = 60\n"
    )
    found = load_config(str(config))
    assert (found.policy, found.max_inst, found.prio_ratio) == (3, 20, 70)
    assert found.gpu == {"0": {"prio_ratio": 60}}
    write_setting(path, SETTING._replace(mode=SHARE))
    found = load_config(str(config))
    assert (found.policy, found.max_inst, found.gpu["0"]["policy"]) == (6, 9, 1)
    assert found._replace(kubernetes=None) != Config()


def test_the_server_sees_that_either_file_has_changed(path: str) -> None:
    config = Path(path).with_name("config.toml")
    seen = [identify_config(str(config))]
    write_setting(path, SETTING)
    seen.append(identify_config(str(config)))
    config.write_text("")
    seen.append(identify_config(str(config)))
    write_setting(path, SETTING._replace(mode=SHARE))
    seen.append(identify_config(str(config)))
    assert len(set(seen)) == 4
    assert identify_config(str(config)) == seen[-1]
    assert kubernetes.read_setting(path) is not None
