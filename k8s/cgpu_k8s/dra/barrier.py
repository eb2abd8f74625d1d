"""Finds out why pods with claims could not get GPUs on this node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from cgpu_k8s.dra.node_programs import NodePrograms
    from cgpu_k8s.kubelet.pod_resources import PodResources


class Barrier(NamedTuple):
    """The places where something may keep GPUs from claims.

    Attributes:
        setting: the file with the mode of a node whose pods follow decisions.
        find_engine_problem: returns why the engine would not give containers just what claims
            have; "": it does.
        programs: what is installed on the node; None: it has the hook.
        plugins: knows which GPUs pods have by other plugins.
    """

    setting: Path
    find_engine_problem: Callable[[], Awaitable[str]]
    programs: NodePrograms | None
    plugins: PodResources

    async def find(self) -> str:
        """Return a sentence; "": nothing keeps them."""
        if self.setting.exists():
            return (
                f"{self.setting} is there, so pods of this node follow decisions: the agent removes"
                " it once none of them has a GPU"
            )
        problem = await self.plugins.find_problem() or await self.find_engine_problem()
        if self.programs and not problem:
            problem = await asyncio.to_thread(self.programs.find_problem)
        return problem
