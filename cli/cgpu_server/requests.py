"""What the server can be asked: ``status``, ``set`` and ``stop``; by any user: ``admit``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import cgpu_native
from cgpu_env import CgpuError
from cgpu_env.errors import shown
from cgpu_hook.admission import free_weight, on_gpu
from cgpu_server import changes
from cgpu_server.guests import Guests

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_env import GpuShare
    from cgpu_hook.node import NodeGpu
    from cgpu_hook.record import Record
    from cgpu_server.control import Peer
    from cgpu_server.daemon import Daemon

_COMPUTE = ("limit_ppm", "measured_ppm", "charged_ns", "share_ppm", "metered", "heartbeat_ns")
_WHOLE_NODE = "node"


class Requests:
    """Answers for one server, by the name of the request."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._table: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "status": self._status,
            "set": self._set,
            "stop": self._stop,
        }
        self._guests = Guests(daemon)

    def handle(self, request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        """The answer.

        Raises:
            CgpuError: the request makes no sense or cannot be met; one sentence says why.
        """
        name = request.get("request")
        if name == "admit":
            return self._guests.admit(request, peer)
        if not peer.is_trusted:
            raise CgpuError("you are neither root nor the owner of the state directory")
        answer = self._table.get(name) if isinstance(name, str) else None
        if answer is None:
            known = ", ".join((*self._table, "admit"))
            raise CgpuError(f"request {shown(str(name))!r}: expected one of {known}")
        return answer(request)

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        daemon = self._daemon
        daemon.refresh()
        figures = daemon.conductor.figures()
        gpus = []
        for gpu in self._daemon.gpus():
            beside = on_gpu(daemon.records, gpu.uuid)
            its = daemon.rules_of(gpu.uuid)
            own = figures.get(gpu.uuid)
            gpus.append(
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    **its._asdict(),
                    "free_weight": free_weight(beside, its.max_inst),
                    "containers": len(beside),
                    "figures": own and own._asdict(),
                }
            )
        containers = [_container(record) for record in daemon.records]
        return {"pid": os.getpid(), "gpus": gpus, "containers": containers}

    def _set(self, request: dict[str, Any]) -> dict[str, Any]:
        daemon = self._daemon
        target, values = request.get("target"), request.get("values")
        if not isinstance(target, str) or not isinstance(values, dict) or not values:
            raise CgpuError("set: expected a target and values")
        if values.keys() <= set(changes.GPU_KEYS):
            changes.set_gpu(daemon, self._gpu(target), values)
        elif values.keys() <= set(changes.CONTAINER_KEYS):
            gpu, slash, name = target.rpartition("/")
            changes.set_container(daemon, name, values, self._gpu(gpu).uuid if slash else None)
        elif values.keys() <= set(changes.NODE_KEYS) and target == _WHOLE_NODE:
            changes.set_node(daemon, values)
        else:
            raise CgpuError(
                f"set {', '.join(map(shown, values))}: a GPU has {', '.join(changes.GPU_KEYS)};"
                f" a container has {', '.join(changes.CONTAINER_KEYS)};"
                f" the {_WHOLE_NODE} has {', '.join(changes.NODE_KEYS)}"
            )
        return {}

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        self._daemon.stop()
        return {}

    def _gpu(self, target: str) -> GpuShare | NodeGpu:
        for gpu in self._daemon.gpus():
            if target in (str(gpu.index), gpu.uuid):
                return gpu
        raise CgpuError(f"{shown(target)!r}: no such GPU")


def _container(record: Record) -> dict[str, Any]:
    try:
        pages = cgpu_native.read_limits(f"{record.directory}/limits").gpus
    except (OSError, cgpu_native.NativeError):  # it ends just now
        pages = ()
    return {
        "id": record.id,
        "kind": record.kind,
        "weight": record.weight,
        "high_priority": record.high_priority,
        "gpus": [
            {"index": page.index, "uuid": page.uuid, **{n: getattr(page, n) for n in _COMPUTE}}
            for page in pages
        ],
    }
