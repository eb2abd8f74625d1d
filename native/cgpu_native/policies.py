"""The compute policies (``policy.h``): their names, and what each gives the containers of a GPU."""

from __future__ import annotations

from cgpu_env.record import NamedTuple
from cgpu_native._native import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

POLICIES: dict[int, str] = {
    number: ffi.string(lib.cgpu_policy_name(number)).decode() for number in range(lib.CGPU_POLICIES)
}
"""Names, for people, by number."""
NATIVE_POLICY: int = lib.CGPU_POLICY_NATIVE
WHOLE_PPM: int = lib.CGPU_WHOLE_PPM


def initial_gate(policy: int) -> int:
    """Return the gate word for limits that no arbiter has seen: open only under policy 5."""
    state = lib.CGPU_GATE_FREE if policy == NATIVE_POLICY else lib.CGPU_GATE_CLOSED
    return int(lib.CGPU_GATE_TURN | state)


class Entitlement(NamedTuple):
    """The entitlement of one container under a policy, in millionths of the GPU's time."""

    competes: int
    """Its weight among those that compete for turns."""
    ceiling_ppm: int
    """The most that it gets; ``WHOLE_PPM``: as much as the others leave."""
    fallback_ppm: int
    """Its part while nobody arbitrates."""


def entitle_containers(policy: int, weights: Sequence[int], max_inst: int) -> list[Entitlement]:
    """Return what ``policy`` gives to containers with ``weights`` on one GPU, in their order.

    Raises:
        ValueError: for an unknown policy, or a weight or ``max_inst`` below 1.
    """
    if policy not in POLICIES or max_inst < 1 or any(weight < 1 for weight in weights):
        raise ValueError(f"no entitlements under policy {policy}, max_inst {max_inst}: {weights}")
    claims = ffi.new("struct cgpu_claim[]", len(weights))
    for claim, weight in zip(claims, weights, strict=True):
        claim.weight = weight
    lib.cgpu_policy_entitle(policy, claims, len(weights), max_inst)
    return [Entitlement(one.competes, one.ceiling_ppm, one.fallback_ppm) for one in claims]
