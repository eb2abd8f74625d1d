"""What a node offers: by its labels and its agent's facts, and nothing where these are unclear.

K8S-3.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_k8s.objects.fields import ObjectError
from cgpu_k8s.objects.gpus import Facts, FactsError, OfferedGpu, read_facts, write_facts
from cgpu_k8s.objects.links import GpuLink, arrange_links
from cgpu_k8s.objects.nodes import read_node
from cgpu_k8s.scheduler.cache import make_node_info

pytestmark = pytest.mark.unit

GPUS = (
    OfferedGpu("GPU-a", 0, 16160),
    OfferedGpu("GPU-b", 1, 24576, slots=3, healthy=False, held=2),
)
FACTS = st.builds(
    OfferedGpu,
    st.uuids().map("GPU-{}".format),
    st.integers(0, 99),
    st.integers(1024, 1 << 20),
    st.integers(0, 100),
    st.integers(0, 25),
    st.booleans(),
    st.integers(0, 99),
    st.integers(0, 25),
)


def node(mode: str | None = "cgpu", facts: str | None = None, **labels: str) -> Any:
    marked = {"ack.node.gpu.schedule": mode} if mode is not None else {}
    placement = {f"ack.node.gpu.{key}": value for key, value in labels.items()}
    text = write_facts("cgpu", GPUS) if facts is None else facts
    return {
        "metadata": {
            "name": "n1",
            "labels": {**marked, **placement},
            "annotations": {"cgpu/gpus": text} if text else {},
        },
        "status": {
            "addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.1"},
            ]
        },
    }


def test_what_the_agent_withholds_stays_known_and_gets_no_pods() -> None:
    offer = read_node(node(facts=write_facts("cgpu", GPUS, "no runtime")))
    assert (offer.withheld, offer.mode, make_node_info(offer).gpus) == ("no runtime", "", {})
    assert len(offer.gpus) == 2
    with pytest.raises(FactsError, match="withheld: expected a sentence, got int"):
        read_facts('{"v":1,"mode":"cgpu","gpus":[],"withheld":1}')


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%\x1b[2J", "fe80::1"),
        ("10.0.0.1\x1b[2J", ""),
        ("n1.example", ""),
    ],
)
def test_what_is_no_address_is_never_printed_as_one(written: str, address: str) -> None:
    """An escape would act on the terminal of whoever looks at the nodes."""
    made = node()
    made["status"]["addresses"][1]["address"] = written
    assert read_node(made).address == address


@given(st.lists(FACTS, unique_by=(lambda gpu: gpu.uuid, lambda gpu: gpu.index)))
def test_facts_are_read_as_they_were_written_in_any_order(gpus: list[OfferedGpu]) -> None:
    text = write_facts("share", gpus)
    assert write_facts("share", reversed(gpus)) == text
    found = read_facts(text)
    assert (found.mode, set(found.gpus)) == ("share", set(gpus))


def test_members_that_a_later_version_adds_are_ignored() -> None:
    facts = json.loads(write_facts("cgpu", GPUS))
    facts["temperatures"] = [[0, 1]]
    facts["gpus"][0]["name"] = "V100"
    assert read_facts(json.dumps(facts)) == Facts("cgpu", GPUS)


def test_links_are_read_as_they_were_written_and_those_of_another_form_are_not_known() -> None:
    links = (GpuLink("s", 4),)
    text = write_facts("cgpu", GPUS, "", links)
    assert text.endswith(',"links":"s4"}')
    assert read_facts(text) == Facts("cgpu", GPUS, "", links)
    for wrong in (None, [[0, 1]], "", "s4y", "x"):
        facts = {**json.loads(text), "links": wrong}
        assert read_facts(json.dumps(facts)) == Facts("cgpu", GPUS)


def test_links_of_gpus_that_are_not_known_stay_so() -> None:
    known = {(0, 2): GpuLink("s", 4), (2, 5): GpuLink("y")}
    assert arrange_links((5, 0, 2), known) == (GpuLink("s", 4), GpuLink(), GpuLink("y"))
    assert arrange_links((3, 4), known) == ()
    assert arrange_links((), known) == ()


@given(st.integers(1024, 1 << 20))
def test_a_unit_is_an_equal_part_of_its_gpu(mib: int) -> None:
    gpu = OfferedGpu("GPU-a", 0, mib)
    assert gpu.units == mib // 1024
    assert gpu.mib_of(gpu.units) == mib
    for units in {1, gpu.units // 2, gpu.units} - {0}:
        assert gpu.units * gpu.mib_of(units) <= units * mib < gpu.units * (gpu.mib_of(units) + 1)
        assert gpu.units_of(gpu.mib_of(units)) == units
        assert gpu.units_of(gpu.mib_of(units) + 1) in {units, units + 1}


def test_2_of_15_units_of_a_v100_are_2154_mib() -> None:
    assert OfferedGpu("GPU-a", 0, 16160).mib_of(2) == 2154


@pytest.mark.parametrize("member", OfferedGpu._fields)
def test_facts_with_a_member_missing_or_wrong_are_refused(member: str) -> None:
    facts = json.loads(write_facts("cgpu", GPUS))
    wrongs: tuple[Any, ...] = (None, "x", -1, 1.5, 1 << 60, [], {})
    for wrong in wrongs:
        facts["gpus"][1][member] = wrong
        with pytest.raises(FactsError, match=member):
            read_facts(json.dumps(facts))
    del facts["gpus"][1][member]
    with pytest.raises(FactsError, match=member):
        read_facts(json.dumps(facts))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("[" * 9000, "expected JSON"),
        ("[]", "expected version 1"),
        ('{"v":2}', "v=2: expected version 1"),
        ('{"v":1,"mode":"cpgu"}', "mode=cpgu: expected one of share, cgpu, core_mem"),
        ('{"v":1,"mode":"cgpu"}', "gpus: expected a list"),
        ('{"v":1,"mode":"cgpu","gpus":[3]}', "gpus: expected a list of objects"),
        (write_facts("cgpu", [GPUS[0], GPUS[0]._replace(index=2)]), "each uuid once"),
        (write_facts("cgpu", [GPUS[0], GPUS[0]._replace(uuid="GPU-c")]), "each index once"),
        ("x" * 70_000, "70000 characters: expected at most"),
    ],
)
def test_an_annotation_that_describes_no_gpus_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(FactsError, match=sentence):
        read_facts(text)
    assert read_node(node(facts=text or " ")).withheld.startswith("annotation cgpu/gpus: ")


def test_a_node_offers_the_gpus_that_its_agent_found() -> None:
    offer = read_node(node(placement="spread"))
    assert (offer.name, offer.address, offer.withheld) == ("n1", "10.0.0.1", "")
    found = make_node_info(offer)
    assert (found.name, found.mode, found.placement) == ("n1", "cgpu", "spread")
    assert found.gpus == {gpu.uuid: gpu for gpu in GPUS}
    assert [gpu.units for gpu in found.gpus.values()] == [15, 24]


def test_a_node_packs_its_gpus_full_without_a_label_that_says_otherwise() -> None:
    assert read_node(node()).placement == "binpack"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (node(None), "not labelled for sharing"),
        (node("default"), "ack.node.gpu.schedule=default: the node gives whole GPUs"),
        (node("disabled"), "gives no GPU"),
        (node("mps"), "does not share GPUs by MPS"),
        (node("mig"), "MIG"),
        (node("coremem"), "label ack.node.gpu.schedule=coremem: expected one of share, cgpu"),
        (node("coremem"), "perhaps core_mem"),
        (node("CGPU"), "expected one of"),
        (node(placement="spraed"), "label ack.node.gpu.placement=spraed: expected one of"),
        (node(placement="spraed"), "perhaps spread"),
        (node("core_mem"), "core_mem is not in force yet: the node's agent still has it as cgpu"),
        (node(facts=""), "has not described its GPUs"),
    ],
)
def test_a_node_offers_nothing_where_anything_is_unclear(given: Any, sentence: str) -> None:
    offer = read_node(given)
    assert sentence in offer.withheld
    assert offer.mode == ""
    assert make_node_info(offer).gpus == {}


def test_gpus_that_nvidias_plugin_gives_away_are_not_given_away_twice() -> None:
    shared = node()
    shared["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    assert "also offers 2 nvidia.com/gpu" in read_node(shared).withheld
    for name in ("nvidia.com/gpu.shared", "nvidia.com/gpu-2gb", "nvidia.com/mig-1g.5gb"):
        shared["status"]["allocatable"] = {"nvidia.com/gpu": "0", name: "4", "cpu": "4"}
        assert read_node(shared).withheld == (
            f"the node also offers 4 {name}: stop NVIDIA's plugin on it"
        )
    shared["status"]["allocatable"] = {"nvidia.com/gpu": "0", "nvidia.com/hostdev": "8"}
    assert read_node(shared).withheld == ""


def test_the_gpus_of_a_withheld_node_are_still_known() -> None:
    assert set(read_node(node("core_mem")).gpus) == {"GPU-a", "GPU-b"}


@pytest.mark.parametrize(
    "wrong", [{"metadata": 1}, {"status": []}, {"metadata": {"labels": {"a": 1}}}]
)
def test_what_is_no_node_is_refused(wrong: Any) -> None:
    with pytest.raises(ObjectError, match="expected"):
        read_node(wrong)
