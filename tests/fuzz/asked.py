"""A server with one container and no driver, which is asked anything."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cgpu_env import GpuShare, Request
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.record import Owner
from cgpu_node.shares.registry import Registry
from cgpu_server.audit.auditor import Audit
from cgpu_server.control.connections import Control, Peer
from cgpu_server.control.requests import Requests
from cgpu_server.state.arbiters import Arbiters
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.nodes import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_native.arbitration import Arbitration

_GPU = NodeGpu(0, "GPU-00000000-1111-2222-3333-444444444444", "Tesla T4", 15 << 30, 1 << 20, ())
_NODE = Node("535.0", "/nowhere", {}, {}, (_GPU,), ())


class _Arbitration:
    """Says yes to all."""

    def add(self, *_: str, **__: object) -> int:
        return 1

    def read_figures(self) -> None:
        return None

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def _nothing() -> None:
    pass


def _start(**_: int) -> Arbitration:
    return cast("Arbitration", _Arbitration())


def _join(_: Sequence[Arbitration]) -> None:
    raise AssertionError("there is one GPU")


class Asked:
    """Its control socket, without the socket."""

    def __init__(self) -> None:
        self._state = Path(tempfile.mkdtemp())
        self._registry = Registry(str(self._state))
        owner = Owner(os.getpid(), start_time(os.getpid()) or 0, None)
        request = Request((GpuShare(0, _GPU.uuid, 6 << 30),), 1, high_priority=False)
        folder = Path(self._registry.admit("c1", "container", request, _NODE, owner, ["true"]))
        self._kept = {
            folder / name: (folder / name).read_bytes() for name in ("limits", "record.json")
        }

    def ask(self, line: bytes) -> None:
        """Send a line as a user, and as root; nothing is left of what it changed.

        Raises:
            AssertionError: the server has no answer to it.
        """
        for uid in (1234, 0):
            state = ServerState(self._registry, Arbiters(_start, _join))
            tree = Tree(state, _nothing)
            requests = Requests(state, Audit(state), tree, None, _nothing)
            control = Control(requests.answer, _nothing)
            answer = control.answer(line, Peer(os.getpid(), uid, 0))
            json.dumps(answer)
            assert "internal error" not in answer.get("error", ""), answer
            (self._state / "rules.json").unlink(missing_ok=True)
            for path, content in self._kept.items():
                path.write_bytes(content)
