"""The controller of a node: it observes the node, plans changes, and applies the plan.

It reconciles the node's object with the GPUs, and the mode in force with the node's label.
Design: docs/design/kubernetes.md.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.errors import ConflictError, ForbiddenError
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.node import plan
from cgpu_k8s.node.events import NORMAL, WARNING, Events
from cgpu_k8s.node.informers import NodeInformer
from cgpu_k8s.objects.nodes import LEFT_ALONE, why_not_shared
from cgpu_node.settings import kubernetes
from cgpu_node.settings.kubernetes import Kubernetes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.kubelet.device_plugin import DevicePlugin, UnitPlugins
    from cgpu_k8s.node.auditor import ShareAuditor
    from cgpu_k8s.node.gpu_observer import GpuObserver
    from cgpu_k8s.node.plan import HealthEvent, NodePlan, NodeState, Step
    from cgpu_k8s.node.pods import NodePod

DEVICES = "--resources devices"
LOOK = 5.0  # seconds between two observations of the GPUs


class Place(NamedTuple):
    """This node.

    Attributes:
        name: its name in the cluster.
        setting: the path of ``kubernetes.json``.
        state: the path of the state directory.
        pass_through: namespaces whose pods are treated like any other container; None keeps those
            in ``kubernetes.json``.
    """

    name: str
    setting: Path
    state: str
    pass_through: tuple[str, ...] | None = None


class Plugins(NamedTuple):
    """The kubelet's device plugins for the node's GPUs.

    Attributes:
        gpu_count: the plugin of ``aliyun.com/gpu-count``.
        units: the plugins of the other resources; None if the agent writes these resources into the
            node's status.
        find_conflict: returns which other plugin offers one of these GPUs, or "".
    """

    gpu_count: DevicePlugin
    units: UnitPlugins | None
    find_conflict: Callable[[Collection[str]], str]


class Agent:
    """The agent of one node.

    Args:
        place: the node.
        client: a client of the API server.
        gpus: observes the GPUs.
        shares: audits the shares of the GPUs.
        plugins: the kubelet's plugins.
        report: writes a line of the log.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (the parts that it connects)
        self,
        place: Place,
        client: Client,
        gpus: GpuObserver,
        shares: ShareAuditor,
        plugins: Plugins,
        report: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._place, self._gpus, self._shares, self._plugins = place, gpus, shares, plugins
        self._report, self._failures = report, dict[str, str]()
        self._events = Events(client, place.name, self._set_failure)
        self._cluster = NodeInformer(client, place.name, place.state, report, self._set_failure)
        # By UUID: whether a GPU was healthy before an event that the API server refused.
        self._unsent: dict[str, bool] = {}

    async def run(self) -> None:
        """Run the controller until cancelled."""
        await run_together(
            self._cluster.follow_node(),
            self._cluster.follow_pods(),
            self._plugins.gpu_count.run(),
            *([self._plugins.units.run()] if self._plugins.units else []),
            self._await_registration(),
            self._run_loop(),
        )

    async def _run_loop(self) -> None:
        looked = -LOOK
        while True:
            if time.monotonic() - looked >= LOOK or (
                self._gpus.state.seen is None and self._is_sharing()
            ):
                looked = time.monotonic()
                await self._observe_node()
            self._cluster.news.clear()
            pause = 0.0
            try:
                await self._reconcile()
                self._set_failure("", "node")
            except ConflictError:
                pause = 1.0  # the watch will bring the newer state
            except (CgpuError, OSError) as error:
                pause = getattr(error, "retry_after", None) or 1.0
                self._set_failure(str(error), "node")
            await asyncio.sleep(pause)
            left = looked + LOOK - time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._cluster.news.wait(), max(left, 0.0))

    def _is_sharing(self) -> bool:
        """Return whether the node's label lets cgpu share its GPUs."""
        node = self._cluster.node
        return node is not None and plan.read_schedule_label(node) not in LEFT_ALONE

    async def _observe_node(self) -> None:
        """Observe which GPUs answer and whether pods reach them through cgpu; audit the shares."""
        if self._is_sharing():
            await self._gpus.observe(self._cluster.node or {})
        else:
            self._gpus.release()
        if self._cluster.pods is None:
            return
        try:
            await self._cluster.mark_specs_current()
            await self._shares.audit(self._cluster.node or {}, self._cluster.pods)
            self._set_failure("", "shares")
        except (CgpuError, OSError) as error:
            self._set_failure(f"who has shares cannot be read: {error}", "shares")

    async def _reconcile(self) -> None:
        """Plan from the last observations, and apply the plan."""
        node, pods, gpus = self._cluster.node, self._cluster.pods, self._gpus.state
        if node is None or pods is None:
            return
        await self._apply_plan(node, plan.plan_mismatch_events(self._shares.findings))
        why = why_not_shared(node)
        if not why and gpus.seen is None:
            return
        why = why or gpus.barred or self._plugins.find_conflict(gpus.names)
        state = self._make_state(node, pods)
        if why:
            await self._apply_plan(node, plan.plan_withdrawal(state, why))
            return
        before = kubernetes.read_setting(str(self._place.setting))
        kept = before.pass_through if before else ()
        passing = kept if self._place.pass_through is None else self._place.pass_through
        wanted = Kubernetes(self._place.name, plan.read_schedule_label(node), passing)
        await self._apply_plan(node, plan.plan_offer(state, before, wanted, self._unsent))

    def _make_state(self, node: Json, pods: dict[str, NodePod]) -> NodeState:
        return plan.NodeState(
            node,
            tuple(sorted(pod.name for pod in pods.values() if pod.shares)),
            frozenset[str]().union(*(pod.gpus for pod in pods.values())),
            self._gpus.state,
            self._shares.held,
            has_setting=self._place.setting.exists(),
            has_units=self._plugins.units is not None,
            is_registered=self._plugins.gpu_count.holds.is_set(),
        )

    async def _apply_plan(self, node: Json, steps: NodePlan) -> None:
        """Apply the steps in order, then send the events about GPUs.

        Raises:
            CgpuError, OSError: a step failed; the steps after it were not applied.
        """
        for step in steps.steps:
            node = await self._apply_step(node, step)
        if steps.health is not None:
            await self._send_health_events(steps.health)

    async def _apply_step(self, node: Json, step: Step) -> Json:
        """Apply a step, and return the node's object as it is then."""
        match step:
            case plan.SendEvent():
                await self._events.send(*step)
            case plan.EndEvents(reason, kept):
                self._events.forget_except(reason, kept)
            case plan.PublishDevices(healthy):
                await self._plugins.gpu_count.publish(healthy)
            case plan.PublishUnits(resources):
                if self._plugins.units:
                    await self._plugins.units.publish(resources)
            case plan.PutSetting(setting) if setting:
                kubernetes.write_setting(str(self._place.setting), setting)
            case plan.PutSetting():
                self._place.setting.unlink(missing_ok=True)
            case plan.WriteLog(event, fields):
                self._report(event, fields)
            case plan.PatchNode(patch, part):
                return await self._patch_node(node, patch, part)
        return node

    async def _patch_node(self, node: Json, patch: Json, part: str) -> Json:
        try:
            return await self._cluster.patch_node(node, patch, part)
        except ForbiddenError as error:
            if not part:
                raise
            raise CgpuError(f"{error}: where nobody may, start with {DEVICES}") from None

    async def _send_health_events(self, events: tuple[HealthEvent, ...]) -> None:
        self._unsent = {}
        for each in events:
            reason, other = (plan.BACK, plan.LOST) if each.healthy else (plan.LOST, plan.BACK)
            self._events.forget(other)
            kind = NORMAL if each.healthy else WARNING
            if not await self._events.send(reason, each.message, kind):
                self._unsent[each.uuid] = not each.healthy

    async def _await_registration(self) -> None:
        await self._plugins.gpu_count.holds.wait()
        self._cluster.news.set()

    def _set_failure(self, problem: str, about: str) -> None:
        """Report a problem with a subject once while it lasts; "" means that there is none."""
        if problem and problem != self._failures.get(about):
            self._report("failed", {"error": problem})
        self._failures[about] = problem
