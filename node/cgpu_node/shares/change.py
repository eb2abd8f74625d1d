"""Changes while containers run: rules of a GPU, weight, priority and cap of a container.

The caller has taken the registry's lock, and then read which containers live. Each change is
checked and then made: first in the files that admission and a restarted server read
(``rules.json``, ``record.json``), then in the limits.
"""

from __future__ import annotations

import os
from contextlib import suppress

import cgpu_native
from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_env.values import MIB, compute_cap, describe_slip, format_misstated
from cgpu_node.paths import write_atomically
from cgpu_node.settings import rules
from cgpu_node.shares import compute, record
from cgpu_node.shares.admission import free_weight, records_on_gpu, sum_owed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cgpu_env.request import GpuShare
    from cgpu_node.facts.node import NodeGpu
    from cgpu_node.settings.rules import Defaults
    from cgpu_node.shares.record import Record
    from cgpu_node.shares.registry import Registry

CONTAINER_KEYS = ("weight", "highprio", "memsize")
PRIORITIES = (0, 1)


class Notes(NamedTuple):
    """Warnings about a changed cap, one sentence each.

    Attributes:
        misstated: GPUs whose size differs much from the whole that the user typed.
        excess: what the container holds above its new cap, for each GPU.
    """

    misstated: tuple[str, ...] = ()
    excess: tuple[str, ...] = ()


def change_default(registry: Registry, wanted: object) -> None:
    """Change ``default_memsize``, the cap of a container that names none; 0: no cap.

    Raises:
        CgpuError: it is no size; nothing was changed.
    """
    size = rules.parse_default_size(wanted)
    if size is None:
        what = f"{describe_slip(str(wanted))}expected {rules.DEFAULT_ALLOWED}"
        raise CgpuError(f"{rules.DEFAULT_MEMSIZE}={printable(str(wanted))}: {what}")
    rules.write_default(registry.state_dir, size)


def change_gpus(
    registry: Registry,
    living: list[Record],
    gpus: Sequence[GpuShare | NodeGpu],
    wanted: Mapping[str, object],
    defaults: Defaults,
) -> list[Record]:
    """Change ``policy``, ``max_inst`` or ``prio_ratio`` of all given GPUs, or of none.

    Returns:
        The living containers, as their records are now.

    Raises:
        CgpuError: a value is out of range or too small for the living containers; nothing was
            changed.
    """
    values = {name: rules.check_rule(name, given) for name, given in wanted.items()}
    changes = rules.read_changes(registry.state_dir)
    for gpu in gpus:
        taken = sum(entry.weight for entry in records_on_gpu(living, gpu.uuid))
        if values.get("max_inst", taken) < taken:
            raise CgpuError(
                f"max_inst={values['max_inst']}: the containers on GPU {gpu.index} have weight"
                f" {taken} together"
            )
        rules.change_rules(changes, gpu.uuid, values)
    rules.write_changes(registry.state_dir, changes)
    return _publish_rules(registry, living, {gpu.uuid for gpu in gpus}, defaults)


def change_container(  # noqa: PLR0913 (what a server knows)
    registry: Registry,
    living: list[Record],
    entry: Record,
    wanted: Mapping[str, object],
    defaults: Defaults,
    *,
    uuid: str | None = None,
    overcommit: bool = False,
) -> tuple[list[Record], Notes]:
    """Change some of ``CONTAINER_KEYS``: all that is wanted, or nothing.

    If a cap becomes less than what the container holds, nothing is taken from the container, but
    its new requests are refused.

    Args:
        registry: the registry of the state directory.
        living: all living containers.
        entry: the one of them that is changed.
        wanted: ``weight``, ``highprio`` (0 or 1), ``memsize`` (the cap, ``rules.parse_amount``).
        defaults: the rules of an unchanged GPU.
        uuid: the GPU whose cap changes; None: each of the container's GPUs.
        overcommit: whether caps on a GPU may add up to more than its memory.

    Returns:
        The living containers, as their records are now, and warnings about a cap that was changed.

    Raises:
        CgpuError: it cannot be changed, or not so much is free; nothing was changed.
    """
    others = [other for other in living if other.id != entry.id]
    _check_ours(entry)
    if entry.kind == record.CLAIM:
        raise CgpuError(
            f"{entry.id}: a claim has what the scheduler allocated to it: make another"
            " ResourceClaim, and pods that have it"
        )
    new = _with_terms(registry, entry, wanted, others, defaults)
    gpus = cgpu_native.read_limits(f"{entry.directory}/limits").gpus
    before = caps = [gpu.cap_bytes for gpu in gpus]
    if "memsize" in wanted:
        caps = [
            _checked_memory(gpu, wanted["memsize"], others, overcommit=overcommit)
            if uuid in (None, gpu.uuid)
            else gpu.cap_bytes
            for gpu in gpus
        ]
    # So even if we are killed here, the promise is never less than what the container may take.
    _set_caps(entry, [min(*pair) for pair in zip(caps, before, strict=True)])
    try:
        if "memsize" in wanted:
            new = new._replace(gpus=_compute_promises(entry, caps))
        record.rewrite_record(registry.state_dir, new)
    except OSError:  # the file system is full
        _set_caps(entry, before)
        raise
    _set_caps(entry, caps)
    notes = Notes()
    if "memsize" in wanted:
        chosen = [gpu for gpu in gpus if uuid in (None, gpu.uuid)]
        notes = Notes(
            _format_misstated(chosen, wanted["memsize"]), _format_excesses(new, caps, uuid)
        )
        _keep_notes(registry, entry, notes.misstated)
    changed = [new if other.id == entry.id else other for other in living]
    return _publish_rules(registry, changed, {share.uuid for share in new.gpus}, defaults), notes


def _format_misstated(gpus: list[cgpu_native.LimitsGpu], wanted: object) -> tuple[str, ...]:
    """Return a sentence for the GPUs whose real size is far from the stated one (80 in 6/80)."""
    size = rules.parse_amount(wanted)
    totals = ((gpu.index, gpu.total_bytes) for gpu in gpus)
    return (
        format_misstated(totals, [size] * len(gpus), f"memsize={printable(str(wanted))}")
        if size
        else ()
    )


def _keep_notes(registry: Registry, entry: Record, notes: tuple[str, ...]) -> None:
    """Replace the notes on the previous cap."""
    path = f"{entry.directory}/{record.NOTES}"
    with suppress(FileNotFoundError):
        os.unlink(path)
    with suppress(OSError):  # a program that starts now prints nothing of the previous cap
        cgpu_native.amend_limits(f"{entry.directory}/limits", {"flags": 0})
    if notes:
        with suppress(OSError):  # the file system is full: only the answer has the notes
            temporary = f"{registry.state_dir}/{record.NOTES}.new"
            write_atomically(path, record.pack_notes(notes), temporary=temporary)


def _format_excesses(entry: Record, caps: list[int], uuid: str | None) -> tuple[str, ...]:
    """Return a sentence for each GPU (or only ``uuid``) on which the container exceeds its cap."""
    held = [-(-share.cap_bytes // MIB) for share in entry.gpus]  # or the cap, if that is more
    return tuple(
        f"GPU {share.index}: it holds {mib}MiB, {mib - cap // MIB}MiB above its cap; it keeps them,"
        " and its requests are refused until it holds less than the cap"
        for share, mib, cap in zip(entry.gpus, held, caps, strict=True)
        if share.cap_bytes > cap and uuid in (None, share.uuid)
    )


def _with_terms(
    registry: Registry,
    entry: Record,
    wanted: Mapping[str, object],
    others: list[Record],
    defaults: Defaults,
) -> Record:
    """Return the container with the weight and priority that are wanted."""
    weight, high = entry.weight, int(entry.high_priority)
    if "weight" in wanted:
        changes = rules.read_changes(registry.state_dir)
        weight = _checked_weight(entry, wanted["weight"], others, changes, defaults)
    if "highprio" in wanted:
        high = rules.check_number("highprio", wanted["highprio"], *PRIORITIES)
    return entry._replace(weight=weight, high_priority=bool(high))


def _checked_weight(
    entry: Record, value: object, others: list[Record], changes: rules.Changes, defaults: Defaults
) -> int:
    weight = 1
    for share in entry.gpus:
        most = rules.resolve(share.uuid, changes, defaults, inhabited=True).max_inst
        weight = rules.check_number("weight", value, 1, most)
        free = free_weight((other.weight for other in records_on_gpu(others, share.uuid)), most)
        if weight > free:
            raise CgpuError(f"weight={weight}: GPU {share.index} has {free} of {most} free")
    return weight


def _compute_promises(entry: Record, caps: list[int]) -> tuple[GpuShare, ...]:
    """Return the memory to promise: the cap, or what the container still holds if that is more.

    It never exceeds the earlier promise: the container cannot hold more, but could write any amount
    into its ledger.
    """
    shares = zip(entry.gpus, caps, _read_held(entry), strict=True)
    return tuple(
        share._replace(cap_bytes=max(cap, min(held, share.cap_bytes)))
        for share, cap, held in shares
    )


def _checked_memory(
    gpu: cgpu_native.LimitsGpu, wanted: object, others: list[Record], *, overcommit: bool
) -> int:
    cap = compute_cap(
        "memsize", str(wanted), rules.parse_amount(wanted), gpu.index, gpu.total_bytes
    )
    free = gpu.total_bytes - sum_owed(others, gpu.uuid)
    if cap > max(free, gpu.cap_bytes) and not overcommit:
        raise CgpuError(
            f"memsize={printable(str(wanted))}: GPU {gpu.index} has {max(free, 0) // MIB}MiB of"
            f" {gpu.total_bytes // MIB}MiB free beside the other containers"
        )
    return cap


def _read_held(entry: Record) -> list[int]:
    """Return the memory held on each of its GPUs; zeros if the container has ruined its ledger."""
    try:
        with cgpu_native.Ledger.observe(f"{entry.directory}/ledger") as ledger:
            return [ledger.read_used(number) for number in range(len(entry.gpus))]
    except (OSError, cgpu_native.NativeError):
        return [0] * len(entry.gpus)


def _set_caps(entry: Record, caps: list[int]) -> None:
    for number, cap in enumerate(caps):
        cgpu_native.set_bytes(f"{entry.directory}/limits", number, "cap_bytes", cap)


def _check_ours(entry: Record) -> None:
    """Refuse a container whose files have another release's layout, or cannot be opened."""
    path = f"{entry.directory}/limits"
    try:
        os.close(cgpu_native.open_file(path, os.O_RDWR))
    except BlockingIOError as error:
        raise CgpuError(
            f"{entry.id}: {error.strerror} ({path}): it cannot be changed",
            hint="end the container: no ordinary program takes such a lease",
        ) from None
    head = cgpu_native.read_head(path)
    if entry.version != record.VERSION or (head and head.version != cgpu_native.LIMITS_VERSION):
        release = head.release if head else "unknown"
        raise CgpuError(
            f"{entry.id}: made by release {release}, whose files this one does not change",
            hint="end it, or run that release's cgpud: cgpu upgrade --back",
        )


def _publish_rules(
    registry: Registry, living: list[Record], uuids: set[str], defaults: Defaults
) -> list[Record]:
    """Make records and limits of all containers on these GPUs agree with the rules in force."""
    changes = rules.read_changes(registry.state_dir)
    table = {uuid: rules.resolve(uuid, changes, defaults, inhabited=True) for uuid in uuids}
    new = [_apply_policy(entry, table) for entry in living]
    for before, entry in zip(living, new, strict=True):
        if entry.policy != before.policy:
            record.rewrite_record(registry.state_dir, entry)
        if any(share.uuid in uuids for share in entry.gpus):
            own = {"weight": entry.weight, "high_priority": int(entry.high_priority)}
            compute.amend_container(entry, {**own, "policy": entry.policy})
    compute.write_parts(new, {u: compute.divide_time(u, new, its) for u, its in table.items()})
    return new


def _apply_policy(entry: Record, table: Mapping[str, rules.Rules]) -> Record:
    """Return the container under the policy of its first GPU, if ``table`` has that GPU."""
    its = table.get(entry.gpus[0].uuid)
    return entry._replace(policy=its.policy) if its else entry
