"""Pods on a node that follows decisions, from the launcher to the share (K8S-11, K8S-15, COS-6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cgpu_hook import pod
from cgpu_k8s import names
from cgpu_node import allocation_annotation
from cgpu_node.allocation_annotation import Grant
from cgpu_node.facts.node import load_node
from cgpu_node.settings.config import Config
from cgpu_node.settings.kubernetes import CGPU, CORE_MEM, SHARE, TOPOLOGY
from cgpu_sim import Gpu, lose, make_driver_dir
from lab.worlds.hook import LIBDIR, SIX, with_interpreter
from lab.worlds.pods import GPUS, UID, PodWorld, containerd, crio, decided

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

MIB = 1 << 20
TWO = {GPUS[1]: Grant(2014)}  # 2 of 15 GiB on a GPU of 15,109 MiB
ALL = ["NVIDIA_VISIBLE_DEVICES=all"]
EVERYTHING = [*SIX, *ALL, "CGPU_DISABLE=true", "ALIYUN_COM_GPU_HIGH_PRIO=1", "ALIYUN_COM_GPU_X=1"]
NVIDIA0 = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
ALLOWED = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> PodWorld:
    return PodWorld(tmp_path / "world", CGPU, "monitoring")


def share(world: PodWorld) -> dict[str, Any]:
    """The record of the container while the low-level runtime created it."""
    record: dict[str, Any] = call(world)["records"]["c1"]
    return record


def caps(world: PodWorld) -> dict[str, int]:
    """Its caps in MiB, by UUID."""
    return {uuid: size // MIB for _, uuid, size in share(world)["gpus"]}


def call(world: PodWorld) -> dict[str, Any]:
    found = world.call()
    assert found is not None
    return found


@pytest.mark.parametrize("engine", [containerd, crio])
def test_k8s_11_a_container_has_what_its_pods_decision_says(
    world: PodWorld, engine: Callable[..., dict[str, str]]
) -> None:
    done = world.create(engine(decided({"main": TWO})), EVERYTHING)
    assert done.returncode == 0, done
    assert caps(world) == {GPUS[1]: 2014}
    rules = [share(world)[name] for name in ("weight", "high_priority", "policy")]
    assert rules == [1, False, 5]
    mounted = {mount["destination"] for mount in world.edited()["mounts"]}
    assert {"/dev/cgpu/limits", "/dev/cgpu-sim/gpu1"} <= mounted
    assert "/dev/cgpu-sim/gpu0" not in mounted


def test_k8s_15_variables_are_written_for_the_program_and_never_read(world: PodWorld) -> None:
    """The image's and the pod's own, which come after those of any device plugin."""
    world.create(containerd(decided({"main": TWO, "other": {GPUS[0]: Grant(1007)}})), EVERYTHING)
    found = world.variables()
    found.pop("PATH")
    assert found == {
        "NVIDIA_VISIBLE_DEVICES": GPUS[1],
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "14",
    }


def test_rel_10_a_container_of_a_lost_gpu_is_refused_until_that_is_back(world: PodWorld) -> None:
    """REL-10: pods of other GPUs start."""
    make_driver_dir(world.driver, [Gpu("T4", 15109, uuid) for uuid in GPUS])
    for lost in (False, True):
        lose(world.driver, 1, 15 * lost)
        load_node(str(world.state), str(world.driver), config=Config(), refresh=True)
    assert world.create(containerd(decided({"main": {GPUS[0]: Grant(2014)}}))).returncode == 0
    done = world.create(containerd(decided({"main": TWO})))
    assert done.returncode == 1
    assert f"containers.main: GPU 1 ({GPUS[1]}) does not answer: GPU is lost" in done.stderr
    lose(world.driver, 1, 0)
    assert world.create(containerd(decided({"main": TWO}))).returncode == 0


def test_two_gpus_each_have_their_own_cap(world: PodWorld) -> None:
    grants = {GPUS[1]: Grant(3000), GPUS[0]: Grant(4000)}
    done = world.create(containerd(decided({"main": grants})))
    assert done.returncode == 0, done
    assert caps(world) == {GPUS[1]: 3000, GPUS[0]: 4000}
    assert world.variables()["ALIYUN_COM_GPU_MEM_IDX"] == "1,0"


def test_a_node_that_divides_time_gives_the_weight_and_holds_it_fixed(world: PodWorld) -> None:
    world.switch(CORE_MEM)
    done = world.create(containerd(decided({"main": {GPUS[0]: Grant(2014, 30)}})))
    assert done.returncode == 0, done
    assert (share(world)["weight"], share(world)["policy"]) == (6, 3)
    assert world.variables()["ALIYUN_COM_GPU_SCHD_WEIGHT"] == "6"


def test_cos_6_a_node_of_whole_gpus_gives_them_without_limits(world: PodWorld) -> None:
    world.switch(TOPOLOGY)
    done = world.create(containerd(decided({"main": {GPUS[1]: Grant(15109)}})), EVERYTHING)
    assert done.returncode == 0, done
    assert world.shares() == []
    mounted = {mount["destination"] for mount in world.edited()["mounts"]}
    assert "/dev/cgpu/limits" not in mounted
    assert "/dev/cgpu-sim/gpu1" in mounted
    assert "/dev/cgpu-sim/gpu0" not in mounted
    assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == GPUS[1]


def test_cos_6_a_part_of_a_gpu_is_refused_where_gpus_are_whole(world: PodWorld) -> None:
    world.switch(TOPOLOGY)
    for grant, where in ((Grant(2014), ".mem=2014: expected 15109"), (Grant(15109, 5), ".core=5")):
        done = world.create(containerd(decided({"main": {GPUS[1]: grant}})))
        assert done.returncode == 1
        assert f"containers.main.{GPUS[1]}{where}" in done.stderr


def test_a_node_that_only_places_gives_the_gpu_without_limits(world: PodWorld) -> None:
    world.switch(SHARE)
    done = world.create(containerd(decided({"main": TWO})), EVERYTHING)
    assert done.returncode == 0, done
    assert world.shares() == []
    mounts = {m["destination"]: m["source"] for m in world.edited()["mounts"]}
    assert "/dev/cgpu-sim/gpu1" in mounts
    assert not any(name.startswith("/dev/cgpu/") for name in mounts)
    assert mounts[f"{LIBDIR}/libcuda.so.1"] == str(world.driver / "libcuda.so.1")
    assert world.variables()["CGPU_DISABLE"] == "true"
    assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == GPUS[1]


@pytest.mark.parametrize("mode", [SHARE, CGPU])
def test_nvidias_legacy_hook_gets_the_gpus_of_the_decision(world: PodWorld, mode: str) -> None:
    world.switch(mode)
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}
    done = world.create(containerd(decided({"main": TWO})), ALL, hooks=hooks)
    assert done.returncode == 0, done
    assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == GPUS[1]
    prestart = world.edited()["hooks"]["prestart"]
    assert [Path(hook["path"]).name for hook in prestart] == [
        "nvidia-container-runtime-hook",
        *(["cgpu-hook"] if mode == CGPU else []),
    ]


def own(env: list[str]) -> list[str]:
    return ["PATH=/bin:/usr/bin", *env]


@pytest.mark.parametrize("annotations", [{}, decided({"other": TWO})])
def test_k8s_15_without_a_decision_a_container_has_no_gpu_whatever_it_asks_for(
    world: PodWorld, annotations: dict[str, str]
) -> None:
    """Nor what an engine, a privileged pod or NVIDIA's runtime before us put there."""
    linux = {
        "devices": [NVIDIA0, {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}, ALLOWED]},
    }
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/bin/x"}]}
    listed = {"destination": "/var/run/nvidia-container-devices/all", "source": "/dev/null"}
    extra = {"linux": linux, "hooks": hooks, "mounts": [listed]}
    done = world.create(containerd(annotations), EVERYTHING, **extra)
    assert done.returncode == 0, done
    assert call(world)["records"] == {}
    after = world.edited()
    assert [device["path"] for device in after["linux"]["devices"]] == ["/dev/fuse"]
    assert after["linux"]["resources"]["devices"] == [{"allow": False, "access": "rwm"}]
    assert [hook["path"] for hook in after["hooks"]["prestart"]] == ["/bin/x"]
    assert after["mounts"] == []
    assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == "void"


SANDBOX = {"io.kubernetes.cri.container-type": "sandbox"}


def test_a_sandbox_is_left_alone(world: PodWorld) -> None:
    """As containerd makes it: with its pod's annotations, and without anything of a GPU."""
    annotations = {**containerd(decided({"main": TWO})), **SANDBOX}
    before = ["PATH=/bin"]
    assert world.create(annotations, before).returncode == 0
    assert world.edited()["process"]["env"] == own(before)
    assert world.shares() == []


def test_what_calls_itself_a_sandbox_has_no_gpu(world: PodWorld) -> None:
    """podman copies an image's annotations: they take a GPU away, and let nobody pass."""
    linux = {"devices": [NVIDIA0], "resources": {"devices": [ALLOWED]}}
    assert world.create({**SANDBOX}, EVERYTHING, linux=linux).returncode == 0
    assert world.edited()["linux"]["devices"] == []
    assert world.variables()["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert world.shares() == []


def test_namespaces_that_an_administrator_lists_pass_through(world: PodWorld) -> None:
    """A monitor sees every GPU; a pod there may ask by its variables, as in docker."""
    done = world.create(containerd({}, namespace="monitoring"), ALL)
    assert (done.returncode, world.edited()["process"]["env"]) == (0, own(ALL))
    done = world.create(containerd(decided({"main": TWO}), namespace="monitoring"), SIX)
    assert done.returncode == 0, done
    assert caps(world) == dict.fromkeys(GPUS, 6043)


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"io.container.manager": "libpod", "io.kubernetes.cri-o.ContainerType": "container"},
        decided({"main": TWO}),
    ],
)
def test_containers_of_other_engines_are_as_before(
    world: PodWorld, annotations: dict[str, str]
) -> None:
    done = world.create(annotations, SIX)
    assert done.returncode == 0, done
    assert caps(world) == dict.fromkeys(GPUS, 6043)


def test_without_the_switch_pods_are_as_before(world: PodWorld) -> None:
    (world.etc / "cgpu" / "kubernetes.json").unlink()
    done = world.create(containerd(decided({"main": TWO})), SIX)
    assert done.returncode == 0, done
    assert caps(world) == dict.fromkeys(GPUS, 6043)


def text(**changed: Any) -> dict[str, str]:
    fields = {"v": 1, "pod": UID, "node": "gpu-a", "containers": {"main": {GPUS[1]: {"mem": 2014}}}}
    return {allocation_annotation.ANNOTATION: json.dumps({**fields, **changed})}


def beside(**annotations: str) -> dict[str, str]:
    return {**text(), **{getattr(names, name): value for name, value in annotations.items()}}


UNKNOWN = "GPU-99999999-0000-4000-8000-000000000000"
REFUSED: list[tuple[dict[str, str], str]] = [
    ({allocation_annotation.ANNOTATION: "{"}, "cgpu/allocation: not JSON: "),
    (
        {allocation_annotation.ANNOTATION: " " * 70000},
        "cgpu/allocation: 70000 bytes: expected at most 65536",
    ),
    (text(v=2), "cgpu/allocation: v=2: expected 1"),
    (text(pod="another"), f"cgpu/allocation: pod=another: expected {UID}, the UID of this pod"),
    (text(node="gpu-b"), "cgpu/allocation: node=gpu-b: expected gpu-a, this node"),
    (
        text(containers={"main": {UNKNOWN: {"mem": 1}}}),
        f"cgpu/allocation: containers.main.{UNKNOWN}: this node has no such GPU",
    ),
    (
        text(containers={"main": {GPUS[1]: {"mem": 1}}, "side": {UNKNOWN: {"mem": 1}}}),
        f"cgpu/allocation: containers.side.{UNKNOWN}: this node has no such GPU",
    ),
    (
        text(containers={"main": {GPUS[1]: {"mem": 15110}}}),
        f"cgpu/allocation: containers.main.{GPUS[1]}.mem=15110: expected at most 15109, all of",
    ),
    (
        text(containers={"main": {GPUS[1]: {"mem": 2014, "core": 30}}}),
        f"cgpu/allocation: containers.main.{GPUS[1]}.core=30: expected 0 or no core on a node in",
    ),
    (
        beside(FRAMEWORK_ALLOCATION='{"0":{"1":3}}'),
        "scheduler.framework.gpushare.allocation=3: expected 2, which cgpu/allocation gives",
    ),
    (
        beside(FRAMEWORK_ALLOCATION='{"0":{"0":2,"1":2}}'),
        "scheduler.framework.gpushare.allocation: 2 GPUs, where cgpu/allocation gives 1",
    ),
    *(
        (
            beside(FRAMEWORK_ALLOCATION=given),
            "scheduler.framework.gpushare.allocation=",
        )
        for given in ("", "7", "[]", '{"0":2}', '{"0":{"1":"2"}}', '{"0":{"1":null}}')
    ),
    (beside(CORE_PERCENTAGE='{"0":{"1":30}}'), "gpushare.alibabacloud.com/core-percentage=30: "),
    (beside(MEM_IDX="0,1"), "ALIYUN_COM_GPU_MEM_IDX: 2 GPUs, where cgpu/allocation gives 1"),
    (beside(MEM_POD="3"), "ALIYUN_COM_GPU_MEM_POD=3: expected 2, which cgpu/allocation gives"),
    (beside(MEM_POD="two"), "ALIYUN_COM_GPU_MEM_POD=two: expected a whole number"),
]


@pytest.mark.parametrize(("annotations", "sentence"), REFUSED)
def test_k8s_15_a_decision_that_is_not_for_this_container_refuses_it(
    world: PodWorld, annotations: dict[str, str], sentence: str
) -> None:
    done = world.create(containerd(annotations), EVERYTHING)
    assert done.returncode == 1
    assert done.stderr.startswith(f"cgpu: {sentence}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert world.call() is None
    assert world.shares() == []


def test_a_node_that_divides_time_refuses_memory_alone_and_uneven_time(world: PodWorld) -> None:
    world.switch(CORE_MEM)
    done = world.create(containerd(decided({"main": TWO})))
    assert f"containers.main.{GPUS[1]}.core=0: expected at least 5 on a node in" in done.stderr
    uneven = {GPUS[0]: Grant(2014, 30), GPUS[1]: Grant(2014, 35)}
    done = world.create(containerd(decided({"main": uneven})))
    assert "containers.main: expected the same core on each GPU" in done.stderr


def test_an_engine_that_does_not_tell_the_pod_is_refused(world: PodWorld) -> None:
    annotations = containerd(decided({"main": TWO}))
    del annotations["io.kubernetes.cri.sandbox-uid"]
    done = world.create(annotations)
    assert "cgpu: cgpu/allocation: the engine does not tell whose container this is" in done.stderr


@pytest.mark.parametrize("engine", [containerd, crio])
def test_k8s_15_a_user_cannot_pass_for_a_sandbox_or_another_engine(
    world: PodWorld, engine: Callable[..., dict[str, str]]
) -> None:
    """CRI-O passes on all annotations of a pod."""
    forged = {
        "io.container.manager": "libpod",
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
    }
    done = world.create(engine(forged), EVERYTHING)
    assert done.returncode == 1
    assert "expected those of one engine" in done.stderr


def test_an_annotation_that_is_no_string_is_refused(world: PodWorld) -> None:
    annotations: dict[str, Any] = {**containerd({}), "cgpu/other": 7}
    assert "annotations.cgpu/other: expected a string" in world.create(annotations).stderr


def test_a_decision_gets_no_more_than_is_free(world: PodWorld) -> None:
    """A forged one, too, takes nothing from others."""
    (world.runs / "c0").mkdir()
    other = containerd(decided({"main": {GPUS[1]: Grant(14000)}}))
    assert world.create(other, name="c0").returncode == 0
    done = world.create(containerd(decided({"main": TWO})))
    assert done.returncode == 1
    assert "=2: 2014 MiB asked on GPU 1, where 1109 of 15109 MiB are free" in done.stderr
    assert world.shares() == ["c0"]


@pytest.mark.parametrize("annotations", [{}, decided({"main": TWO})])
def test_k8s_15_a_hook_alone_refuses_what_it_cannot_change_any_more(
    world: PodWorld, annotations: dict[str, str]
) -> None:
    """Variables and device rules are those of another runtime by then."""
    done = world.prestart(crio(annotations), ALL)
    assert done.returncode == 1
    assert done.stderr.startswith("cgpu: a hook is too late to follow a pod's decision: ")
    assert world.shares() == []
    assert world.prestart(crio({})).returncode == 0


def test_pods_without_a_gpu_start_without_python(world: PodWorld, tmp_path: Path) -> None:
    """And so do all others on a node that does not follow decisions."""
    launcher = with_interpreter(tmp_path, "/bin/false")
    plain, gpu = containerd({}), containerd(decided({"main": TWO}))
    assert world.create(plain, launcher=launcher).returncode == 0
    assert world.create(gpu, launcher=launcher).returncode == 1
    assert world.create(plain, ALL, launcher=launcher).returncode == 1
    assert world.create({}, ALL, launcher=launcher).returncode == 0
    (world.etc / "cgpu" / "kubernetes.json").unlink()
    assert world.create(gpu, ALL, launcher=launcher).returncode == 0


def test_annotations_of_the_cluster_are_those_that_nodes_read() -> None:
    assert names.ALLOCATION == allocation_annotation.ANNOTATION
    assert (names.FRAMEWORK_ALLOCATION, names.CORE_PERCENTAGE) == (pod.UNITS, pod.CORES)
    assert (names.MEM_IDX, names.MEM_POD) == (pod.MEM_IDX, pod.MEM_POD)
