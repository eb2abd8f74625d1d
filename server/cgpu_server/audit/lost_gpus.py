"""Logs each GPU that does not answer once, and updates the node's facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cgpu_env.devices import Gpu, format_lost_gpu
from cgpu_server.journal import log
from cgpu_server.state.server_state import ServerState


class LostGpus:
    """The lost GPUs of ``state``, as the audit sees them.

    Attributes:
        seen: the lost GPUs by index, as of the last audit; None: there was no audit yet.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.seen: Mapping[int, Gpu] | None = None

    def follow(self, lost: Iterable[Gpu]) -> None:
        """Note which GPUs do not answer now.

        If they are not the same as before, ask the driver for the facts again. Then the next
        container gets no lost GPU, and may get one that is back.

        Raises:
            CgpuError: the driver does not answer.
        """
        now = {gpu.index: gpu for gpu in lost}
        known = self._list_known()
        if now.keys() != known.keys():
            node = self._state.known_node(refresh=True)
            uuids = {gpu.index: gpu.uuid for gpu in node.gpus}
            for index in sorted(now.keys() - known.keys()):
                uuid = uuids.get(index) or now[index].uuid
                error, _, do = now[index].lost.partition("; ")
                sentence = format_lost_gpu(now[index]._replace(uuid=uuid, lost=error))
                log.error("gpu_lost", gpu=uuid or "-", error=sentence, do=do)
            for index in sorted(known.keys() - now.keys()):
                log.info("gpu_back", gpu=uuids.get(index) or known[index] or "-")
        self.seen = now

    def _list_known(self) -> dict[int, str]:
        """Return the lost GPUs' UUIDs by index, as last seen; at first, as the facts have them."""
        if self.seen is not None:
            return {index: gpu.uuid for index, gpu in self.seen.items()}
        node = self._state.find_node()
        return {gpu.index: gpu.uuid for gpu in node.lost_gpus} if node else {}
