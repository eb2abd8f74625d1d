"""What a claim has on a node, by its allocation; else a sentence refuses it. DRA-2, 5, 8, 9."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_env.devices import GpuLostError
from cgpu_env.errors import CgpuError
from cgpu_k8s.dra.claims import FIXED, WEIGHTED_FAIR, ClaimGrant, read_grant
from cgpu_k8s.objects.quantities import parse_memory
from lab.cluster.claims import CLAIM, GPUS, MIB, NODE, T4_MIB, UUIDS, allocated, result

pytestmark = pytest.mark.unit


def granted(item: Any, policy: int = WEIGHTED_FAIR) -> ClaimGrant:
    return read_grant(CLAIM, item, NODE, GPUS, policy)


@given(st.integers(1, T4_MIB), st.integers(0, 20))
def test_dra_2_what_is_allocated_is_the_cap_and_the_weight(mib: int, steps: int) -> None:
    grant = granted(allocated(result(1, f"{mib}Mi", str(5 * steps))))
    [share] = grant.request.gpus
    assert (share.index, share.uuid, share.cap_bytes) == (1, UUIDS[1], mib * MIB)
    assert grant.request.weight == steps, "0: no promise of time"
    [device] = grant.devices
    assert device == ("gpu", NODE, "gpu-1", "share-1")


def test_dra_2_a_claim_for_two_gpus_has_a_cap_on_each() -> None:
    grant = granted(allocated(result(1, "9Gi", request="big"), result(0, "2500Mi")))
    assert [(share.index, share.cap_bytes) for share in grant.request.gpus] == [
        (0, 2500 * MIB),
        (1, 9216 * MIB),
    ]
    assert [(each.request, each.device) for each in grant.devices] == [
        ("big", "gpu-1"),
        ("gpu", "gpu-0"),
    ]


def test_devices_of_other_drivers_are_not_ours_to_prepare() -> None:
    other = {"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "d"}
    assert len(granted(allocated(other, result())).devices) == 1
    with pytest.raises(CgpuError, match=r"^claim ml/train: none of its devices is of the driver"):
        granted(allocated(other))


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (allocated(result(), uid="another"), "has another one of that name, with the UID another"),
        (allocated(), "it has no allocation any more: delete the pod"),
        (allocated(result(pool="gpu-b")), "its device gpu-0 is of the node gpu-b, not of gpu-a"),
        (allocated(result(2)), "this node has no gpu-2 any more: delete the pod"),
        (allocated(result(device="../x")), "this node has no ../x any more"),
        (allocated(result(adminAccess=True)), "gives nobody a GPU without a cap"),
        (allocated(result(memory="15110Mi")), "memory=15110Mi of gpu-0, which has 15109Mi"),
        (allocated(result(memory="1023Ki")), "memory=1023Ki of gpu-0: expected whole bytes, and"),
        (allocated(result(memory="-1")), "memory=-1 of gpu-0: expected whole bytes, and"),
        (allocated(result(memory="much")), "memory=much of gpu-0: expected whole bytes, and"),
        (allocated(result(memory="9999999999999m")), "=9999999999999m of gpu-0: expected whole"),
        (allocated(result(memory="9" * 400)), f"memory={'9' * 60}... of gpu-0: expected whole"),
        (allocated(result(consumedCapacity={"cores": "5"})), "names no memory of gpu-0"),
        (allocated(result(cores="33")), "cores=33: expected a multiple of 5 from 0 to 100"),
        (allocated(result(cores="105")), "cores=105: expected a multiple of 5 from 0 to 100"),
        (allocated(result(cores="-5")), "cores=-5: expected a multiple of 5 from 0 to 100"),
        (allocated(result(), result(request="b")), "two of its requests have parts of the same"),
        (allocated(result(0), result(1, cores="5")), "cores=30, 5: a claim has one weight and one"),
        (
            {"metadata": {"uid": CLAIM.uid}, "status": {"allocation": {"devices": "x"}}},
            "devices: expected an object, got str",
        ),
    ],
)
def test_dra_9_what_cannot_be_given_here_is_refused_with_a_sentence(
    item: Any, sentence: str
) -> None:
    with pytest.raises(CgpuError, match=re.escape(sentence)):
        granted(item)


def test_dra_8_a_gpu_in_mig_mode_is_no_gpu_for_claims() -> None:
    gpus = [GPUS[0]._replace(in_mig_mode=True), GPUS[1]]
    with pytest.raises(GpuLostError, match=r"gpu-0 is in MIG mode by now, and gpu\.cgpu shares"):
        read_grant(CLAIM, allocated(result()), NODE, gpus, WEIGHTED_FAIR)


def test_parameters_of_other_drivers_are_passed_over() -> None:
    config = [{"opaque": {"driver": "nic.example.com", "parameters": {}}}, {"source": "FromClass"}]
    assert granted(allocated(result(), config=config)).request.weight == 6


def test_dra_2_under_fixed_a_claim_needs_cores() -> None:
    assert granted(allocated(result(cores="30")), FIXED).request.weight == 6
    with pytest.raises(CgpuError, match="it claims no cores, and GPUs here give exactly what is"):
        granted(allocated(result(cores="0")), FIXED)
    assert granted(allocated(result(cores="0"))).request.weight == 0


def test_dra_5_a_gpu_that_was_lost_since_the_allocation_is_named() -> None:
    gpus = [GPUS[0]._replace(lost="it fell off the bus; reboot"), GPUS[1]]
    with pytest.raises(GpuLostError, match=r"gpu-0 does not answer: it fell off the bus; reboot"):
        read_grant(CLAIM, allocated(result()), NODE, gpus, WEIGHTED_FAIR)


@pytest.mark.parametrize(
    ("written", "size"),
    [("2500Mi", 2500 * MIB), ("1Ti", MIB << 20), ("5M", 5_000_000), ("1.5", None), ("1Mb", None)],
)
def test_memory_is_read_in_each_unit_of_kubernetes(written: str, size: int | None) -> None:
    assert parse_memory(written) == size
