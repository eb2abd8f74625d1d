"""The facts about the node by which claims are prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.dra.inquiry import Inquiry
from cgpu_node.facts.node import load_node

if TYPE_CHECKING:
    from cgpu_node.facts.node import Node

PATIENCE = 20.0  # seconds that a claim waits for the driver; a kubelet waits 45 for the claim


class KnownNode:
    """The facts about the node, which are kept until the next refresh.

    Args:
        state_dir: the state directory.
        driver_dir: the directory of the driver's libraries; None: the usual one. With any other,
            the facts are not written to the state directory: the node's programs use other paths.
    """

    def __init__(self, state_dir: str, driver_dir: str | None) -> None:
        self._state_dir, self._driver_dir = state_dir, driver_dir
        self._node: Node | None = None
        self._inquiry = Inquiry(self._ask, PATIENCE, "which GPUs the driver has")

    async def load(self, *, refresh: bool = False) -> Node:
        """Return the facts; with ``refresh``, after asking the driver.

        Raises:
            CgpuError: the driver does not answer.
        """
        if self._node is None or refresh:
            return await self._inquiry.ask(refresh=refresh)
        return self._node

    def _ask(self, *, refresh: bool) -> Node:
        self._node = load_node(
            self._state_dir, self._driver_dir, refresh=refresh, keep=self._driver_dir is None
        )
        return self._node
