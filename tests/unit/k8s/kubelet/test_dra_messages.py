"""The messages between a kubelet and a DRA driver, by their documented numbers. DRA-1."""

from __future__ import annotations

import pytest

from cgpu_k8s.kubelet import dra_plugin_api as api
from lab.kubernetes.device_plugins import fields
from lab.machine.cri import packed

pytestmark = pytest.mark.unit


def test_a_driver_introduces_itself() -> None:
    assert fields(api.encode_plugin_info("gpu.cgpu", "/var/dra.sock")) == [
        (1, b"DRAPlugin"),
        (2, b"gpu.cgpu"),
        (3, b"/var/dra.sock"),
        (4, b"v1.DRAPlugin"),
    ]


@pytest.mark.parametrize(
    ("status", "error"), [({1: 1}, ""), ({}, ""), ({2: "no such version"}, "no such version")]
)
def test_the_kubelets_verdict_is_its_error(status: dict[int, object], error: str) -> None:
    assert api.read_registration_error(packed(status)) == error


def test_claims_are_read_and_answered_each_for_itself() -> None:
    request = packed({1: [{1: "ml", 2: "uid-1", 3: "train"}, {1: "ml", 2: "uid-2", 3: "serve"}]})
    claims = api.read_claims(request)
    assert claims == [("uid-1", "ml", "train"), ("uid-2", "ml", "serve")]
    device = api.PreparedDevice("gpu", "gpu-a", "gpu-0", "gpu.cgpu/claim=uid-1", "share")
    answer = api.encode_prepared({"uid-1": [device], "uid-2": "it does not fit"})
    (_, one), (_, two) = fields(answer)
    (_, key), (_, value) = fields(one)
    assert key == b"uid-1"
    [(number, found)] = fields(value)
    assert number == 1
    assert fields(found) == [
        (1, b"gpu"), (2, b"gpu-a"), (3, b"gpu-0"), (4, b"gpu.cgpu/claim=uid-1"), (5, b"share"),
    ]  # fmt: skip
    assert fields(two) == [(1, b"uid-2"), (2, packed({2: "it does not fit"}))]


def test_a_claim_that_is_given_back_has_an_answer_without_an_error() -> None:
    one, two = fields(api.encode_unprepared({"uid-1": "", "uid-2": "busy"}))
    assert fields(one[1]) == [(1, b"uid-1"), (2, b"")]
    assert fields(two[1]) == [(1, b"uid-2"), (2, packed({1: "busy"}))]
