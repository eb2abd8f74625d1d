"""Describes containers of pods that have whole GPUs, which have no records."""

from __future__ import annotations

from collections.abc import Mapping

from cgpu_node.exclusive import Exclusive
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.record import PodContainer
from cgpu_node.view.view import Compute, GpuUse, Use
from cgpu_server.audit.snapshot import Snapshot

_WHOLE = 100.0  # percent


def describe_whole_gpus(
    having: Mapping[str, Exclusive], node: Node | None, last: Snapshot
) -> dict[PodContainer, Use]:
    """Return the containers with whole GPUs, if ``last`` has the driver's figures of these GPUs.

    Only the kubelet knows such containers, and it does not report their ids. So they are named by
    their pods.

    Args:
        having: the containers, by the GPU's UUID.
        node: the facts about the node.
        last: the audit's last snapshot.
    """
    found: dict[PodContainer, Use] = {}
    for gpu in node.gpus if node else ():
        if gpu.uuid in having:
            namespace, pod, container, _ = having[gpu.uuid]
            name = f"{namespace}/{pod}/{container}"
            key = PodContainer("", namespace, pod, container)
            use = found.get(key) or Use(
                name, "exclusive", name, (), 0, high_priority=False, policy=0, gpus=()
            )
            its = (_use_of(gpu, last),) if gpu.uuid in last.used_bytes else ()
            found[key] = use._replace(gpus=(*use.gpus, *its))
    return found


def _use_of(gpu: NodeGpu, last: Snapshot) -> GpuUse:
    percent = last.utilisation.get(gpu.uuid)
    return GpuUse(
        index=gpu.index,
        uuid=gpu.uuid,
        cap_bytes=gpu.total_bytes,
        used_bytes=last.used_bytes[gpu.uuid],
        processes=(),
        compute=Compute(
            limit_percent=_WHOLE,
            measured_percent=None,
            charged_ns=0,
            arbitrated=False,
            share_percent=_WHOLE,
            waits=0,
            throttled_ns=0,
            heartbeat_age_ns=None,
            estimated_percent=None if percent is None else float(percent),
        ),
        promised_bytes=gpu.total_bytes,
    )
