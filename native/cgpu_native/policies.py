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
_MIB_SHIFT = 20


def initial_gate(policy: int) -> int:
    """Return the gate word for limits that no arbiter has seen: open only under policy 5."""
    state = lib.CGPU_GATE_FREE if policy == NATIVE_POLICY else lib.CGPU_GATE_CLOSED
    return int(lib.CGPU_GATE_TURN | state)


class Entitlement(NamedTuple):
    """The entitlement of one container under a policy, in millionths of the GPU's time."""

    competes: int
    """Its weight among those that compete for turns, in hundredths of a unit."""
    ceiling_ppm: int
    """The most that it gets; ``WHOLE_PPM``: as much as the others leave."""
    fallback_ppm: int
    """Its part while nobody arbitrates."""


def entitle_containers(
    policy: int, containers: Sequence[tuple[int, int]], max_inst: int
) -> list[Entitlement]:
    """Return what ``policy`` gives to the containers of one GPU, in their order.

    Args:
        policy: its number.
        containers: the weight and the cap in bytes of each. Those of weight 0 share by their caps
            what the others leave of ``max_inst``.
        max_inst: the rule of the GPU.

    Raises:
        ValueError: for an unknown policy, a weight below 0, or a ``max_inst`` below 1.
    """
    if policy not in POLICIES or max_inst < 1 or any(weight < 0 for weight, _ in containers):
        raise ValueError(
            f"no entitlements under policy {policy}, max_inst {max_inst}: {containers}"
        )
    claims = ffi.new("struct cgpu_claim[]", len(containers))
    for claim, (weight, cap_bytes) in zip(claims, containers, strict=True):
        claim.weight, claim.memory_mib = weight, cap_bytes >> _MIB_SHIFT
    lib.cgpu_policy_entitle(policy, claims, len(containers), max_inst)
    return [Entitlement(one.competes, one.ceiling_ppm, one.fallback_ppm) for one in claims]
