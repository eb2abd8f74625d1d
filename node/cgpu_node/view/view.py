"""The description of a node's containers from which everything is printed.

``cgpu get``, ``cgpu-smi``, ``cgpu top``, the control tree and the metrics print from it. ``usage``
makes it. The server sends it in answers (``Usage.as_json``), and clients read it from these
(``parse_usage``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.values import MIB
from cgpu_native import policies
from cgpu_node.view import marks
from cgpu_node.view.processes import Holding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from cgpu_node.shares.record import Kind


class Compute(NamedTuple):
    """A container's share of one GPU's time: the most that it may have, and what it has.

    Attributes:
        limit_percent: the most while others compete: prio_ratio for high priority, the policy's
            ceiling, or its part by weight of what high-priority containers leave.
        measured_percent: its share of the last second; None if nobody measures, or only roughly.
        charged_ns: GPU time since the arbiter took the container on.
        arbitrated: whether an arbiter lives.
        share_percent: its own part while no arbiter lives.
        waits: how often it began to wait for its turn.
        throttled_ns: how long it waited, with one thread or many.
        heartbeat_age_ns: time since the arbiter's last heartbeat; None if there was none.
        heartbeat_ns: the host's monotonic clock at that heartbeat; 0 if there was none.
        estimated_percent: set if ``measured_percent`` is None: by a rough measure (policy 4), or by
            the driver's utilisation (the GPU's if the container is alone there, else that of its
            processes).
        estimated_ns: GPU time by that utilisation, in addition to ``charged_ns``.
    """

    limit_percent: float
    measured_percent: float | None
    charged_ns: int
    arbitrated: bool
    share_percent: float
    waits: int
    throttled_ns: int
    heartbeat_age_ns: int | None
    heartbeat_ns: int = 0
    estimated_percent: float | None = None
    estimated_ns: int = 0


class GpuUse(NamedTuple):
    """A container's use of one GPU, in bytes.

    Attributes:
        index: the GPU's index on this node.
        uuid: the GPU's UUID.
        cap_bytes: what the container may hold.
        used_bytes: what its processes hold, whether it is in its ledger or not.
        processes: the processes that hold memory there.
        compute: its share of the time; None if the limits cannot be read, because it has just
            ended.
        refused: how many requests for memory did not fit.
        outside_bytes: the part of ``used_bytes`` that is not in the ledger.
        mark: why this cannot be known in full (``marks``); None: it can.
        promised_bytes: what admission gives to nobody else: the cap, or the bytes held if these are
            more.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    cap_bytes: int
    used_bytes: int
    processes: tuple[Holding, ...]
    compute: Compute | None = None
    refused: int = 0
    outside_bytes: int = 0
    mark: str | None = None
    promised_bytes: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether the ledger could be read."""
        return self.mark in {None, marks.LOCKS}

    @property
    def free_bytes(self) -> int:
        """Return the part of the cap that is free."""
        return max(0, self.cap_bytes - self.used_bytes)

    def as_json(self) -> dict[str, Any]:
        """Return the container's part of a GPU, as in ``--json`` and on the socket."""
        compute = self.compute._asdict() if self.compute else dict.fromkeys(Compute._fields)
        fields = {**self._asdict(), "free_bytes": self.free_bytes, **compute}
        del fields["compute"]
        fields["processes"] = [each._asdict() for each in self.processes]
        return {**fields, "memory_bytes": self.cap_bytes}  # as release 0.1 calls it


class Use(NamedTuple):
    """A container or session, and what it holds on each of its GPUs.

    Attributes:
        id: the container's id.
        kind: container, session or claim; or a pod's container with whole GPUs, which has no
            record.
        name: what people call it (``names``); empty if the engine gave no name.
        command: its program and arguments.
        weight: its compute weight; 0: it was promised no time, and shares what is left.
        high_priority: whether it has high priority.
        policy: the policy of its first GPU.
        gpus: in the order of its visible list.
        pods: the containers that have a claim, each as NAMESPACE/POD/CONTAINER.
        directory: the directory of its files; empty in an answer of a server.
    """

    id: str
    kind: Kind | Literal["exclusive"]
    name: str
    command: tuple[str, ...]
    weight: int
    high_priority: bool
    policy: int
    gpus: tuple[GpuUse, ...]
    directory: str = ""
    pods: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the container, as in ``--json`` and on the socket."""
        fields = self._asdict()
        del fields["directory"]
        gpus = [gpu.as_json() for gpu in self.gpus]
        return {**fields, "command": list(self.command), "gpus": gpus, "pods": list(self.pods)}


class Others(NamedTuple):
    """The use of a GPU by all containers together that the reader may not see, in bytes.

    Attributes:
        containers: how many there are.
        weight: the sum of their weights.
        cap_bytes: the sum of their caps.
        used_bytes: what they hold.
        measured_percent: their share of the GPU's last second; None if that of one is not known.
    """

    containers: int
    weight: int
    cap_bytes: int
    used_bytes: int
    measured_percent: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the entry, as in ``--json`` and on the socket."""
        return {**self._asdict(), "memory_bytes": self.cap_bytes}  # as release 0.1 calls it


class GpuTotals(NamedTuple):
    """A GPU, its rules, and what all containers together have of it, in bytes.

    Attributes:
        index: its index on this node.
        uuid: its UUID.
        name: the product's name.
        total_bytes: its memory.
        promised_bytes: what admission counts as taken.
        used_bytes: what containers hold.
        max_inst: the rule.
        free_weight: what is left of ``max_inst`` for others.
        policy: the rule.
        prio_ratio: the rule.
        measured_percent: the containers' share of its last second; None if that of one is not
            known.
        containers: how many are on it.
        weight: the sum of their weights.
        others: those of them that are not shown one by one; None if all are.
        utilisation_percent: the driver's own figure, for all that runs there; None: not known.
        lost: why it does not answer, and what to do; None: it answers.
        foreign_bytes: what processes outside these containers hold; None: not known.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    name: str
    total_bytes: int
    promised_bytes: int
    used_bytes: int
    max_inst: int
    free_weight: int
    policy: int
    prio_ratio: int
    measured_percent: float | None
    containers: int
    weight: int
    others: Others | None = None
    utilisation_percent: float | None = None
    lost: str | None = None
    foreign_bytes: int | None = None

    @property
    def policy_name(self) -> str:
        """Return the name of the policy."""
        return policies.POLICIES[self.policy]

    @property
    def is_scarce(self) -> bool:
        """Whether promised memory may be missing, because others hold it."""
        held = self.foreign_bytes or 0
        return bool(held and self.promised_bytes) and held + self.promised_bytes > self.total_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the GPU, as in ``cgpu-smi --json`` and on the socket."""
        fields = {**self._asdict(), "policy_name": self.policy_name}
        fields["others"] = self.others and self.others.as_json()
        return {**fields, "memory_bytes": self.total_bytes}  # as release 0.1 calls it


class Usage(NamedTuple):
    """A node's GPUs, and the containers and sessions that the reader may see.

    Attributes:
        driver_version: as the driver reports it.
        driver_dir: where its libraries are.
        gpus: in the order of their indices.
        uses: the containers and sessions.
        notes: what could not be found out about the node, one sentence each.
    """

    driver_version: str
    driver_dir: str
    gpus: tuple[GpuTotals, ...]
    uses: tuple[Use, ...]
    notes: tuple[str, ...] = ()

    def uses_on_gpu(self, uuid: str) -> list[tuple[Use, GpuUse]]:
        """Return the containers on one GPU."""
        return [(use, gpu) for use in self.uses for gpu in use.gpus if gpu.uuid == uuid]

    def list_remarks(self) -> list[str]:
        """Return the notes, and a sentence for each scarce GPU and each mark of a container."""
        scarce = [_format_scarcity(gpu) for gpu in self.gpus if gpu.is_scarce]
        found = {(use.id, gpu.mark): None for use in self.uses for gpu in use.gpus}
        marked = [f"{name}: {marks.SENTENCES[mark]}" for name, mark in found if mark is not None]
        return [*self.notes, *scarce, *marked]

    def with_foreign(self, foreign: Mapping[str, int]) -> Usage:
        """Return this with what processes outside all containers hold of each GPU, by UUID."""
        gpus = (gpu._replace(foreign_bytes=foreign.get(gpu.uuid)) for gpu in self.gpus)
        return self._replace(gpus=tuple(gpus))

    def as_json(self) -> dict[str, Any]:
        """Return what ``cgpu-smi --json`` prints and the server sends."""
        return {
            "driver_version": self.driver_version,
            "driver_dir": self.driver_dir,
            "notes": list(self.notes),
            "gpus": [gpu.as_json() for gpu in self.gpus],
            "containers": [use.as_json() for use in self.uses],
        }


def _format_scarcity(gpu: GpuTotals) -> str:
    held, promised = (gpu.foreign_bytes or 0) // MIB, gpu.promised_bytes // MIB
    return (
        f"GPU {gpu.index}: processes outside these containers hold {held}MiB, and {promised}MiB of"
        f" {gpu.total_bytes // MIB}MiB are promised: memory can run out below a cap"
    )


def parse_usage(answer: Mapping[str, Any]) -> Usage:
    """Return the description in a server's answer, of any release (``Usage.as_json``).

    Raises:
        KeyError, TypeError: it is no such answer.
    """
    gpus = tuple(map(_parse_totals, answer["gpus"]))
    uses = tuple(map(_parse_use, answer["containers"]))
    return Usage(answer["driver_version"], answer["driver_dir"], gpus, uses, tuple(answer["notes"]))


def _parse_totals(fields: Mapping[str, Any]) -> GpuTotals:
    others = fields.get("others")
    parsed = None if others is None else Others(**_select_known(Others, others, "cap_bytes"))
    return GpuTotals(**{**_select_known(GpuTotals, fields, "total_bytes"), "others": parsed})


def _parse_use(fields: Mapping[str, Any]) -> Use:
    own = {
        "command": tuple(fields["command"]),
        "gpus": tuple(map(_parse_gpu, fields["gpus"])),
        "pods": tuple(fields.get("pods", ())),
    }
    return Use(**{**_select_known(Use, fields), **own})


def _parse_gpu(fields: Mapping[str, Any]) -> GpuUse:
    is_seen = fields["limit_percent"] is not None
    own = {
        "processes": tuple(Holding(**_select_known(Holding, each)) for each in fields["processes"]),
        "compute": Compute(**_select_known(Compute, fields)) if is_seen else None,
    }
    return GpuUse(**{**_select_known(GpuUse, fields, "cap_bytes"), **own})


def _select_known(kind: type[Any], fields: Mapping[str, Any], memory: str = "") -> dict[str, Any]:
    """Return the fields that this release knows; another one may send more.

    ``memory``: the field that a server of release 0.1 calls ``memory_bytes``.
    """
    found = {name: fields[name] for name in kind._fields if name in fields}
    return found if memory in (*found, "") else {**found, memory: fields["memory_bytes"]}
