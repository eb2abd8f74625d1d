"""Keeps the node's ResourceSlice in line with its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.apiserver.errors import ConflictError
from cgpu_k8s.apiserver.resources import NODES, SLICES
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.apiserver.watch import DELETED, Listed, Pace, Watch
from cgpu_k8s.dra.slices import (
    SliceNode,
    find_other_offer,
    has_dropped_sharing,
    has_dropped_taints,
    plan_slice,
    slice_name,
)
from cgpu_k8s.names import DRIVER
from cgpu_k8s.objects.fields import get_member

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from typing import Any

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.dra.slices import SliceGpu

    Report = Callable[[str, dict[str, object]], None]
    Observe = Callable[[], Awaitable[Sequence[SliceGpu] | None]]

LOOK = 5.0  # seconds between two checks of the GPUs
_AGAIN = 1.0
_NO_TAINTS = (
    "the API server drops taints of devices, which are the feature DRADeviceTaints and on from"
    " Kubernetes 1.36: the node does not offer its GPUs that do not answer"
)
_NO_SHARING = (
    "the API server drops what lets several claims share a device, which is the feature"
    " DRAConsumableCapacity and on from Kubernetes 1.36: the node offers no GPUs to claims"
)


class SlicePublisher:
    """Publishes the GPUs of the node called ``node``.

    Args:
        client: of the API server.
        node: the name.
        observe: returns the GPUs; None while the driver starts. It may raise a CgpuError: then
            none is offered.
        report: writes a line of the log.
        nvidia_names: whether devices have the names of NVIDIA's driver too.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        observe: Observe,
        report: Report,
        *,
        nvidia_names: bool = False,
    ) -> None:
        self._client, self._node, self._observe, self._report = client, node, observe, report
        self._nvidia_names = nvidia_names
        self._slice: Json | None = None
        self._others: dict[str, Json] = {}  # the node's other slices, by name
        self._listed, self._news = asyncio.Event(), asyncio.Event()
        self._uid = ""
        self._has_taints = self._has_sharing = True  # as far as the API server's answers show
        self._failures: dict[str, str] = {}
        self._problems: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Work until cancelled."""
        await run_together(self._follow_slices(), self._run_loop())

    async def find_conflict(self, uuids: Collection[str]) -> str:
        """Return a sentence about another DRA driver that offers one of these GPUs, or ""."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._listed.wait(), LOOK)
        if not self._listed.is_set():
            return (
                "which GPUs other DRA drivers offer is not known: the API server has not yet"
                " listed the node's ResourceSlices"
            )
        return find_other_offer(self._others.values(), uuids)

    async def _follow_slices(self) -> None:
        """Keep track of the slice: a kubelet deletes it when its driver is away for long.

        Also of those that other drivers have on this node.
        """
        watch = Watch(
            self._client,
            SLICES.path(),
            _keep_object,
            {"fieldSelector": f"spec.nodeName={self._node}"},
            Pace(length=300.0),
            lambda error: self._set_failure("watch", str(error)),
        )
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                if isinstance(event, Listed):
                    self._slice, self._others = None, {}
                    for item in event.items:
                        self._keep(item)
                    self._listed.set()
                    self._has_sharing = True  # another API server may answer now
                else:
                    self._keep(event.item, is_there=event.kind != DELETED)
                self._set_failure("watch", "")
                self._news.set()

    def _keep(self, item: Json, *, is_there: bool = True) -> None:
        """Note a slice of this node. One that has our name may be another driver's."""
        name = get_member(get_member(item, "metadata", dict), "name", str)
        if get_member(get_member(item, "spec", dict), "driver", str) != DRIVER:
            self._others.pop(name, None)
            if is_there:
                self._others[name] = item
        elif name == slice_name(self._node):
            self._slice = item if is_there else None

    async def _run_loop(self) -> None:
        while True:
            self._news.clear()
            pause = 0.0
            try:
                if await self._publish():
                    pause = _AGAIN  # if the API server stored something else, it is sent again
                self._set_failure("publish", "")
            except ConflictError:
                pause = _AGAIN  # the watch shows the newer slice
            except (CgpuError, OSError) as error:
                pause = _AGAIN
                self._set_failure("publish", str(error))
            await asyncio.sleep(pause)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK)

    async def _publish(self) -> bool:
        """Write the slice if it is not up to date; return whether it was written."""
        try:
            gpus = await self._observe()
            self._set_failure("gpus", "")
        except CgpuError as error:
            self._set_failure("gpus", str(error))
            gpus = ()
        if gpus is None:
            return False
        self._report_problems(gpus)
        if not self._listed.is_set():
            return False
        if not self._has_taints and not any(gpu.problem for gpu in gpus):
            self._has_taints = True  # tried again when the next GPU is lost
            self._set_failure("taints", "")
        if self._uid and self._plan(gpus) is None:
            return False
        self._uid = await self._read_uid()  # it changes if the node is deleted and made anew
        wanted = self._plan(gpus)
        if wanted is None:
            return False
        self._slice = await self._write(wanted)
        if self._learn_features(wanted, self._slice):
            without = self._plan(gpus)
            if without is not None:
                self._slice = await self._write(without)
        devices = get_member(get_member(self._slice, "spec", dict), "devices", list)
        self._report("published", {"devices": len(devices)})
        return True

    def _learn_features(self, sent: Json, stored: Json) -> bool:
        """Note features that the API server lacks for what was sent; return whether any."""
        if has_dropped_taints(sent, stored):
            self._has_taints = False
            self._set_failure("taints", _NO_TAINTS)
        if has_dropped_sharing(sent, stored):
            self._has_sharing = False
        self._set_failure("sharing", "" if self._has_sharing else _NO_SHARING)
        return not (self._has_taints and self._has_sharing)

    def _report_problems(self, gpus: Sequence[SliceGpu]) -> None:
        """Report each problem of a GPU once while it lasts."""
        problems = frozenset(gpu.problem.sentence for gpu in gpus if gpu.problem)
        for sentence in sorted(problems - self._problems):
            self._report("failed", {"error": sentence})
        self._problems = problems

    def _plan(self, gpus: Sequence[SliceGpu]) -> dict[str, Any] | None:
        node, offered = SliceNode(self._node, self._uid), gpus if self._has_sharing else ()
        return plan_slice(
            node,
            offered,
            self._slice,
            has_taints=self._has_taints,
            nvidia_names=self._nvidia_names,
        )

    async def _write(self, wanted: dict[str, Any]) -> Json:
        name = slice_name(self._node)
        if self._slice is not None:
            return await self._client.put(SLICES.path(name), wanted)
        try:
            written = await self._client.post(SLICES.path(), wanted)
        except ConflictError:
            self._set_failure("name", await self._find_namesake(name))
            raise
        self._set_failure("name", "")
        return written

    async def _find_namesake(self, name: str) -> str:
        """Return a sentence if a slice of another driver or node has our name; "": none has."""
        found = await self._client.list(SLICES.path(), {"fieldSelector": f"metadata.name={name}"})
        for item in found.items:
            spec = get_member(item, "spec", dict)
            driver, node = (get_member(spec, each, str) for each in ("driver", "nodeName"))
            if (driver, node) != (DRIVER, self._node):
                return (
                    f"ResourceSlice {name} is of the driver {printable(driver)} and the node"
                    f" {printable(node) or 'none'}, and expected of {DRIVER} and {self._node}: no"
                    " GPU of this node is offered until somebody deletes it: kubectl delete"
                    f" resourceslice {name}"
                )
        return ""

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
