"""Follows this node and its pods at the API server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.apiserver.resource_version import version_of
from cgpu_k8s.apiserver.resources import NODES, PODS
from cgpu_k8s.apiserver.watch import DELETED, Changed, Listed, Pace, Watch
from cgpu_k8s.node.pod_specs import Specs
from cgpu_k8s.node.pods import NodePod, read_node_pod
from cgpu_k8s.objects.fields import ObjectError, get_member

if TYPE_CHECKING:
    from collections.abc import Callable

    from cgpu_k8s.apiserver.client import Client, Json


class NodeInformer:
    """Follows a node and its pods.

    Args:
        client: a client of the API server.
        name: the node's name.
        state: the path of the state directory, into which the pods' specifications are written.
        report: writes a line of the log.
        fail: reports a problem with a subject once while it lasts; "" means that there is none.

    Attributes:
        node: the node's object; None if it is not known or does not exist.
        pods: the node's pods, by UID; None if they are not known.
        news: set when anything has changed.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        state: str,
        report: Callable[[str, dict[str, object]], None],
        fail: Callable[[str, str], None],
    ) -> None:
        self._client, self._name, self._specs = client, name, Specs(state)
        self._report, self._fail, self.news = report, fail, asyncio.Event()
        self.node: Json | None = None
        self.pods: dict[str, NodePod] | None = None

    async def follow_node(self) -> None:
        """Keep ``node`` up to date until cancelled."""
        watch = self._make_watch(NODES.path(), f"metadata.name={self._name}", _keep_object)
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                wrong = ""
                if isinstance(event, Listed):
                    self.node = event.items[0] if event.items else None
                    if self.node is None:
                        wrong = f"node {self._name}: the cluster has no node of this name"
                elif event.kind == DELETED:
                    self.node = None
                else:
                    self.update_node(event.item)
                self._fail(wrong, NODES.path())
                self.news.set()

    async def follow_pods(self) -> None:
        """Keep ``pods``, and their specifications on the node, up to date until cancelled."""
        watch = self._make_watch(
            PODS.path(), f"spec.nodeName={self._name}", self._try_read_pod, self._specs.mark_stale
        )
        async with aclosing(aiter(watch)) as events:
            async for event in events:
                try:
                    await self._apply_pod_event(event)
                    self._fail("", PODS.path())
                except (CgpuError, OSError) as error:
                    self._specs.mark_stale()
                    self._fail(
                        f"what pods ask for cannot be left on the node: {error}", PODS.path()
                    )
                self.news.set()

    async def _apply_pod_event(
        self, event: Listed[NodePod | None] | Changed[NodePod | None]
    ) -> None:
        if isinstance(event, Listed):
            self.pods = {pod.uid: pod for pod in event.items if pod}
            await self._specs.replace_all(self.pods.values())
        elif event.item and self.pods is not None:
            if event.kind == DELETED:
                self.pods.pop(event.item.uid, None)
                self._specs.remove(event.item.uid)
            else:
                self.pods[event.item.uid] = event.item
                self._specs.update(event.item)

    def _try_read_pod(self, item: Json) -> NodePod | None:
        try:
            return read_node_pod(item)
        except ObjectError as error:
            self._report("object_not_read", {"kind": "pods", "error": error})
            return None

    async def mark_specs_current(self) -> None:
        """Mark the pods' specifications on the node as complete, if they are."""
        await self._specs.mark_current()

    async def patch_node(self, node: Json, patch: Json, part: str = "") -> Json:
        """Patch the node's object, and return it as stored.

        Raises:
            ConflictError: it has changed since the state ``node``.
            ApiError: the API server refuses the patch, or does not answer.
        """
        about = {**get_member(patch, "metadata", dict), "resourceVersion": version_of(node)}
        path = NODES.path(self._name, part=part)
        written = await self._client.patch(path, {**patch, "metadata": about}, MERGE)
        self.update_node(written)
        return written

    def update_node(self, node: Json) -> None:
        """Store ``node`` unless a newer state is known: the watch may lag behind a write."""
        new, last = version_of(node), version_of(self.node or {})
        if not (new.isdecimal() and last.isdecimal() and int(new) < int(last)):
            self.node = node

    def _make_watch(
        self,
        path: str,
        field: str,
        read: Callable[[Json], Any],
        failed: Callable[[], None] = lambda: None,
    ) -> Watch[Any]:
        def report_error(error: Exception) -> None:
            failed()
            self._fail(str(error), path)

        return Watch(
            self._client,
            path,
            read,
            {"fieldSelector": field},
            Pace(length=300.0),
            report_error,
        )


def _keep_object(item: Json) -> Json:
    return item
