"""Keeps a node's object as its GPUs are, and the mode in force as the node's label says.

Design: docs/design/kubernetes.md.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.devices import Gpu, format_lost_gpu
from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE
from cgpu_k8s.apiserver.errors import ConflictError, ForbiddenError
from cgpu_k8s.apiserver.resource_version import version_of
from cgpu_k8s.apiserver.resources import NODES
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.names import SCHEDULE
from cgpu_k8s.node import node_resources
from cgpu_k8s.node.audit import ContainerMismatch, audit_containers
from cgpu_k8s.node.events import NORMAL, Events
from cgpu_k8s.node.informers import NodeInformer
from cgpu_k8s.node.non_pod_usage import NonPodUsage, sum_non_pod_usage
from cgpu_k8s.node.pod_specs import Specs
from cgpu_k8s.objects.fields import get_member, get_strings
from cgpu_k8s.objects.nodes import LEFT_ALONE, UNSERVED, why_not_shared
from cgpu_node.settings import kubernetes
from cgpu_node.settings.kubernetes import SHARE, Kubernetes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cgpu_k8s.apiserver.client import Client, Json
    from cgpu_k8s.kubelet.container_runtime import ContainerRuntime
    from cgpu_k8s.kubelet.device_plugin import DevicePlugin, UnitPlugins
    from cgpu_k8s.node.driver import Driver
    from cgpu_k8s.node.node_resources import DriverGpu, NodeResources
    from cgpu_k8s.node.pods import NodePod
    from cgpu_k8s.node.shares import Shares
    from cgpu_k8s.objects.gpus import Fact

DEVICES = "--resources devices"
LOOK = 5.0  # seconds between two looks at the GPUs
HELD, NOT_OFFERED, LOST, BACK, WRONG = (
    "GpuModeHeld",
    "GpusNotOffered",
    "GpuLost",
    "GpuBack",
    "GpuShareWrong",
)


class Place(NamedTuple):
    """This node.

    Attributes:
        name: in the cluster.
        setting: path of ``kubernetes.json``.
        shares: who has which of its GPUs.
        pass_through: namespaces whose pods are like any other container; None: as they are.
    """

    name: str
    setting: Path
    shares: Shares
    pass_through: tuple[str, ...] | None = None


class Agent:
    """The agent of one node.

    Args:
        place: the node.
        client: of the API server.
        driver: of the node's GPUs.
        engine: that makes the node's containers.
        anchor: the plugin of ``aliyun.com/gpu-count``.
        units: publishes the other resources; None: they are written into the node's status.
        report: writes a line of the log.
        others: which other plugin offers one of these GPUs; "": none.
        look: seconds between two looks at the GPUs.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what it stands between)
        self,
        place: Place,
        client: Client,
        driver: Driver,
        engine: ContainerRuntime,
        anchor: DevicePlugin,
        units: UnitPlugins | None,
        report: Callable[[str, dict[str, object]], None],
        others: Callable[[Collection[str]], str],
        look: float = LOOK,
    ) -> None:
        self._place, self._client, self._driver, self._anchor = place, client, driver, anchor
        self._engine, self._barred, self._units = engine, "", units
        self._report, self._others, self._period = report, others, look
        self._events = Events(client, place.name, self._set_failure)
        self._specs, self._news = Specs(place.shares.state), asyncio.Event()
        self._cluster = NodeInformer(
            client, place.name, self._specs, self._news, report, self._set_failure
        )
        self._seen: tuple[DriverGpu, ...] | None = None
        self._lost: tuple[DriverGpu, ...] = ()
        self._names: dict[str, str] = {}  # of all GPUs that answered since we started
        self._unsent: dict[str, bool] = {}  # what GPUs were before an event that was refused
        self._silence = ""  # why no GPU answers
        self._held: dict[str, NonPodUsage] = {}
        self._before: frozenset[str] = frozenset()  # who had shares at the look before
        self._findings: tuple[ContainerMismatch, ...] = ()
        self._suspected: frozenset[ContainerMismatch] = frozenset()
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        await run_together(
            self._cluster.follow_node(),
            self._cluster.follow_pods(),
            self._anchor.run(),
            *([self._units.run()] if self._units else []),
            self._await_anchor(),
            self._run_loop(),
        )

    async def _run_loop(self) -> None:
        looked = -self._period
        while True:
            if time.monotonic() - looked >= self._period or (
                self._seen is None and self._is_sharing()
            ):
                looked = time.monotonic()
                await self._observe_node()
            self._news.clear()
            pause = 0.0
            try:
                await self._reconcile()
                self._set_failure("", "node")
            except ConflictError:
                pause = 1.0  # the watch shows what is newer
            except (CgpuError, OSError) as error:
                pause = getattr(error, "retry_after", None) or 1.0
                self._set_failure(str(error), "node")
            await asyncio.sleep(pause)
            left = looked + self._period - time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(left, 0.0))

    def _is_sharing(self) -> bool:
        """Return whether the node's label lets cgpu share its GPUs."""
        return (
            self._cluster.node is not None
            and _read_schedule_label(self._cluster.node) not in LEFT_ALONE
        )

    async def _observe_node(self) -> None:
        """See which GPUs answer, how pods reach them, and what others than pods hold of them."""
        if self._is_sharing():
            self._barred = await self._engine.find_problem(self._cluster.node or {})
            await self._observe_gpus()
        else:
            self._driver.close()  # others may want to reset GPUs, or divide them
            self._seen = None
        if self._cluster.pods is None:
            return
        try:
            await self._specs.mark_current()
            await self._observe_shares(self._cluster.pods)
            self._set_failure("", "shares")
        except (CgpuError, OSError) as error:
            self._set_failure(f"who has shares cannot be read: {error}", "shares")

    async def _observe_gpus(self) -> None:
        try:
            found, silence = await self._driver.list_gpus(), ""
        except CgpuError as error:
            found, silence = (), str(error)
        if found is None:
            return  # what was seen last holds until the driver has begun
        self._seen, self._silence = tuple(gpu for gpu in found if not gpu.lost), silence
        self._lost = tuple(gpu for gpu in found if gpu.lost)
        self._names |= {gpu.uuid: gpu.name for gpu in self._seen}
        if self._lost or self._names.keys() - {gpu.uuid for gpu in self._seen}:
            self._driver.close()  # only a new session of the driver sees a GPU that is back

    async def _observe_shares(self, pods: dict[str, NodePod]) -> None:
        """See what others than pods hold, and whether pods have what they ask for, and no more."""
        living = self._place.shares.list_living()
        booked = {uid for uid, pod in pods.items() if pod.shares}
        self._held = sum_non_pod_usage(living, booked, self._before)
        self._before = frozenset(each.id for each in living)
        setting = kubernetes.read_setting(str(self._place.setting))
        gpus = node_resources.read_known_gpus(self._cluster.node or {})
        if setting is None:
            self._findings = ()
            return
        limited, by_uuid = setting.mode != SHARE, {gpu.uuid: gpu for gpu in gpus}
        found = audit_containers(living, pods, by_uuid, setting.pass_through, limited=limited)
        # What the kubelet reports is a moment old: only what is found twice is reported.
        self._findings = tuple(each for each in found if each.caps or each in self._suspected)
        self._suspected = frozenset(found)
        for each in self._findings:
            if each.caps:
                await asyncio.to_thread(self._place.shares.set_caps, each.container, each.caps)

    async def _reconcile(self) -> None:
        """Make the node's object, and the mode in force, as they have to be."""
        node, pods = self._cluster.node, self._cluster.pods
        if node is None or pods is None:
            return
        await self._send_mismatch_events()
        sharing = sorted(pod.name for pod in pods.values() if pod.shares)
        why = why_not_shared(node)
        if why:
            await self._withdraw_offer(node, why, sharing)
            return
        if self._seen is None:
            return
        if barred := self._barred or self._others(self._names):
            await self._withdraw_offer(node, barred, sharing)
            return
        mode = await self._choose_mode(node, sharing)
        before = node_resources.read_known_gpus(node)
        kept = frozenset(self._names).union(*(pod.gpus for pod in pods.values()))
        gpus = node_resources.compute_facts(mode, self._seen, before, kept, self._held)
        await self._send_unoffered_events(gpus)
        if not gpus:
            why = self._silence or "the driver has no GPU with 1 GiB or more that answers"
            await self._withdraw_offer(node, why, sharing)
            return
        self._events.forget(NOT_OFFERED)
        await self._anchor.publish({gpu.uuid: gpu.healthy for gpu in gpus})
        self._enforce_mode(mode)
        if self._anchor.holds.is_set():
            await self._write_offer(
                node, node_resources.compute_node_resources(mode, gpus, self._names)
            )
            await self._send_health_events(before, gpus)

    async def _choose_mode(self, node: Json, sharing: list[str]) -> str:
        """The mode to have in force: the label's, if no pod runs under another."""
        label = _read_schedule_label(node)
        setting = kubernetes.read_setting(str(self._place.setting))
        if setting is None or setting.mode == label or not sharing:
            self._events.forget(HELD)
            return label
        await self._events.send(
            HELD,
            f"label {SCHEDULE}={label} is held back, and {setting.mode} stays in force, until"
            f" {_describe_pods(sharing)} ended",
        )
        return setting.mode

    def _enforce_mode(self, mode: str) -> None:
        """Put the mode into force for the next container, before anything is offered."""
        path, place = str(self._place.setting), self._place
        before = kubernetes.read_setting(path)
        kept = before.pass_through if before else ()
        passing = kept if place.pass_through is None else place.pass_through
        wanted = Kubernetes(place.name, mode, passing)
        if before != wanted:
            kubernetes.write_setting(path, wanted)
            self._report("mode_in_force", {"mode": mode})

    async def _withdraw_offer(self, node: Json, why: str, sharing: list[str]) -> None:
        """Offer nothing. What pods run on stays; nobody places others by it."""
        if sharing:
            about = {} if why_not_shared(node) else node_resources.withheld_patch(node, why)
            if about:
                await self._patch_node(node, about)
            why = f"{why}; what the node offered stays until {_describe_pods(sharing)} ended"
        else:
            await self._anchor.publish({})
            await self._write_offer(node, node_resources.NOTHING)
            if why_not_shared(node):  # containers are like any others from now on
                self._place.setting.unlink(missing_ok=True)
        if (
            sharing
            or _read_schedule_label(node) not in LEFT_ALONE
            or _read_schedule_label(node) in UNSERVED
        ):
            await self._events.send(NOT_OFFERED, why)
        else:
            self._events.forget(NOT_OFFERED)

    async def _write_offer(self, node: Json, wanted: NodeResources) -> None:
        """Write what differs: resources first, because the annotation is what pods are placed by.

        Raises:
            ApiError: the API server does not take it.
        """
        status: dict[str, Any] = {}
        if self._units:
            await self._units.publish(wanted.resources)
        else:
            in_force = self._place.setting.exists()  # since before anything was offered
            status = node_resources.status_patch(node, wanted, ours=in_force)
        if status:
            try:
                node = await self._patch_node(node, status, "status")
            except ForbiddenError as error:
                raise CgpuError(f"{error}: where nobody may, start with {DEVICES}") from None
        about = node_resources.metadata_patch(node, wanted)
        if about:
            await self._patch_node(node, about)
        if status or about:
            self._report("written", {"resources": dict(wanted.resources)})

    async def _patch_node(self, node: Json, patch: Json, part: str = "") -> Json:
        """Change the node's object, unless somebody has since the state that this follows from."""
        about = {**get_member(patch, "metadata", dict), "resourceVersion": version_of(node)}
        path = NODES.path(self._place.name, part=part)
        written = await self._client.patch(path, {**patch, "metadata": about}, MERGE)
        self._cluster.update_node(written)
        return written

    async def _send_health_events(self, before: tuple[Any, ...], gpus: tuple[Any, ...]) -> None:
        was = {gpu.uuid: gpu.healthy for gpu in before} | self._unsent
        self._unsent = {}
        causes = {gpu.uuid or gpu.index: gpu.lost for gpu in self._lost}
        for gpu in gpus:
            name, sent = f"GPU {gpu.index} ({gpu.uuid})", True
            if not gpu.healthy and was.get(gpu.uuid):
                cause = self._silence or causes.get(gpu.uuid) or causes.get(gpu.index)
                why = f": {cause}" if cause else ""
                self._events.forget(BACK)
                sent = await self._events.send(
                    LOST, f"{name} does not answer, and gets no more pods until it does{why}"
                )
            elif gpu.healthy and was.get(gpu.uuid) is False:
                self._events.forget(LOST)
                sent = await self._events.send(BACK, f"{name} answers again", NORMAL)
            if not sent:
                self._unsent[gpu.uuid] = not gpu.healthy

    async def _send_unoffered_events(self, gpus: tuple[Fact, ...]) -> None:
        """Say which GPUs are lost that the node never offered, and so cannot take back."""
        known = {name for gpu in gpus for name in (gpu.uuid, gpu.index) if not gpu.healthy}
        strangers = {
            format_lost_gpu(Gpu(gpu.index, gpu.uuid, 0, gpu.lost))
            for gpu in self._lost
            if (gpu.uuid or gpu.index) not in known
        }
        self._events.forget_except(LOST, {"", *strangers})
        for each in sorted(strangers):
            await self._events.send(LOST, f"not offered to pods: {each}", about=each)

    async def _send_mismatch_events(self) -> None:
        sentences = {each.sentence for each in self._findings}
        self._events.forget_except(WRONG, sentences)
        for each in sorted(sentences):
            await self._events.send(WRONG, each, about=each)

    async def _await_anchor(self) -> None:
        await self._anchor.holds.wait()
        self._news.set()

    def _set_failure(self, why: str, about: str) -> None:
        """Report what is wrong about something, once while it lasts; "" if nothing is."""
        if why and why != self._failures.get(about):
            self._report("failed", {"error": why})
        self._failures[about] = why


def _read_schedule_label(node: Json) -> str:
    return get_strings(get_member(node, "metadata", dict), "labels").get(SCHEDULE, "")


def _describe_pods(names: list[str]) -> str:
    """Return subject and verb, such as ``pod a/b has`` or ``2 pods (a/b and others) have``."""
    if len(names) == 1:
        return f"pod {names[0]} has"
    return f"{len(names)} pods ({names[0]} and others) have"
