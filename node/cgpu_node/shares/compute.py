"""The compute settings in a container's limits before an arbiter takes it on.

While nobody arbitrates, every container has a part of the fallback period for itself
(``native/gate/fallback.h``). So when a container comes or changes, the parts of the other
containers on its GPUs move.
"""

from __future__ import annotations

import cgpu_native
from cgpu_env.record import NamedTuple
from cgpu_native import policies
from cgpu_node.shares.admission import records_on_gpu, sum_promised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_node.settings.rules import Rules
    from cgpu_node.shares.record import Record


class ComputeShare(NamedTuple):
    """A container's share of one GPU's time, in millionths.

    Attributes:
        share_ppm: its share while nobody arbitrates.
        offset_ppm: where that share begins in the fallback period.
        limit_ppm: the most that it gets while all others compete.
    """

    share_ppm: int
    offset_ppm: int
    limit_ppm: int


def divide_time(uuid: str, records: Iterable[Record], rules: Rules) -> dict[str, ComputeShare]:
    """Return the parts of all containers on a GPU, by container id."""
    beside = sorted(records_on_gpu(records, uuid), key=lambda record: record.id)
    asked = [(record.weight, sum_promised([record], uuid)) for record in beside]
    entitled = policies.entitle_containers(rules.policy, asked, rules.max_inst)
    competing = sum(each.competes for each in entitled) or 1
    found, offset = {}, 0
    for record, each in zip(beside, entitled, strict=True):
        share = each.fallback_ppm
        limit = min(each.ceiling_ppm, each.competes * policies.WHOLE_PPM // competing)
        found[record.id] = ComputeShare(share, 0 if share == policies.WHOLE_PPM else offset, limit)
        offset += share
    return found


def write_parts(records: Iterable[Record], table: Mapping[str, dict[str, ComputeShare]]) -> None:
    """Write the parts on the GPUs of ``table`` (by UUID) into the limits of ``records``.

    Raises:
        OSError: limits cannot be written; they are unchanged.
    """
    for record in records:
        gpus = {
            number: table[share.uuid][record.id]._asdict()
            for number, share in enumerate(record.gpus)
            if share.uuid in table
        }
        if gpus:
            amend_container(record, gpus=gpus)


def amend_container(
    record: Record,
    own: dict[str, int] | None = None,
    gpus: dict[int, dict[str, int]] | None = None,
) -> None:
    """Change a container's limits (``cgpu_native.amend_limits``), if their version is ours.

    Raises:
        OSError: they cannot be written.
    """
    # BlockingIOError: one of its processes holds a lease on its limits. No other container must be
    # refused for that. This one keeps its part until its arbiter changes it; the arbiter maps the
    # limits, which prevents leases.
    try:
        cgpu_native.amend_limits(f"{record.directory}/limits", own, gpus)
    except (FileNotFoundError, BlockingIOError):
        return  # it is ending (its poststop hook waits for no lock), or as above
    except cgpu_native.FormatError:
        return  # another release's: it keeps its part, and the server reports it
