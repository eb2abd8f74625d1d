"""A decision is held to what its pod asks for, as the node's agent left it (K8S-15, COS-6).

Whoever forges a decision can write into annotations, and not into the specification of a pod.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from cgpu_env.errors import CgpuError
from cgpu_node import podspecs
from cgpu_node.allocation_annotation import Grant
from cgpu_node.podspecs import Current, Limit, PodSpec
from cgpu_node.settings.kubernetes import CORE_MEM, SHARE, TOPOLOGY
from lab.worlds.hook import with_interpreter
from lab.worlds.pods import GPUS, UID, PodWorld, containerd, crio, decided

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

UNIT = 1079  # MiB of 1 of 14 units of a GPU of 15,109 MiB
ALL = ["NVIDIA_VISIBLE_DEVICES=all"]
NO_UNITS = "expected a container with aliyun.com/gpu-mem in its limits"


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> PodWorld:
    return PodWorld(tmp_path / "world")


def leave(world: PodWorld, **containers: Limit) -> None:
    """What the agent leaves about the pod."""
    podspecs.write_spec(str(world.state), UID, PodSpec("ml/train", containers))


@contextmanager
def agent(world: PodWorld) -> Iterator[None]:
    """An agent that is up to date."""
    current = Current(str(world.state))
    assert current.begin()
    yield
    current.end()


def test_k8s_15_a_decision_as_the_pod_asks_for_is_followed(world: PodWorld) -> None:
    leave(world, main=Limit(2), side=Limit(1))
    grants = {"main": {GPUS[0]: Grant(UNIT), GPUS[1]: Grant(UNIT)}, "side": {GPUS[0]: Grant(UNIT)}}
    with agent(world):
        done = world.create(containerd(decided(grants)))
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"main": {GPUS[1]: Grant(3 * UNIT)}}, "containers.main: aliyun.com/gpu-mem=3: exp"),
        ({"main": {GPUS[1]: Grant(2 * UNIT + 1)}}, "containers.main: aliyun.com/gpu-mem=3: "),
        (
            {"main": {GPUS[0]: Grant(2 * UNIT), GPUS[1]: Grant(1)}},
            "containers.main: aliyun.com/gpu-mem=3: expected at most 2, the pod's own limit",
        ),
        ({name: {GPUS[1]: Grant(1)} for name in ("main", "side")}, f"containers.side: {NO_UNITS}"),
    ],
)
@pytest.mark.parametrize("lives", [True, False])
def test_k8s_15_a_decision_above_the_pods_limits_is_refused(
    world: PodWorld, given: dict[str, dict[str, Grant]], sentence: str, *, lives: bool
) -> None:
    """Also by what an agent left that has ended."""
    leave(world, main=Limit(2))
    if lives:
        with agent(world):
            done = world.create(containerd(decided(given)))
    else:
        done = world.create(containerd(decided(given)))
    assert done.returncode == 1
    assert done.stderr.startswith(f"cgpu: cgpu/allocation: {sentence}"), done.stderr
    assert world.shares() == []


def test_k8s_15_time_above_the_pods_limits_is_refused(world: PodWorld) -> None:
    world.switch(CORE_MEM)
    leave(world, main=Limit(2, 30))
    done = world.create(containerd(decided({"main": {GPUS[0]: Grant(UNIT, 35)}})))
    where = "containers.main: aliyun.com/gpu-core.percentage=35: expected at most 30"
    assert done.stderr.startswith(f"cgpu: cgpu/allocation: {where}"), done.stderr


def test_k8s_15_where_only_placement_is_decided_the_pod_is_held_to_it_too(world: PodWorld) -> None:
    world.switch(SHARE)
    leave(world, main=Limit(2))
    done = world.create(containerd(decided({"main": {GPUS[0]: Grant(3 * UNIT)}})))
    assert "aliyun.com/gpu-mem=3: expected at most 2" in done.stderr


@pytest.mark.parametrize("mode", [TOPOLOGY, SHARE])
def test_cos_6_whole_gpus_are_held_to_the_pods_number(world: PodWorld, mode: str) -> None:
    """And are given by no node that shares its GPUs."""
    world.switch(mode)
    leave(world, main=Limit(0, gpu=1))
    one, both = ({"main": {uuid: Grant(15109) for uuid in GPUS[:n]}} for n in (1, 2))
    done = world.create(containerd(decided(both)))
    expected = {
        TOPOLOGY: "containers.main: aliyun.com/gpu=2: expected at most 1, the pod's own limit",
        SHARE: "containers.main: aliyun.com/gpu-mem=28: expected at most 0, the pod's own limit",
    }
    assert expected[mode] in done.stderr
    assert world.create(containerd(decided(one))).returncode == int(mode == SHARE)


def test_cos_6_a_container_without_a_decision_is_told_what_it_asks_for(world: PodWorld) -> None:
    leave(world, main=Limit(0, gpu=2))
    done = world.create(containerd({}))
    assert "container main has the limit aliyun.com/gpu=2, and came without" in done.stderr


def test_k8s_15_a_pod_that_asks_for_nothing_gets_nothing_by_an_annotation(
    world: PodWorld,
) -> None:
    """Its file does not come, and the sentence says what the agent does not know."""
    with agent(world):
        done = world.create(containerd(decided({"main": {GPUS[0]: Grant(UNIT)}})))
    assert done.returncode == 1
    known = f"pod={UID}: expected the UID of a pod that asks for aliyun.com/gpu-mem; the agent of"
    assert done.stderr.startswith(f"cgpu: cgpu/allocation: {known}"), done.stderr
    assert world.shares() == []


def test_an_agent_that_is_slower_than_the_kubelet_is_waited_for(world: PodWorld) -> None:
    timer = Timer(0.3, lambda: leave(world, main=Limit(1)))
    with agent(world):
        timer.start()
        done = world.create(containerd(decided({"main": {GPUS[0]: Grant(UNIT)}})))
    assert done.returncode == 0, done


def test_without_an_agent_pods_start_by_their_decision(world: PodWorld) -> None:
    """One that has never run, and one that has ended or has lost the API server."""
    one = containerd(decided({"main": {GPUS[0]: Grant(UNIT)}}))
    assert world.create(one).returncode == 0
    with agent(world):
        pass
    (world.runs / "c2").mkdir()
    assert world.create(one, name="c2").returncode == 0


def test_nobody_waits_without_an_agent(world: PodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(podspecs, "sleep", pauses.append)
    assert podspecs.wait_for_spec(str(world.state), UID) == (None, False)
    leave(world, main=Limit(1))
    with agent(world):
        left = PodSpec("ml/train", {"main": Limit(1)})
        assert podspecs.wait_for_spec(str(world.state), UID) == (left, True)
        assert pauses == []
        assert podspecs.wait_for_spec(str(world.state), "8f3c", patience=0.0) == (None, True)
    assert len(pauses) <= 1


@pytest.mark.parametrize("engine", [containerd, crio])
@pytest.mark.parametrize("env", [[], ALL])
def test_k8s_15_a_pod_that_asks_for_a_gpu_without_a_decision_is_refused(
    world: PodWorld, engine: type[dict[str, str]], env: list[str]
) -> None:
    leave(world, main=Limit(2))
    done = world.create(engine({}), env)
    assert done.returncode == 1
    asked = "container main has the limit aliyun.com/gpu-mem=2"
    lacking = "came without its pod's annotation cgpu/allocation: expected"
    assert done.stderr.startswith(f"cgpu: {asked}, and {lacking}"), done.stderr
    assert "and a runtime to which the engine passes that annotation" in done.stderr
    assert world.create(engine({}, container="other")).returncode == 0


def test_k8s_15_a_decision_that_leaves_out_who_asks_is_refused(world: PodWorld) -> None:
    leave(world, main=Limit(2), side=Limit(1))
    done = world.create(containerd(decided({"side": {GPUS[0]: Grant(UNIT)}})), ALL)
    missing = "containers: main is missing, whose limit is aliyun.com/gpu-mem=2"
    assert done.stderr.startswith(f"cgpu: cgpu/allocation: {missing}"), done.stderr


def test_pods_that_ask_for_no_gpu_start_without_python_beside_one_that_does(
    world: PodWorld, tmp_path: Path
) -> None:
    launcher = with_interpreter(tmp_path, "/bin/false")
    leave(world, main=Limit(2))
    other = "7" + UID[1:]
    assert world.create(containerd({}, uid=other), launcher=launcher).returncode == 0
    assert world.create(containerd({}), launcher=launcher).returncode == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"v":2}', '{"v":1,"name":"a","containers":{"main":{"mem":1}}}']
)
def test_k8s_15_a_damaged_file_refuses_the_container(world: PodWorld, content: str) -> None:
    leave(world, main=Limit(2))
    (world.state / "pods" / UID).write_text(content)
    done = world.create(containerd(decided({"main": {GPUS[0]: Grant(UNIT)}})))
    assert done.returncode == 1
    assert done.stderr.startswith(f"cgpu: {world.state}/pods/{UID}: "), done.stderr


def test_what_the_agent_leaves_is_read_as_it_was_written_and_taken_back(tmp_path: Path) -> None:
    state = str(tmp_path)
    spec = PodSpec("ml/train", {"main": Limit(6, 30), "side": Limit(1)})
    podspecs.write_spec(state, UID, spec)
    assert (podspecs.read_spec(state, UID), podspecs.list_uids(state)) == (spec, [UID])
    podspecs.remove_spec(state, UID)
    podspecs.remove_spec(state, UID)
    assert (podspecs.read_spec(state, UID), podspecs.list_uids(state)) == (None, [])


@pytest.mark.parametrize("uid", ["", "../lock", "a/b", "x" * 129])
def test_a_uid_names_a_file_of_its_own(tmp_path: Path, uid: str) -> None:
    assert podspecs.read_spec(str(tmp_path), uid) is None
    with pytest.raises(CgpuError, match="expected letters and digits"):
        podspecs.write_spec(str(tmp_path), uid, PodSpec("ml/train", {}))
