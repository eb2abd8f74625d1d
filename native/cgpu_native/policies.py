"""Compute policies (``arbiter/policy.h``): what the containers of one GPU are entitled to."""

from __future__ import annotations

from cgpu_env.record import NamedTuple
from cgpu_native._native import ffi, lib
from cgpu_native.errors import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NATIVE: int = lib.CGPU_POLICY_NATIVE
WHOLE_PPM: int = lib.CGPU_WHOLE_PPM


class Claim(NamedTuple):
    """A running container, as a policy sees it."""

    weight: int
    high_priority: bool = False
    active: bool = True


class Entitlement(NamedTuple):
    """What a policy gives a container.

    Attributes:
        competes: its weight among those that compete for turns.
        ceiling_ppm: it gets no more than this of the GPU's time, in millionths.
        fallback_ppm: its share while nobody arbitrates, in millionths.
    """

    competes: int
    ceiling_ppm: int
    fallback_ppm: int


def entitle(policy: int, claims: Sequence[Claim], max_inst: int) -> list[Entitlement]:
    """What each of ``claims``, all of one GPU, is entitled to.

    Raises:
        NativeError: no such policy, or a weight of 0.
    """
    each = ffi.new("struct cgpu_claim[]", max(1, len(claims)))
    for place, claim in enumerate(claims):
        each[place].weight = claim.weight
        each[place].high_priority = int(claim.high_priority)
        each[place].active = int(claim.active)
    check(lib.cgpu_policy_entitle(policy, each, len(claims), max_inst), f"policy {policy}")
    return [
        Entitlement(entry.competes, entry.ceiling_ppm, entry.fallback_ppm)
        for entry in each[0 : len(claims)]
    ]


def name(policy: int) -> str:
    """What people call it; empty for an unknown one."""
    text = lib.cgpu_policy_name(policy)
    return "" if text == ffi.NULL else str(ffi.string(text).decode())
