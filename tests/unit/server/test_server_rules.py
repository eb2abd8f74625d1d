"""Rules of GPUs and terms of containers, and their change while containers run (SCH-9, 10)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cgpu_native
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings import rules
from cgpu_node.settings.config import Config
from cgpu_node.settings.rules import POLICIES, Defaults, Rules
from cgpu_node.shares import target
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.names import names_of
from cgpu_node.shares.registry import Owner, Registry
from lab.shares.changing import change_container, change_gpus

pytestmark = pytest.mark.unit

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
GPUS = tuple(NodeGpu(i, uuid, "Tesla T4", 15109 * MIB, 0, ()) for i, uuid in enumerate(UUIDS))
DEFAULTS = Defaults()
ANY_POLICY = f"a whole number from 0 to {len(POLICIES) - 1}, or one of {', '.join(POLICIES)}"


def admit(
    registry: Registry,
    name: str,
    weight: int = 1,
    gpus: tuple[int, ...] = (0,),
    defaults: Defaults = DEFAULTS,
    policy: int | None = None,
    *,
    high: bool = False,
) -> Path:
    node = Node("1", "/", {}, {}, GPUS, (), Config(**defaults.common._asdict()))
    request = Request(tuple(GpuShare(i, UUIDS[i], MIB) for i in gpus), weight, high)
    owner = Owner(os.getpid(), start_time(os.getpid()) or 0, None)
    return Path(registry.admit(name, "container", request, node, owner, ["true"], policy=policy))


def page(directory: Path) -> cgpu_native.Limits:
    return cgpu_native.read_limits(directory / "limits")


def in_force(registry: Registry, gpu: int = 0, defaults: Defaults = DEFAULTS) -> Rules:
    changes = rules.read_changes(registry.state_dir)
    inhabited = any(gpu == share.index for r in registry.list_records() for share in r.gpus)
    return rules.resolve(UUIDS[gpu], changes, defaults, inhabited=inhabited)


def parts(*directories: Path) -> list[tuple[int, int, int]]:
    """Share, offset and limit on the first GPU, in percent."""
    gpus = [page(directory).gpus[0] for directory in directories]
    return [
        (gpu.share_ppm // 10000, gpu.offset_ppm // 10000, gpu.limit_ppm // 10000) for gpu in gpus
    ]


def test_the_configured_policy_holds_where_nobody_chose_another(registry: Registry) -> None:
    """CLI-2."""
    directory = admit(registry, "a", defaults=Defaults(Rules(policy=3)))
    assert page(directory).policy == 3
    assert registry.list_records()[0].policy == 3


def test_a_policy_that_came_with_a_program_goes_with_the_last_container(registry: Registry) -> None:
    """CLI-2: --policy."""
    admit(registry, "a", policy=3)
    admit(registry, "b")
    assert in_force(registry).policy == 3
    registry.remove("a")
    assert in_force(registry).policy == 3
    registry.remove("b")
    assert in_force(registry).policy == 6
    assert page(admit(registry, "c")).policy == 6
    assert in_force(registry).policy == 6


def test_another_policy_is_refused_on_any_gpu_that_somebody_has(registry: Registry) -> None:
    """CLI-2."""
    admit(registry, "a", gpus=(1,))
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "b", gpus=(0, 1), policy=1)
    assert str(refusal.value) == "policy 1: GPU 1 is under policy 6 while a runs"
    assert in_force(registry).policy == 6
    admit(registry, "b", gpus=(0, 1), policy=6)


def test_a_change_reaches_every_page_and_record_and_those_who_come(registry: Registry) -> None:
    """SCH-9, REL-2: also whoever starts again reads it."""
    first, second = admit(registry, "a"), admit(registry, "b", gpus=(1, 0))
    change_gpus(registry, [GPUS[0]], {"policy": 2, "prio_ratio": 50}, DEFAULTS)
    assert in_force(registry) == Rules(2, 20, 50)
    assert in_force(registry, 1) == Rules()
    assert [page(first).policy, page(second).policy] == [2, 6]
    assert [entry.policy for entry in Registry(registry.state_dir).list_records()] == [2, 6]
    assert page(admit(registry, "c")).policy == 2


def test_all_gpus_change_or_none(registry: Registry) -> None:
    """SCH-9."""
    first = admit(registry, "a", gpus=(0,))
    second = admit(registry, "b", weight=5, gpus=(1,))
    change_gpus(registry, GPUS, {"policy": "soft", "max_inst": 9}, DEFAULTS)
    assert [in_force(registry, i) for i in range(2)] == [Rules(4, 9, 80)] * 2
    assert [page(first).policy, page(second).policy] == [4, 4]
    with pytest.raises(CgpuError, match="max_inst=4: the containers on GPU 1 have weight 5"):
        change_gpus(registry, GPUS, {"policy": "fixed", "max_inst": 4}, DEFAULTS)
    assert [in_force(registry, i) for i in range(2)] == [Rules(4, 9, 80)] * 2


def test_a_gpu_can_have_rules_of_its_own_until_they_are_changed(registry: Registry) -> None:
    """SCH-9: what the configuration says of one GPU."""
    defaults = Defaults(Rules(policy=1), {UUIDS[1]: Rules(policy=3, prio_ratio=50)})
    assert [in_force(registry, i, defaults).policy for i in range(2)] == [1, 3]
    change_gpus(registry, GPUS, {"policy": 2}, defaults)
    assert [in_force(registry, i, defaults) for i in range(2)] == [Rules(2), Rules(2, 20, 50)]


def test_a_change_takes_the_place_of_a_policy_that_was_brought(registry: Registry) -> None:
    """SCH-9."""
    admit(registry, "a", policy=3)
    change_gpus(registry, [GPUS[0]], {"policy": 1}, DEFAULTS)
    assert in_force(registry).policy == 1
    registry.remove("a")
    assert in_force(registry).policy == 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"policy": 99}, f"policy=99: expected {ANY_POLICY}"),
        ({"policy": "x"}, f"policy=x: expected {ANY_POLICY}"),
        (
            {"policy": "Weigted_fair"},
            f"policy=Weigted_fair: expected {ANY_POLICY}: did you mean weighted-fair?",
        ),
        ({"policy": "99"}, f"policy=99: expected {ANY_POLICY}"),
        ({"policy": True}, f"policy=True: expected {ANY_POLICY}"),
        ({"max_inst": "fixed"}, "max_inst=fixed: expected a whole number from 1 to 25"),
        ({"max_inst": 26}, "max_inst=26: expected a whole number from 1 to 25"),
        ({"prio_ratio": 100}, "prio_ratio=100: expected a whole number from 20 to 99"),
        ({"prio_ratio": True}, "prio_ratio=True: expected a whole number from 20 to 99"),
        ({"max_inst": 4}, "max_inst=4: the containers on GPU 0 have weight 5 together"),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(
    registry: Registry, values: dict[str, object], sentence: str
) -> None:
    """SCH-9, SCH-10."""
    admit(registry, "a", weight=5)
    with pytest.raises(CgpuError) as refusal:
        change_gpus(registry, [GPUS[0]], {"prio_ratio": 30, **values}, DEFAULTS)
    assert str(refusal.value) == sentence
    assert in_force(registry) == Rules()


def test_a_weight_within_a_raised_max_inst_is_admitted(registry: Registry) -> None:
    """ENV-6, SCH-10: on the GPU whose max_inst was raised, and on no other."""
    change_gpus(registry, [GPUS[0]], {"max_inst": 25}, DEFAULTS)
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "a", weight=22, gpus=(0, 1))
    assert str(refusal.value) == (
        "weight=22: expected a whole number from 1 to 20, the max_inst of GPU 1"
    )
    admit(registry, "a", weight=22)


def test_a_weight_that_nobody_set_is_not_called_set(registry: Registry) -> None:
    """SCH-10."""
    admit(registry, "a", weight=20)
    with pytest.raises(CgpuError) as refusal:
        admit(registry, "b")
    assert str(refusal.value) == (
        "no weight is left on GPU 0: its containers have 20 of max_inst=20 together, and this"
        " one needs 1"
    )


def test_max_inst_of_a_gpu_bounds_what_is_admitted_there(registry: Registry) -> None:
    """SCH-10."""
    change_gpus(registry, [GPUS[0]], {"max_inst": 2}, DEFAULTS)
    with pytest.raises(CgpuError, match="weight=3: expected a whole number from 1 to 2"):
        admit(registry, "a", weight=3)
    for name in ("a", "b"):
        admit(registry, name)
    with pytest.raises(CgpuError, match="GPU 0 has 2 containers already, and max_inst allows"):
        admit(registry, "c")
    change_gpus(registry, [GPUS[1]], {"max_inst": 1}, DEFAULTS)
    admit(registry, "c", gpus=(1,))
    with pytest.raises(CgpuError, match="GPU 1 has 1 container already, and max_inst allows"):
        admit(registry, "d", gpus=(1,))
    change_gpus(registry, [GPUS[1]], {"max_inst": 4}, DEFAULTS)
    admit(registry, "d", weight=3, gpus=(1,))


def test_weight_and_priority_change_in_record_and_page(registry: Registry) -> None:
    """SCH-9."""
    directory = admit(registry, "abc", gpus=(0, 1))
    change_container(registry, "ab", {"weight": 20, "highprio": 1}, DEFAULTS)
    (entry,) = registry.list_records()
    assert (entry.weight, entry.high_priority) == (20, True)
    assert (page(directory).weight, page(directory).high_priority) == (20, True)
    assert sorted(path.name for path in directory.iterdir()) == ["ledger", "limits", "record.json"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"weight": 16}, "weight=16: GPU 0 has 15 of 20 free"),
        ({"weight": 21}, "weight=21: expected a whole number from 1 to 20"),
        ({"weight": 0}, "weight=0: expected a whole number from 1 to 20"),
        ({"weight": "4"}, "weight=4: expected a whole number from 1 to 20"),
        ({"highprio": 2}, "highprio=2: expected a whole number from 0 to 1"),
    ],
)
def test_a_weight_for_which_there_is_no_room_is_refused(
    registry: Registry, values: dict[str, object], sentence: str
) -> None:
    """SCH-10: the sum of the weights stays within max_inst."""
    admit(registry, "a", weight=5)
    admit(registry, "b", weight=2)
    with pytest.raises(CgpuError) as refusal:
        change_container(registry, "b", values, DEFAULTS)
    assert str(refusal.value) == sentence
    assert [entry.weight for entry in registry.list_records()] == [5, 2]
    change_container(registry, "b", {"weight": 15}, DEFAULTS)


def test_there_has_to_be_room_for_a_weight_on_each_of_its_gpus(registry: Registry) -> None:
    """SCH-10."""
    admit(registry, "both", gpus=(0, 1))
    admit(registry, "other", gpus=(1,), weight=15)
    with pytest.raises(CgpuError, match="weight=6: GPU 1 has 5 of 20 free"):
        change_container(registry, "both", {"weight": 6}, DEFAULTS)
    change_container(registry, "both", {"weight": 5}, DEFAULTS)


def test_a_container_is_found_by_the_beginning_of_its_id(registry: Registry) -> None:
    for name in ("abc", "abd", "ab"):
        admit(registry, name)
    names = names_of(registry.list_records())
    assert [target.find_container(name, names) for name in ("abc", "ab")] == ["abc", "ab"]
    with pytest.raises(CgpuError, match="'a' means 3 containers: ab, abc, abd: name one by its"):
        target.find_container("a", names)
    for name in ("", "x"):
        with pytest.raises(CgpuError, match="no such container"):
            target.find_container(name, names)


def test_whoever_comes_or_changes_moves_the_parts_of_the_others(registry: Registry) -> None:
    """REL-2: without an arbiter the parts do not overlap."""
    first = admit(registry, "a")
    assert parts(first) == [(100, 0, 100)]
    second = admit(registry, "b", weight=3)
    assert parts(first, second) == [(25, 0, 25), (75, 25, 75)]
    change_container(registry, "a", {"weight": 3}, DEFAULTS)
    assert parts(first, second) == [(50, 0, 50), (50, 50, 50)]
    change_gpus(registry, [GPUS[0]], {"policy": 3}, DEFAULTS)
    assert parts(first, second) == [(15, 0, 15), (15, 15, 15)]


def test_under_policy_0_each_has_one_of_max_inst_whatever_its_weight(registry: Registry) -> None:
    """SCH-0."""
    defaults = Defaults(Rules(policy=0, max_inst=4))
    first = admit(registry, "a", weight=1, defaults=defaults)
    second = admit(registry, "b", weight=3, defaults=defaults, high=True)
    assert [share for share, *_ in parts(first, second)] == [25, 25]
    with pytest.raises(CgpuError, match="no weight is left on GPU 0: its containers have 4"):
        admit(registry, "c", defaults=defaults)


@pytest.mark.parametrize(("policy", "state"), [(5, 3), (0, 0), (6, 0)])
def test_before_an_arbiter_looks_only_the_native_policy_leaves_the_gate_open(
    registry: Registry, policy: int, state: int
) -> None:
    """SCH-5, REL-2."""
    gpu = page(admit(registry, "a", policy=policy)).gpus[0]
    assert (gpu.gate & 3, gpu.heartbeat_ns) == (state, 0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 9}', '{"version": 1}', "[" * 9999])
def test_damaged_rules_leave_the_configured_ones(registry: Registry, content: str) -> None:
    Path(registry.state_dir, rules.FILE).write_text(content)
    assert page(admit(registry, "a")).policy == 6


def test_a_value_out_of_range_in_the_file_is_left_out(registry: Registry) -> None:
    gpus = {UUIDS[0]: {"policy": 9, "prio_ratio": 40, "max_inst": "2"}}
    Path(registry.state_dir, rules.FILE).write_text(json.dumps({"version": 1, "gpus": gpus}))
    assert in_force(registry) == Rules(prio_ratio=40)
