"""What an agent plans to do for its node, step by step (K8S-3, K8S-12)."""

from __future__ import annotations

from typing import Any

import pytest

from cgpu_k8s.names import FACTS, SCHEDULE
from cgpu_k8s.node.gpu_observer import GpuState
from cgpu_k8s.node.node_resources import DriverGpu
from cgpu_k8s.node.plan import (
    HELD,
    LOST,
    NOT_OFFERED,
    EndEvents,
    NodePlan,
    NodeState,
    PatchNode,
    PublishDevices,
    PublishUnits,
    PutSetting,
    SendEvent,
    WriteLog,
    plan_offer,
    plan_withdrawal,
)
from cgpu_node.settings.kubernetes import Kubernetes

pytestmark = pytest.mark.unit

GPU = DriverGpu("GPU-0", 0, "V100", 16160)
CGPU, SHARE = Kubernetes("gpu-a", "cgpu"), Kubernetes("gpu-a", "share")
WHY = "the engine has no runtime of cgpu"


def state(label: str = "cgpu", **changes: Any) -> NodeState:
    """A node that a kubelet knows, with one GPU and no pods."""
    found = NodeState(
        {"metadata": {"labels": {SCHEDULE: label}}, "status": {}},
        (),
        frozenset(),
        GpuState((GPU,), names={GPU.uuid: GPU.name}),
        {},
        has_setting=False,
        has_units=False,
        is_registered=True,
    )
    return found._replace(**changes)


def kinds(plan: NodePlan) -> list[type]:
    return [type(step) for step in plan.steps if not isinstance(step, EndEvents)]


def applied(given: NodeState, plan: NodePlan) -> NodeState:
    """The node once the patches of a plan are in its object."""
    node: Any = {**given.node}
    for step in plan.steps:
        if isinstance(step, PatchNode):
            for part, members in step.patch.items():
                merged = {**node.get(part, {})}
                for name, values in members.items():
                    merged[name] = {**merged.get(name, {}), **values}
                node[part] = merged
    return given._replace(node=node)


def test_the_mode_is_in_force_before_anything_is_offered_and_resources_before_facts() -> None:
    plan = plan_offer(state(), None, CGPU, {})
    assert kinds(plan) == [PublishDevices, PutSetting, WriteLog, PatchNode, PatchNode, WriteLog]
    parts = [step.part for step in plan.steps if isinstance(step, PatchNode)]
    assert parts == ["status", ""]
    assert plan.health == ()


def test_a_node_that_is_as_it_should_be_is_not_written() -> None:
    given = applied(state(), plan_offer(state(), None, CGPU, {}))
    assert FACTS in given.node["metadata"]["annotations"]
    assert kinds(plan_offer(given, CGPU, CGPU, {})) == [PublishDevices]


def test_nothing_is_offered_until_a_kubelet_knows_the_devices() -> None:
    plan = plan_offer(state(is_registered=False), None, CGPU, {})
    assert kinds(plan) == [PublishDevices, PutSetting, WriteLog]
    assert plan.health is None


def test_where_nobody_may_write_the_status_units_are_published() -> None:
    plan = plan_offer(state(has_units=True), CGPU, CGPU, {})
    assert kinds(plan) == [PublishDevices, PublishUnits, PatchNode, WriteLog]


def test_another_mode_waits_for_the_pods_of_the_one_in_force() -> None:
    plan = plan_offer(state(sharing=("ml/a", "ml/b")), SHARE, CGPU, {})
    assert [each.reason for each in plan.steps if isinstance(each, SendEvent)] == [HELD]
    assert PutSetting not in kinds(plan)
    assert PutSetting(CGPU) in plan_offer(state(), SHARE, CGPU, {}).steps


def test_a_node_without_pods_takes_back_what_it_offered_and_one_with_pods_keeps_it() -> None:
    offered = applied(state(), plan_offer(state(), None, CGPU, {}))
    plan = plan_withdrawal(offered, WHY)
    assert kinds(plan) == [PublishDevices, PatchNode, PatchNode, WriteLog, SendEvent]
    assert plan.steps[-1] == SendEvent(NOT_OFFERED, WHY)
    kept = plan_withdrawal(offered._replace(sharing=("ml/a",)), WHY)
    assert kinds(kept) == [PatchNode, SendEvent]
    assert WHY in str(kept.steps[0])
    assert "until pod ml/a has ended" in str(kept.steps[1])


def test_on_a_node_that_is_left_to_others_pods_are_like_any_container() -> None:
    plan = plan_withdrawal(state("default"), "the node gives whole GPUs to pods")
    assert PutSetting(None) in plan.steps
    assert plan.steps[-1] == EndEvents(NOT_OFFERED)


def test_a_lost_gpu_that_was_never_offered_has_an_event_of_its_own() -> None:
    gone = DriverGpu("", 1, "", 0, "it fell off the bus")
    plan = plan_offer(state(gpus=GpuState((GPU,), (gone,))), CGPU, CGPU, {})
    [event] = [each for each in plan.steps if isinstance(each, SendEvent)]
    assert (event.reason, event.about in event.message) == (LOST, True)


def test_without_a_gpu_that_answers_nothing_is_offered() -> None:
    plan = plan_offer(state(gpus=GpuState((), silence="no driver")), CGPU, CGPU, {})
    assert plan.steps[-1] == SendEvent(NOT_OFFERED, "no driver")
    assert plan.health is None
