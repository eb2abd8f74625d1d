"""The DRA driver as a process: a simulated driver, an API server, and a kubelet over real gRPC.

DRA-1, DRA-2, DRA-5, DRA-8, DRA-9.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from cgpu_k8s.dra.publisher import LOOK
from cgpu_node.facts.node import load_node
from cgpu_node.settings.rules import write_changes
from cgpu_node.shares.record import Owner
from cgpu_node.shares.registry import Registry
from cgpu_sim import lose, machine
from lab.cluster.claim_lab import HOOK, V100, ClaimLab
from lab.cluster.claims import MIB, NODE, configured, result
from lab.containers.enclosure import wait_until
from lab.driver.nvml_base import make_machine
from lab.kubernetes.agents import fake_engine
from lab.kubernetes.device_plugins import field, fields
from lab.kubernetes.faults import Fault
from lab.worlds.registry import admit, ask, myself

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.kubernetes.fake_server import FakeServer

pytestmark = pytest.mark.integration

_LOST = "GPU-is-lost-error-15"


@pytest.fixture
def lab(fake: FakeServer, tmp_path: Path) -> Iterator[ClaimLab]:
    with fake_engine(tmp_path / "engine") as engine:
        yield ClaimLab(fake, engine, tmp_path)


@pytest.fixture
def served(lab: ClaimLab) -> Iterator[ClaimLab]:
    """With the driver."""
    with lab.running():
        yield lab


def test_dra_1_a_node_offers_its_gpus_and_then_nothing_is_written(served: ClaimLab) -> None:
    wait_until(lambda: served.devices() == ["gpu-0", "gpu-1"], "both are offered")
    [item] = served.slices()
    assert item["spec"]["nodeName"] == NODE
    attributes = item["spec"]["devices"][0]["attributes"]
    assert attributes["uuid"] == {"string": V100[0].uuid}
    assert attributes["architecture"] == {"string": "Turing"}
    assert attributes["cudaComputeCapability"] == {"version": "7.5.0"}
    before = served.writes()
    time.sleep(2.5 * LOOK)
    assert served.writes() == before
    assert served.log.read_text().count("published") == 1


def test_dra_5_a_slice_that_a_kubelet_deleted_comes_back(served: ClaimLab) -> None:
    wait_until(served.devices, "they are offered")
    served.delete_slice()
    wait_until(lambda: served.devices() == ["gpu-0", "gpu-1"], "they are offered again")


def test_dra_8_a_gpu_that_is_lost_has_a_taint_until_it_is_back(served: ClaimLab) -> None:
    wait_until(served.devices, "they are offered")
    lose(served.driver, 1)
    wait_until(lambda: served.taints() == {"gpu-0": "", "gpu-1": _LOST}, "it has a taint")
    [item] = served.slices()
    assert item["spec"]["pool"]["generation"] == 2
    item = served.claim(result(1))
    error = served.prepare(item)[item["metadata"]["uid"]].error
    assert "claim default/train: gpu-1 does not answer: GPU is lost" in error
    assert (served.held(), served.files()) == ([], [])
    lose(served.driver, 1, 0)
    wait_until(lambda: served.taints() == {"gpu-0": "", "gpu-1": ""}, "it is back")
    assert served.prepare(item)[item["metadata"]["uid"]].error == ""
    assert f"GPU 1 ({V100[1].uuid}) does not answer: GPU is lost" in served.log.read_text()


def test_dra_8_a_gpu_that_is_gone_at_the_start_is_offered_once_it_is_there(lab: ClaimLab) -> None:
    lose(lab.driver, 1, has_handle=True)
    with lab.running():
        wait_until(lambda: lab.devices() == ["gpu-0"], "the other one is offered")
        lose(lab.driver, 1, 0)
        wait_until(lambda: lab.taints() == {"gpu-0": "", "gpu-1": ""}, "it is there")


def test_dra_8_a_driver_that_hangs_holds_up_no_claim(served: ClaimLab) -> None:
    """A GPU may hang, and all that ask the driver with it."""
    wait_until(served.devices, "they are offered")
    one, two = served.claim(result(0), name="one"), served.claim(result(1), name="two")
    assert served.prepare(one)[one["metadata"]["uid"]].error == ""
    fault = machine.Fault("nvmlDeviceGetMemoryInfo", delay_us=60_000_000, repeat=True)
    machine.inject(served.driver, fault)
    silent = "driver-does-not-answer"
    wait_until(lambda: served.taints() == {"gpu-0": silent, "gpu-1": silent}, "they have taints")
    assert served.prepare(two)[two["metadata"]["uid"]].error == ""
    assert served.unprepare(one) == {one["metadata"]["uid"]: ""}
    assert served.log.read_text().count("the driver does not say which GPUs there are") == 1


def test_dra_8_a_gpu_in_mig_mode_is_not_offered(lab: ClaimLab) -> None:
    make_machine(lab.driver, [V100[0], V100[1]._replace(mig=True)])
    with lab.running():
        wait_until(lambda: lab.devices() == ["gpu-0"], "the other one is offered")
        assert "is in MIG mode, and cgpu shares whole GPUs" in lab.log.read_text()
        item = lab.claim(result(1))
        error = lab.prepare(item)[item["metadata"]["uid"]].error
        assert "claim default/train: gpu-1 is in MIG mode by now" in error
    make_machine(lab.driver, V100)
    with lab.running():
        wait_until(lambda: lab.devices() == ["gpu-0", "gpu-1"], "MIG mode is off")
        assert lab.prepare(item)[item["metadata"]["uid"]].error == ""


def test_dra_8_what_the_parameters_say_is_held(served: ClaimLab) -> None:
    config = [configured(source="FromClass", priority="high", weight=6), configured(weight=4)]
    item = served.claim(result(cores="0"), config=config)
    assert served.prepare(item)[item["metadata"]["uid"]].error == ""
    [record] = served.held()
    assert (record.weight, record.high_priority) == (4, True)
    wrong = served.claim(result(1, cores="0"), name="wrong", config=[configured(wieght=4)])
    assert served.prepare(wrong)[wrong["metadata"]["uid"]].error == (
        "cgpu: claim default/wrong: config of the claim: unknown field wieght: expected apiVersion,"
        " kind, weight, priority: did you mean weight?"
    )
    assert len(served.held()) == len(served.files()) == 1


def test_dra_5_where_the_engine_gives_no_cdi_devices_nothing_is_offered(lab: ClaimLab) -> None:
    """Containers would start without their GPUs, and without a word: also if it starts so later."""
    held, item = lab.claim(result(1), name="held"), lab.claim(result())
    with lab.running():
        wait_until(lab.devices, "they are offered")
        assert lab.prepare(held)[held["metadata"]["uid"]].error == ""
        lab.engine.more["enableCDI"] = False
        lab.engine.socket.chmod(0o600)  # changed, as one that was made anew
        wait_until(lambda: lab.devices() == [], "none is offered")
        error = lab.prepare(item)[item["metadata"]["uid"]].error
        assert error.startswith("cgpu: containerd gives containers no CDI devices: set enable_cdi")
        assert lab.unprepare(held) == {held["metadata"]["uid"]: ""}
        assert (lab.held(), lab.files()) == ([], [])


def test_dra_5_where_the_engine_has_cgpus_runtime_nothing_is_offered(lab: ClaimLab) -> None:
    """Pods without a claim could have what their variables name, until it is taken out."""
    lab.engine.programs = {"runc": "", "cgpu": "/usr/bin/cgpu-runtime"}
    with lab.running():
        wait_until(lambda: "the runtime cgpu of containerd is cgpu's" in lab.log.read_text(), "so")
        assert lab.devices() == []
        item = lab.claim(result())
        assert "run cgpu uninstall" in lab.prepare(item)[item["metadata"]["uid"]].error


def test_dra_5_while_pods_of_the_node_follow_decisions_nothing_is_offered(lab: ClaimLab) -> None:
    """cgpu's runtime would take the GPUs away that a claim gives."""
    lab.setting.write_text("{}")
    item = lab.claim(result())
    with lab.running():
        wait_until(lambda: "published" in lab.log.read_text(), "the slice is there")
        assert lab.devices() == []
        error = lab.prepare(item)[item["metadata"]["uid"]].error
        assert "is there, so pods of this node follow decisions" in error
        lab.setting.unlink()
        wait_until(lambda: lab.devices() == ["gpu-0", "gpu-1"], "both are offered")
        assert lab.prepare(item)[item["metadata"]["uid"]].error == ""


def test_a_kubelet_finds_the_driver_and_says_whether_it_takes_it(served: ClaimLab) -> None:
    info = dict(fields(served.ask("GetInfo")))
    assert (info[1], info[2], info[4]) == (b"DRAPlugin", b"gpu.cgpu", b"v1.DRAPlugin")
    served.ask("NotifyRegistrationStatus", field(2, b"no such version"))
    wait_until(lambda: "no such version" in served.log.read_text(), "its log has it")
    served.socket.unlink()  # somebody does
    wait_until(served.socket.exists, "a kubelet finds it again")


def test_a_driver_that_ends_leaves_no_sockets(lab: ClaimLab) -> None:
    """A kubelet would try to reach it for ever."""
    with lab.running():
        assert len([*lab.folder.rglob("*.sock")]) == 2
    assert [*lab.folder.rglob("*.sock")] == []


def test_dra_2_a_claim_is_held_and_given_back_and_each_step_may_be_repeated(
    served: ClaimLab,
) -> None:
    item = served.claim(result(1, "2500Mi", "30"))
    uid = item["metadata"]["uid"]
    for _ in range(2):
        answer = served.prepare(item)[uid]
        assert answer.error == ""
        assert answer.devices == [
            {1: "gpu", 2: NODE, 3: "gpu-1", 4: f"gpu.cgpu/claim={uid}_gpu", 5: "share-1"}
        ]
        [record] = served.held()
        assert (record.id, record.kind, record.command) == (uid, "claim", ("default/train",))
        assert [(gpu.uuid, gpu.cap_bytes) for gpu in record.gpus] == [(V100[1].uuid, 2500 * MIB)]
        assert (record.weight, record.policy) == (6, 6)
        [hook] = served.edits()["hooks"]
        assert hook["path"] == HOOK
        assert hook["args"][1:6] == ["claim", "--claim", uid, "--gpus", V100[1].uuid]
    for _ in range(2):
        assert served.unprepare(item) == {uid: ""}
        assert (served.held(), served.files()) == ([], [])


def test_dra_2_containers_name_a_request_without_the_alternative_that_it_got(
    served: ClaimLab,
) -> None:
    """A kubelet compares the names: a container would start without its GPU."""
    item = served.claim(result(0, request="gpu/small"))
    uid = item["metadata"]["uid"]
    [device] = served.prepare(item)[uid].devices
    assert (device[1], device[4]) == ("gpu", f"gpu.cgpu/claim={uid}_gpu.small")


def test_dra_5_one_claim_that_is_refused_holds_up_no_other(served: ClaimLab) -> None:
    one = served.claim(result(0, "10000Mi"), name="one")
    two = served.claim(result(0, "10000Mi"), name="two")  # forged: the scheduler allocates neither
    gone = served.claim(result(1), name="gone")
    served.delete(gone)
    other = served.claim(result(1, "1Gi", "0"), name="other")
    answers = served.prepare(one, two, gone, other)
    found = {item["metadata"]["name"]: answers[item["metadata"]["uid"]].error
             for item in (one, two, gone, other)}  # fmt: skip
    assert found == {
        "one": "",
        "two": "cgpu: claim default/two: memory: 10000 MiB asked on GPU 0, where 6160 of 16160 MiB"
        " are free",
        "gone": "cgpu: claim default/gone: the API server has none of this name any more",
        "other": "",
    }
    assert len(served.held()) == len(served.files()) == 2


def test_dra_9_a_claim_whose_allocation_changed_is_refused(served: ClaimLab) -> None:
    item = served.claim(result(0, "2500Mi"))
    uid = item["metadata"]["uid"]
    assert served.prepare(item)[uid].error == ""
    served.fake.change(lambda store: _enlarge(next(
        each for key, each in store.items.items() if key.name == "train")))  # fmt: skip
    gpu = f"GPU 0 ({V100[0].uuid})"
    assert served.prepare(item)[uid].error == (
        f"cgpu: claim default/train: this node holds 2500 MiB of {gpu} with weight 6 for it, and"
        f" its allocation says 9216 MiB of {gpu} with weight 6: delete its pods"
    )
    [record] = served.held()
    assert record.gpus[0].cap_bytes == 2500 * MIB


def _enlarge(item: dict[str, object]) -> None:
    status: object = {"allocation": {"devices": {"results": [result(0, "9Gi")]}}}
    item["status"] = status


def test_dra_5_without_the_api_server_a_claim_waits(served: ClaimLab) -> None:
    item = served.claim(result())
    uid = item["metadata"]["uid"]
    served.fake.fail(Fault("GET", ".*/resourceclaims/.*", status=503))
    assert "503" in served.prepare(item)[uid].error
    assert (served.held(), served.files()) == ([], [])
    assert served.prepare(item)[uid].error == ""


def test_dra_2_a_gpu_whose_time_has_other_parts_is_refused(served: ClaimLab) -> None:
    """A claim's cores are a weight, of which 20 are a whole GPU."""
    served.state.mkdir(exist_ok=True)
    write_changes(str(served.state), {V100[0].uuid: {"max_inst": 10}})
    item = served.claim(result(0, "1Gi", "30"))
    error = served.prepare(item)[item["metadata"]["uid"]].error
    assert "max_inst=10 of GPU 0: expected 20 on nodes that give GPUs to claims" in error
    assert (served.held(), served.files()) == ([], [])


def test_dra_5_an_api_server_that_knows_no_claims_has_lost_none(lab: ClaimLab) -> None:
    item = lab.claim(result())
    with lab.running():
        lab.prepare(item)
    lab.fake.fail(Fault("GET", ".*/resourceclaims/.*", status=404, reason=""))
    with lab.running():
        wait_until(lambda: "resourceclaims/train with 404" in lab.log.read_text(), "it tries")
        assert len(lab.held()) == len(lab.files()) == 1


def test_dra_5_a_driver_that_was_killed_finds_what_it_held(lab: ClaimLab) -> None:
    """And gives back what belongs to claims that went meanwhile, or to none."""
    with lab.running() as process:
        kept, gone = (lab.claim(result(n), name=name) for n, name in enumerate(("kept", "gone")))
        lab.prepare(kept, gone)
        process.kill()
        process.wait()
    assert len(lab.held()) == 2
    lab.delete(gone)
    (lab.cdi / "gpu.cgpu-claim_of-nobody.json").write_text("{}")
    (lab.cdi / f"gpu.cgpu-claim_{kept['metadata']['uid']}.json.new").write_text("{")
    (lab.cdi / "nvidia.json").write_text("{}")
    with lab.running():
        wait_until(lambda: "gave_back" in lab.log.read_text(), "it gives back")
        uid = kept["metadata"]["uid"]
        assert [each.id for each in lab.held()] == [uid]
        assert [each.name for each in lab.files()] == [f"gpu.cgpu-claim_{uid}.json", "nvidia.json"]
        assert lab.prepare(kept)[uid].error == ""
        assert not list((lab.state / "containers").glob(f"{gone['metadata']['uid']}*"))


def test_dra_5_a_file_that_was_removed_under_a_claim_is_written_again(served: ClaimLab) -> None:
    item = served.claim(result())
    uid = item["metadata"]["uid"]
    served.prepare(item)
    for _ in range(3):  # the first time, the driver may be looking for what is gone
        served.files()[0].unlink()
        assert served.held() == []  # nobody lives in it
        assert served.prepare(item)[uid].error == ""
        assert len(served.held()) == len(served.files()) == 1


def test_dra_5_a_claim_whose_file_cannot_be_written_waits_with_a_sentence(
    served: ClaimLab,
) -> None:
    """And is given back, as nothing is held for it: else its pod could not be deleted."""
    served.cdi.write_text("")  # in the place of the folder
    item = served.claim(result())
    uid = item["metadata"]["uid"]
    path = served.cdi / f"gpu.cgpu-claim_{uid}.json"
    assert served.prepare(item)[uid].error == (
        f"cgpu: claim default/train: {path} cannot be written: File exists: the"
        f" driver has to be able to write to {path.parent}, and needs a few KiB there"
    )
    assert served.unprepare(item) == {uid: ""}
    served.cdi.unlink()
    assert served.prepare(item)[uid].error == ""
    path.unlink()
    path.mkdir()
    assert served.unprepare(item) == {uid: f"cgpu: {path} cannot be removed: Is a directory"}
    path.rmdir()


def test_dra_5_a_state_directory_that_was_removed_is_made_again(served: ClaimLab) -> None:
    item = served.claim(result())
    uid = item["metadata"]["uid"]
    assert served.prepare(item)[uid].error == ""
    served.state.rename(served.folder / "removed")  # in one step: the driver may write in it
    assert served.prepare(item)[uid].error == ""
    assert [each.id for each in served.held()] == [uid]


def test_dra_5_a_claim_s_file_has_the_hook_of_the_driver_that_runs(lab: ClaimLab) -> None:
    item = lab.claim(result())
    for hook in (HOOK, "/opt/cgpu/cgpu-hook"):
        with lab.running(f"--hook={hook}"):
            assert lab.prepare(item)[item["metadata"]["uid"]].error == ""
            assert [each["path"] for each in lab.edits()["hooks"]] == [hook]
            assert len(lab.held()) == 1


def test_dra_2_under_fixed_claims_have_what_they_claim_and_no_more(lab: ClaimLab) -> None:
    with lab.running("--policy=fixed"):
        some, none = lab.claim(result(cores="30"), name="some"), lab.claim(
            result(cores="0"), name="none")  # fmt: skip
        answers = lab.prepare(some, none)
        assert answers[some["metadata"]["uid"]].error == ""
        assert "it claims no cores" in answers[none["metadata"]["uid"]].error
        [record] = lab.held()
        assert record.policy == 3


def test_dra_5_what_others_have_on_the_node_is_not_given_twice(served: ClaimLab) -> None:
    wait_until(served.devices, "they are offered")
    node = load_node(str(served.state), str(served.driver))
    others = ask(1, weight=4)._replace(
        gpus=(ask(1).gpus[0]._replace(uuid=V100[0].uuid, cap_bytes=15000 * MIB),)
    )
    registry = Registry(str(served.state))
    admit(registry, "docker", others, node=node, owner=myself())
    item = served.claim(result(0, "2Gi"))
    error = served.prepare(item)[item["metadata"]["uid"]].error
    assert "memory: 2048 MiB asked on GPU 0, where 1160 of 16160 MiB are free" in error
    registry.remove("docker")
    few = others._replace(gpus=(others.gpus[0]._replace(cap_bytes=MIB),))
    admit(registry, "podman", few, node=node, owner=myself(), policy=3)
    error = served.prepare(item)[item["metadata"]["uid"]].error
    assert error == "cgpu: claim default/train: policy 6: GPU 0 is under policy 3 while podman runs"
    registry.remove("podman")
    assert served.prepare(item)[item["metadata"]["uid"]].error == ""
    with contextlib.suppress(StopIteration):
        assert next(iter(served.held())).owner == Owner(0, 0, str(served.files()[0]))
