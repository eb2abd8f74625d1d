"""Admission of containers to a node with two GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from cgpu_env import GpuShare, Request
from cgpu_env.request import Asked
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.settings.config import Config
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry

MIB = 1 << 20
UUIDS = [f"GPU-0000000{i}-1111-2222-3333-444444444444" for i in range(2)]
TOTAL = 15109 * MIB
SIX, NINE = TOTAL * 6 // 15, TOTAL * 9 // 15


def make_node(*, max_inst: int = 20, overcommit: bool = False) -> Node:
    gpus = [NodeGpu(i, uuid, "Tesla T4", TOTAL, 100 * MIB, ()) for i, uuid in enumerate(UUIDS)]
    return Node(
        "535.0",
        "/nowhere",
        {},
        {},
        tuple(gpus),
        (),
        Config(max_inst=max_inst, overcommit=overcommit),
    )


def ask(*sizes: int, weight: int = 1, first: int = 0) -> Request:
    shares = [GpuShare(i, UUIDS[i], size) for i, size in enumerate(sizes, start=first)]
    return Request(tuple(shares), weight, high_priority=False)


def asked(request: Request, given: dict[str, str], default_memsize: int | str = 0) -> Request:
    """``request``, as made from the variables ``given``."""
    return request._replace(asked=Asked(given, default_memsize=default_memsize))


def myself() -> Owner:
    return Owner(os.getpid(), start_time(os.getpid()) or 0, None)


def admit(registry: Registry, name: str, request: Request, **more: object) -> str:
    node = more.pop("node", make_node())
    owner = more.pop("owner", myself())
    kind = more.pop("kind", "container")
    return registry.admit(name, kind, request, node, owner, ["true"], **more)  # type: ignore[arg-type]


def leftovers(registry: Registry) -> list[str]:
    return sorted(path.name for path in Path(registry.state_dir, "containers").iterdir())
