"""What the node's facts say of GPUs that do not answer (REL-10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cgpu_env.devices import GpuLostError
from cgpu_node.facts.node import DeviceNode, refresh_if_lost
from lab.driver.fake_probe import FACTS, MIB, UUID, FakeDriver, fake_driver, load

pytestmark = pytest.mark.unit

OTHER = "GPU-99999999-1111-2222-3333-444444444444"
LOST = "GPU is lost (error 15); reboot"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return fake_driver(tmp_path, monkeypatch)


def two(**lost: object) -> dict[str, Any]:
    """The facts of a node with another GPU, which may be lost."""
    gpu = {"index": 1, "uuid": OTHER, "name": "P100", "memory_bytes": 16160 * MIB, "minor": 7}
    if lost:
        return {**FACTS, "lost": [{"index": 1, "uuid": "", **lost}]}
    return {**FACTS, "gpus": [*FACTS["gpus"], gpu]}


@pytest.mark.parametrize("uuid", [OTHER, ""])
def test_a_lost_gpu_is_what_it_was_before(fake: FakeDriver, uuid: str) -> None:
    """Also where the driver does not name it any more."""
    fake.answers = {"facts": two(), "contexts": {UUID: 100 * MIB, OTHER: 120 * MIB}}
    before = load(fake)
    for _ in range(2):
        fake.answers["facts"] = two(uuid=uuid, lost=LOST)
        node = load(fake, refresh=True)
        assert node.gpus == (before.gpus[0], before.gpus[1]._replace(lost=LOST))
        assert node.lost_gpus == node.gpus[1:]
    fake.answers["facts"] = two()
    assert load(fake, refresh=True) == before
    assert fake.asked.count("contexts") == 1


def test_the_same_driver_at_another_path_makes_no_contexts(fake: FakeDriver) -> None:
    """As a pod sees it: on full GPUs a context would fail, or take memory that is promised."""
    fake.answers = {"facts": two(), "contexts": {UUID: 100 * MIB, OTHER: 120 * MIB}}
    before = load(fake)
    elsewhere = fake.folder.with_name("elsewhere")
    elsewhere.symlink_to(fake.folder)
    node = load(fake, driver_dir=str(elsewhere), keep=False)
    assert [gpu.context_bytes for gpu in node.gpus] == [gpu.context_bytes for gpu in before.gpus]
    assert fake.asked.count("contexts") == 1


def test_cudas_order_is_that_of_all_gpus_or_not_known(fake: FakeDriver) -> None:
    """ENV-13: without one of them, numbers would mean other GPUs than the driver's."""
    costs = {UUID: 100 * MIB, OTHER: 120 * MIB}
    fake.answers["facts"] = two(uuid=OTHER, lost=LOST)
    fake.answers["contexts"] = {"costs": {UUID: costs[UUID]}, "failed": {}, "order": []}
    for _ in range(2):
        assert load(fake, refresh=True).cuda_order == ()
    assert fake.asked.count("contexts") == 1
    fake.answers = {
        "facts": two(),
        "contexts": {"costs": costs, "failed": {}, "order": [OTHER, UUID]},
    }
    assert load(fake, refresh=True).cuda_order == (OTHER, UUID)
    fake.answers["facts"] = two(uuid=OTHER, lost=LOST)
    assert load(fake, refresh=True).cuda_order == (OTHER, UUID)


def test_a_context_that_fails_is_named_with_its_gpu(fake: FakeDriver) -> None:
    """As on a GPU whose memory is full: nothing is charged for contexts there."""
    failed = {OTHER: "cuDevicePrimaryCtxRetain: error 2"}
    contexts = {"costs": {UUID: 100 * MIB}, "failed": failed, "order": [OTHER, UUID]}
    fake.answers = {"facts": two(), "contexts": contexts}
    node = load(fake)
    assert (node.cuda_order, node.lost_gpus) == ((OTHER, UUID), ())
    assert [gpu.context_bytes for gpu in node.gpus] == [100 * MIB, 0]
    [note] = node.notes
    assert note.startswith(f"what a CUDA context costs on {OTHER} is not known, so none is charged")
    assert note.endswith(failed[OTHER])


def test_the_indices_of_the_others_stay(fake: FakeDriver) -> None:
    [gpu] = FACTS["gpus"]
    lost = {"index": 0, "uuid": "", "lost": LOST}
    fake.answers["facts"] = {**FACTS, "gpus": [{**gpu, "index": 1}], "lost": [lost]}
    node = load(fake)
    assert [(gpu.index, gpu.uuid, gpu.lost) for gpu in node.gpus] == [(0, "", LOST), (1, UUID, "")]
    assert node.gpus[1].device_nodes == (DeviceNode("/dev/nvidia3", "/dev/nvidia3"),)


def test_a_gpu_that_was_never_known_has_the_device_nodes_that_are_nobody_elses(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept from containers: it may be back while one runs."""
    there = [f"/dev/nvidia{number}" for number in (0, 3, 12)]
    monkeypatch.setattr(Path, "glob", lambda *_: map(Path, there))
    fake.answers["facts"] = two(lost=LOST)
    for _ in range(2):
        [gpu] = load(fake, refresh=True).lost_gpus
        assert [node.host for node in gpu.device_nodes] == ["/dev/nvidia0", "/dev/nvidia12"]
    assert (gpu.name, gpu.total_bytes) == ("", 0)


def test_a_gpu_of_another_boot_says_nothing_of_a_lost_one(
    fake: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers = {"facts": two(), "contexts": {}}
    load(fake)
    (tmp_path / "boot_id").write_text("another boot")
    monkeypatch.setattr("cgpu_node.facts.node.BOOT_ID", str(tmp_path / "boot_id"))
    fake.answers["facts"] = two(lost=LOST)
    assert [gpu.uuid for gpu in load(fake).gpus] == [UUID, ""]


def test_other_releases_find_the_gpus_that_answer(fake: FakeDriver) -> None:
    fake.answers["facts"] = two(lost=LOST)
    load(fake)
    facts = json.loads((fake.folder.parent / "state" / "node.json").read_text())
    assert [gpu["uuid"] for gpu in facts["gpus"]] == [UUID]


def test_a_lost_gpu_that_is_asked_for_is_asked_about_once_more() -> None:
    """It may have been reset since."""
    asked: list[bool] = []

    def make(*, refresh: bool) -> str:
        asked.append(refresh)
        if not refresh:
            raise GpuLostError("it is lost")
        return "back"

    assert refresh_if_lost(make) == "back"
    assert asked == [False, True]
