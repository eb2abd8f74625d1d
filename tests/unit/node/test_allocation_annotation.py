"""The annotation that carries a decision: what is written is read, everything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env.errors import CgpuError
from cgpu_k8s.objects import pod_request
from cgpu_node import allocation_annotation
from cgpu_node.allocation_annotation import (
    AllocationAnnotation,
    Grant,
    format_annotation,
    parse_annotation,
)

pytestmark = pytest.mark.unit

UID = "8f3c1f0e-6d2b-4c55-9a70-2f3c1d9b7a11"
GPU = "GPU-00000000-0000-4000-8000-000000000000"
OTHER = "GPU-00000001-0000-4000-8000-000000000001"


def content(**changed: object) -> dict[str, Any]:
    fields = {
        "v": 1,
        "pod": UID,
        "node": "gpu-a.example",
        "containers": {"main": {GPU: {"mem": 2154, "core": 30}}},
    }
    return {**fields, **changed}


def containers(part: object) -> dict[str, Any]:
    return content(containers={"main": {GPU: part}})


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
uuids = st.uuids().map(lambda uuid: f"GPU-{uuid}")
grants = st.builds(Grant, st.integers(1, 1 << 30), st.integers(0, 20).map(lambda step: step * 5))
decisions = st.builds(
    AllocationAnnotation,
    st.uuids().map(str),
    names,
    st.dictionaries(names, st.dictionaries(uuids, grants, min_size=1), min_size=1, max_size=5),
)


@given(decisions)
def test_what_is_written_is_read_again(written: AllocationAnnotation) -> None:
    assert parse_annotation(format_annotation(written)) == written


def test_a_node_that_shares_memory_alone_needs_no_core() -> None:
    found = parse_annotation(json.dumps(containers({"mem": 8192})))
    assert found.containers == {"main": {GPU: Grant(8192, 0)}}
    assert '"core"' not in format_annotation(found)


def test_several_containers_have_their_own_sizes_on_the_same_gpus() -> None:
    text = json.dumps(
        content(containers={"a": {GPU: {"mem": 1}, OTHER: {"mem": 2}}, "b": {OTHER: {"mem": 3}}})
    )
    assert parse_annotation(text).containers == {
        "a": {GPU: Grant(1), OTHER: Grant(2)},
        "b": {OTHER: Grant(3)},
    }


REFUSED = [
    ("", "not JSON: expected a value at character 0"),
    ("{", "not JSON: "),
    ("[]", "a list: expected a JSON object"),
    ("7", "7: expected a JSON object"),
    (" " * (65 << 10), "66560 bytes: expected at most 65536"),
    ("\u20ac" * (22 << 10), "67584 bytes: expected at most 65536"),
    (content(v=2), "v=2: expected 1, which this release reads"),
    (content(v=True), "v=true: expected 1"),
    (content(v="1"), 'v="1": expected 1'),
    ({**content(), "extra": 1}, "extra: no such field: expected v, pod, node, containers"),
    ({"v": 1, "pod": UID}, "node is missing"),
    ({"pod": UID, "node": "a", "containers": {}}, "v is missing"),
    (content(pod=7), "pod=7: expected a pod's UID of at most 128 characters"),
    (content(pod=""), 'pod="": expected a pod\'s UID'),
    (content(pod="a/b"), 'pod="a/b": expected a pod\'s UID'),
    (content(node="Gpu A"), 'node="Gpu A": expected a node\'s name of at most 253 characters'),
    (content(node="a" * 254), f"node=\"{'a' * 59}...: expected a node's name"),
    (content(containers={}), "containers=an object: expected an object of containers, at least"),
    (content(containers=["main"]), "containers=a list: expected an object of containers"),
    (content(containers={"Main": {}}), 'containers="Main": expected names of containers'),
    (content(containers={"main": {}}), "containers.main=an object: expected an object of GPUs"),
    (content(containers={"main": {"0": {}}}), "containers.main: 0: expected a GPU's UUID, such"),
    (content(containers={"main": {"GPU-": {}}}), 'containers.main="": expected a GPU\'s UUID'),
    (content(containers={"main": {"GPU-./": {}}}), 'containers.main="./": expected a GPU\'s UUID'),
    (containers(8192), f"containers.main.{GPU}=8192: expected an object of mem and core"),
    (containers({"core": 30}), f"containers.main.{GPU}.mem is missing"),
    (containers({"mem": 1, "cores": 5}), f"containers.main.{GPU}.cores: no such field"),
    *(
        (containers({"mem": mem}), f"containers.main.{GPU}.mem={shown}: expected whole MiB from 1")
        for mem, shown in (
            (0, "0"),
            (-1, "-1"),
            (1.5, "1.5"),
            ("8Gi", '"8Gi"'),
            (None, "null"),
            (False, "false"),
            (1 << 31, "2147483648"),
        )
    ),
    *(
        (
            containers({"mem": 1, "core": core}),
            f"containers.main.{GPU}.core={json.dumps(core)}: expected a multiple of 5 from 0",
        )
        for core in (33, -5, 105, 30.0, "30", True)
    ),
    (
        f'{{"v":1,"pod":"{UID}","node":"a","containers":{{"m":{{"{GPU}":{{"mem":1,"mem":2}}}}}}}}',
        "not JSON: the name mem stands twice in one object",
    ),
    (
        f'{{"v":1,"pod":"{UID}","pod":"x","node":"a","containers":{{}}}}',
        "not JSON: the name pod stands twice in one object",
    ),
    ('{"v": 1e999}', "not JSON: the number 1e999 is too large"),
    ("[" * 60000, "not JSON: nested too deeply"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED)
def test_anything_else_is_refused_in_a_sentence_that_names_the_field(
    given: object, sentence: str
) -> None:
    with pytest.raises(CgpuError) as error:
        parse_annotation(given if isinstance(given, str) else json.dumps(given))
    assert str(error.value).startswith(f"cgpu/allocation: {sentence}")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "broken",
    [
        AllocationAnnotation("", "a", {"m": {GPU: Grant(1)}}),
        AllocationAnnotation(UID, "a", {"m": {GPU: Grant(0)}}),
        AllocationAnnotation(UID, "a", {}),
        AllocationAnnotation(UID, "a", {f"m{n}": {GPU: Grant(1)} for n in range(1500)}),
    ],
)
def test_nothing_is_written_that_would_not_be_read(broken: AllocationAnnotation) -> None:
    with pytest.raises(CgpuError):
        format_annotation(broken)


def test_allocator_and_decision_divide_a_gpu_s_time_alike() -> None:
    assert allocation_annotation.CORE_STEP == pod_request.CORE_STEP
