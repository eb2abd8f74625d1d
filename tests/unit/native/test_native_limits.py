"""The limits page: layout, packing and reading back."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from cgpu_native._native import ffi, lib
from hypothesis import given
from hypothesis import strategies as st

import cgpu_native
from cgpu_env.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
GPUS = st.builds(
    cgpu_native.LimitsGpu,
    uuid=st.binary(min_size=16, max_size=16).map(cgpu_native.uuid_text),
    index=U32,
    cap_bytes=U64,
    total_bytes=U64,
    context_bytes=U64,
    outside_bytes=U64,
    **dict.fromkeys(
        ("gate", "share_ppm", "offset_ppm", "limit_ppm", "measured_ppm", "metered"), U32
    ),
    **dict.fromkeys(("charged_ns", "throttled_ns", "waits", "heartbeat_ns"), U64),
)


def test_the_layout_is_the_one_that_running_containers_read() -> None:
    offsets = {
        "magic": 0,
        "version": 4,
        "size": 8,
        "gpu_count": 12,
        "weight": 16,
        "high_priority": 20,
        "policy": 24,
        "flags": 28,
        "id": 32,
        "release": 112,
        "gpus": 128,
    }
    found = {name: field.offset for name, field in ffi.typeof("struct cgpu_limits").fields}
    assert found == offsets
    gpu = {name: field.offset for name, field in ffi.typeof("struct cgpu_limits_gpu").fields}
    assert gpu == {
        "uuid": 0,
        "cap_bytes": 16,
        "total_bytes": 24,
        "context_bytes": 32,
        "index": 40,
        "reserved0": 44,
        "outside_bytes": 48,
        "reserved": 56,
        "gate": 64,
        "share_ppm": 68,
        "offset_ppm": 72,
        "measured_ppm": 76,
        "heartbeat_ns": 80,
        "charged_ns": 88,
        "metered": 96,
        "limit_ppm": 100,
        "throttled_ns": 104,
        "waits": 112,
        "quiet_gate": 120,
        "compute_reserved": 124,
    }
    assert ffi.sizeof("struct cgpu_limits") == 128 + 32 * 128
    assert int.from_bytes(b"CLIM", "little") == lib.CGPU_LIMITS_MAGIC


def test_a_page_holds_the_bytes_it_is_specified_to_hold() -> None:
    gpu = cgpu_native.LimitsGpu(UUID, 3, 6043 << 20, 15109 << 20, 100)
    page = cgpu_native.pack_limits("abc", [gpu], weight=5, high_priority=True, policy=6)
    words = b"CLIM", 2, 128 + 32 * 128, 1, 5, 1, 6, 0, b"abc", VERSION.encode()
    head = struct.pack("<4sIIIIIII80s16s", *words)
    entry = struct.pack("<16sQQQI84x", bytes.fromhex("0123456789abcdef" * 2), *gpu[2:5], 3)
    assert page == (head + entry).ljust(128 + 32 * 128, b"\0")


@given(
    st.text("abcdef0123456789-", max_size=79),
    st.lists(GPUS, max_size=32),
    U32,
    st.booleans(),
    U32,
    U32,
)
def test_what_is_packed_is_read_back(
    name: str,
    gpus: list[cgpu_native.LimitsGpu],
    weight: int,
    high_priority: bool,  # noqa: FBT001
    policy: int,
    flags: int,
) -> None:
    page = cgpu_native.pack_limits(
        name, gpus, weight=weight, high_priority=high_priority, policy=policy, flags=flags
    )
    expected = cgpu_native.Limits(name, tuple(gpus), weight, high_priority, policy, flags)
    assert cgpu_native.unpack_limits(page) == expected


@given(st.binary(max_size=3000))
def test_noise_is_no_limits_page(noise: bytes) -> None:
    with pytest.raises(cgpu_native.FormatError):
        cgpu_native.unpack_limits(noise)


@pytest.mark.parametrize("place", [0, 4, 8, 15])
def test_a_spoilt_head_is_refused(place: int, tmp_path: Path) -> None:
    page = bytearray(cgpu_native.pack_limits("x", [cgpu_native.LimitsGpu(UUID, 0, 1, 2)]))
    (tmp_path / "limits").write_bytes(page)
    assert cgpu_native.read_limits(tmp_path / "limits").id == "x"
    page[place] ^= 0x40
    (tmp_path / "limits").write_bytes(page)
    with pytest.raises(cgpu_native.FormatError):
        cgpu_native.read_limits(tmp_path / "limits")


def test_a_page_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "limits").write_bytes(cgpu_native.pack_limits("x", []) + b"\0")
    with pytest.raises(cgpu_native.FormatError):
        cgpu_native.read_limits(tmp_path / "limits")


def test_what_does_not_fit_is_refused() -> None:
    gpu = cgpu_native.LimitsGpu(UUID, 0, 1, 2)
    with pytest.raises(ValueError, match="at most 79"):
        cgpu_native.pack_limits("x" * 80, [])
    with pytest.raises(ValueError, match="at most 32"):
        cgpu_native.pack_limits("x", [gpu] * 33)
    with pytest.raises(OverflowError):
        cgpu_native.pack_limits("x", [gpu._replace(cap_bytes=2**64)])
    with pytest.raises(OverflowError):
        cgpu_native.pack_limits("x", [], weight=-1)


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_goes_to_text_and_back(raw: bytes) -> None:
    assert cgpu_native.uuid_bytes(cgpu_native.uuid_text(raw)) == raw


@pytest.mark.parametrize(
    "text",
    ["", UUID[4:], UUID[:-1], UUID + "0", UUID.replace("89", "zz"), UUID.replace("89ab", "89 b")],
)
def test_what_is_no_gpu_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a GPU UUID"):
        cgpu_native.uuid_bytes(text)
