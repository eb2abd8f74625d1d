"""Keeps the node's ResourceSlice in line with its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ConflictError
from cgpu_k8s.apiserver.resources import NODES, SLICES
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.apiserver.watch import DELETED, Listed, Pace, Watch
from cgpu_k8s.dra.slices import SliceNode, plan_slice, slice_name
from cgpu_k8s.names import DRIVER
from cgpu_k8s.objects.fields import get_member

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.dra.slices import SliceGpu

    Report = Callable[[str, dict[str, object]], None]
    Observe = Callable[[], Awaitable[Sequence[SliceGpu] | None]]

LOOK = 5.0  # seconds between two checks of the GPUs
_AGAIN = 1.0


class SlicePublisher:
    """Publishes the GPUs of the node called ``node``.

    Args:
        client: of the API server.
        node: the name.
        observe: returns the GPUs that answer; None while the driver starts. It may raise a
            CgpuError: then none does.
        report: writes a line of the log.
    """

    def __init__(self, client: Client, node: str, observe: Observe, report: Report) -> None:
        self._client, self._node, self._observe, self._report = client, node, observe, report
        self._slice: Json | None = None
        self._is_listed, self._news = False, asyncio.Event()
        self._uid = ""
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        await run_together(self._follow_slice(), self._run_loop())

    async def _follow_slice(self) -> None:
        """Keep track of the slice: a kubelet deletes it when its driver is away for long."""
        fields = f"spec.nodeName={self._node},spec.driver={DRIVER}"
        watch = Watch(
            self._client,
            SLICES.path(),
            _keep_object,
            {"fieldSelector": fields},
            Pace(length=300.0),
            lambda error: self._set_failure("watch", str(error)),
        )
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    named = [each for each in event.items if self._is_ours(each)]
                    self._slice, self._is_listed = (named[0] if named else None), True
                elif self._is_ours(event.item):
                    self._slice = None if event.kind == DELETED else event.item
                self._set_failure("watch", "")
                self._news.set()

    def _is_ours(self, item: Json) -> bool:
        return get_member(get_member(item, "metadata", dict), "name", str) == slice_name(self._node)

    async def _run_loop(self) -> None:
        while True:
            self._news.clear()
            pause = 0.0
            try:
                await self._publish()
                self._set_failure("publish", "")
            except ConflictError:
                pause = _AGAIN  # the watch shows what is newer
            except (CgpuError, OSError) as error:
                pause = _AGAIN
                self._set_failure("publish", str(error))
            await asyncio.sleep(pause)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK)

    async def _publish(self) -> None:
        try:
            gpus = await self._observe()
            self._set_failure("gpus", "")
        except CgpuError as error:
            self._set_failure("gpus", str(error))
            gpus = ()
        if gpus is None or not self._is_listed:
            return
        if self._uid and plan_slice(SliceNode(self._node, self._uid), gpus, self._slice) is None:
            return
        self._uid = await self._read_uid()  # another one if the node was deleted and made anew
        wanted = plan_slice(SliceNode(self._node, self._uid), gpus, self._slice)
        if wanted is None:
            return
        if self._slice is None:
            self._slice = await self._client.post(SLICES.path(), wanted)
        else:
            self._slice = await self._client.put(SLICES.path(slice_name(self._node)), wanted)
        self._report("published", {"devices": len(gpus)})

    async def _read_uid(self) -> str:
        node = await self._client.get(NODES.path(self._node))
        return get_member(get_member(node, "metadata", dict), "uid", str)

    def _set_failure(self, about: str, problem: str) -> None:
        """Report a problem with something once while it lasts; "": there is none."""
        if problem and problem != self._failures.get(about):
            self._report("failed", {"error": problem})
        self._failures[about] = problem


def _keep_object(item: Json) -> Json:
    return item
