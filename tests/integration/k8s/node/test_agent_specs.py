"""What the agent leaves for the start of containers, and what it makes of those that run.

K8S-15.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import cgpu_native
from cgpu_k8s.node.non_pod_usage import sum_non_pod_usage
from cgpu_k8s.node.shares import Shares
from cgpu_node import podspecs
from cgpu_node.allocation_annotation import Grant
from cgpu_node.podspecs import Limit, PodSpec
from cgpu_node.shares import record
from cgpu_node.shares.record import PodContainer
from lab.containers.enclosure import wait_until
from lab.kubernetes.agents import Lab, agent_lab, asked
from lab.kubernetes.faults import Fault
from lab.kubernetes.objects import pod, pods_path
from lab.worlds.cgpu_run import World
from lab.worlds.pods import GPUS, UID, PodWorld, containerd, crio, decided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

LIMITS = {"aliyun.com/gpu-mem": "2"}
MIB = 1 << 20


@pytest.fixture(name="world")
def _world() -> World:
    return World()


@pytest.fixture(name="lab")
def _lab(fake: FakeServer, tmp_path: Path, world: World) -> Iterator[Lab]:
    with agent_lab(fake, tmp_path, "cgpu", world.driver, world.state) as found:
        yield found


def make_pod(lab: Lab, name: str, limits: dict[str, str] | None = None) -> str:
    """A pod on the node; its UID."""
    made = asked(lab.fake, "POST", pods_path(), pod(name, limits or LIMITS, nodeName="gpu-a"))
    return str(made["metadata"]["uid"])


def left(lab: Lab, uid: str) -> PodSpec | None:
    return podspecs.read_spec(str(lab.state), uid)


def test_what_pods_ask_for_is_left_on_the_node_while_they_are_there(lab: Lab) -> None:
    first, plain = make_pod(lab, "first"), make_pod(lab, "plain", {"cpu": "1"})
    podspecs.write_spec(str(lab.state), "8f3c", PodSpec("ml/gone", {"main": Limit(1)}))
    with lab.agent():
        wait_until(lambda: podspecs.is_current(str(lab.state)), "all is left")
        assert left(lab, first) == PodSpec("default/first", {"main": Limit(2)})
        assert (left(lab, plain), left(lab, "8f3c")) == (None, None)
        later = make_pod(lab, "later")
        wait_until(lambda: left(lab, later), "a later one, too")
        asked(lab.fake, "DELETE", f"{pods_path()}/later", {"gracePeriodSeconds": 0})
        wait_until(lambda: left(lab, later) is None, "and it is taken back")
    assert not podspecs.is_current(str(lab.state))
    assert podspecs.list_uids(str(lab.state)) == [first]


def test_an_agent_that_does_not_hear_of_pods_keeps_nobody_waiting(lab: Lab) -> None:
    with lab.agent():
        wait_until(lambda: podspecs.is_current(str(lab.state)), "all is left")
        lab.fake.fail(Fault(path="/api/v1/pods.*", status=403, times=3))
        lab.fake.cut()
        wait_until(lambda: not podspecs.is_current(str(lab.state)), "pods start without it")
        wait_until(lambda: podspecs.is_current(str(lab.state)), "it hears of pods again")


@pytest.mark.parametrize("engine", [containerd, crio])
def test_k8s_11_the_agent_knows_whose_a_container_is_that_an_engine_creates(
    tmp_path: Path, engine: Callable[..., dict[str, str]]
) -> None:
    """So none of it counts as held by others."""
    node_ = PodWorld(tmp_path / "world")
    (node_.runs / "c1").mkdir(parents=True, exist_ok=True)
    done = node_.create(engine(decided({"main": {GPUS[0]: Grant(1079)}})))
    assert done.returncode == 0, done
    [living] = Shares(str(node_.state)).list_living()
    assert living.pod == PodContainer(UID, "default", "a-pod", "main")
    assert sum_non_pod_usage([living], {UID}, {"c1"}) == {}


@contextmanager
def container_of(world: World, pod_: PodContainer) -> Iterator[str]:
    """A session with 6 of 15 GiB that is a pod's container; the path of its directory."""
    running = world.start("--mem", "6/15", "--", "sleep", "60")
    wait_until(lambda: any(not name.startswith(".") for name in world.sessions()), "it starts")
    [name] = world.sessions()
    directory = world.state / "containers" / name
    (directory / record.POD).write_bytes(record.pack_pod(pod_))
    try:
        yield str(directory)
    finally:
        running.kill()
        running.communicate()


def cap(directory: str) -> int:
    """In MiB."""
    [gpu] = cgpu_native.read_limits(f"{directory}/limits").gpus
    return gpu.cap_bytes // MIB


def test_k8s_15_a_container_that_may_hold_more_than_its_pod_asks_for_is_held_to_that(
    lab: Lab, world: World
) -> None:
    """Whatever annotation it was started by, while no agent ran."""
    uid = make_pod(lab, "train")
    with container_of(world, PodContainer(uid, "default", "train", "main")) as directory:
        assert cap(directory) == 6043
        with lab.agent():
            wait_until(lambda: cap(directory) == 2158, "it is held to 2 of 14 units")
            wait_until(lambda: "GpuShareWrong" in dict(lab.events()), "an event says so")
        sent = [message for reason, message in lab.events() if reason == "GpuShareWrong"]
        assert sent[0] == (
            "pod default/train, container main: it may hold 6043 MiB of GPU 0, and its limit is"
            " aliyun.com/gpu-mem=2: it is held to that from now on"
        )
        assert lab.facts()["gpus"][0]["held"] == 0


def test_what_a_pod_that_is_gone_still_holds_is_nobodys(lab: Lab, world: World) -> None:
    with container_of(world, PodContainer("8f3c", "default", "train", "main")), lab.agent():
        wait_until(lambda: lab.offers("cgpu"), "the node offers its GPU")
        wait_until(lambda: lab.facts()["gpus"][0]["held"] == 6, "without what it holds")
        assert lab.facts()["gpus"][0]["held_slots"] == 1
