"""A thousand containers in any order: each has what was decided for it, and nothing else (K8S-11).

Kubelet and agent are not asked: a container that was bound while they were down, or whose node has
just started, finds everything in its own configuration.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from cgpu_env.errors import CgpuError
from cgpu_hook import modifiers
from cgpu_hook.bundle import Creation, edit_bundle
from cgpu_hook.plan import Setting
from cgpu_node.settings.config import load_config
from lab.worlds.identity import CONTAINERS, NODES, Wanted, wanted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def create(each: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the editor edit a container whose variables ask for something else."""
    world = each.world
    config = load_config(str(world.etc / "cgpu" / "config.toml"))
    monkeypatch.setattr(modifiers, "load_config", lambda: config)
    env = ["NVIDIA_VISIBLE_DEVICES=all", "ALIYUN_COM_GPU_MEM_CONTAINER=1"]
    world.write_config(env, annotations=each.annotations)
    lives = world.runs / each.id
    lives.mkdir(exist_ok=True)
    creation = Creation(str(world.config), str(world.bundle), each.id, os.getpid(), str(lives))
    edit_bundle(creation, Setting(str(world.state), str(world.driver)), lambda _: None)


def test_k8s_11_a_thousand_containers_in_any_order_have_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10 nodes with GPUs of different sizes; also when each is asked for out of turn."""
    everything = [each for number in range(NODES) for each in wanted(tmp_path, number)]
    assert len(everything) == 1000
    random.Random(1).shuffle(everything)
    wrong = []
    for each in everything:
        create(each, monkeypatch)
        wrong.append(each.has(each.id))
    assert [*filter(None, wrong)] == []
    for world in {each.world for each in everything}:
        assert len(world.shares()) == CONTAINERS


def test_k8s_11_the_decision_of_another_pod_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred pods that show their neighbour's annotations."""
    own = list(wanted(tmp_path, 0))
    pairs = list(zip(own, own[5:], strict=False))  # a pod has three containers at most
    engine_s = {name for each in own[:1] for name in each.annotations if name.startswith("io.")}
    for each, other in pairs:
        stolen = {name: text for name, text in other.annotations.items() if name not in engine_s}
        kept = {name: each.annotations[name] for name in engine_s}
        with pytest.raises(CgpuError, match="the UID of this pod"):
            create(each._replace(annotations={**stolen, **kept}), monkeypatch)
    assert own[0].world.shares() == []
