"""Plans the steps by which an agent brings its node into the desired state; pure.

The order of the steps matters. For example, the mode must be in force before anything is offered.
Design: docs/design/kubernetes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cgpu_env.devices import Gpu, format_lost_gpu
from cgpu_k8s.names import SCHEDULE
from cgpu_k8s.node import node_resources
from cgpu_k8s.node.events import WARNING
from cgpu_k8s.node.node_resources import NOTHING, NodeResources, read_known_gpus
from cgpu_k8s.objects.fields import get_member, get_strings
from cgpu_k8s.objects.nodes import LEFT_ALONE, UNSERVED, why_not_shared
from cgpu_node.settings.kubernetes import Kubernetes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cgpu_k8s.node.audit import ContainerMismatch
    from cgpu_k8s.node.gpu_observer import GpuState
    from cgpu_k8s.node.non_pod_usage import NonPodUsage
    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.gpus import OfferedGpu

HELD, NOT_OFFERED, LOST, BACK, WRONG = (
    "GpuModeHeld",
    "GpusNotOffered",
    "GpuLost",
    "GpuBack",
    "GpuShareWrong",
)


class SendEvent(NamedTuple):
    """Send an event about the node."""

    reason: str
    message: str
    kind: str = WARNING
    about: str = ""


class EndEvents(NamedTuple):
    """Forget the events sent for a reason, except those about these subjects."""

    reason: str
    kept: frozenset[str] = frozenset()


class PublishDevices(NamedTuple):
    """Publish the devices of ``aliyun.com/gpu-count``: whether each GPU is healthy, by UUID."""

    healthy: Mapping[str, bool]


class PublishUnits(NamedTuple):
    """Publish the resources that are plugins with a device for each unit: how many of each."""

    resources: Mapping[str, int]


class PutSetting(NamedTuple):
    """Write the setting that is in force for new containers; None removes it."""

    setting: Kubernetes | None


class PatchNode(NamedTuple):
    """Apply a merge patch to the node's object, or to a subresource of it such as ``status``."""

    patch: dict[str, Any]
    part: str = ""


class WriteLog(NamedTuple):
    """Write a line of the log."""

    event: str
    fields: dict[str, object]


Step = SendEvent | EndEvents | PublishDevices | PublishUnits | PutSetting | PatchNode | WriteLog


class HealthEvent(NamedTuple):
    """The event that a GPU stopped answering, or answers again."""

    uuid: str
    healthy: bool
    message: str


class NodePlan(NamedTuple):
    """The steps to take, and the events about GPUs to send after them; None if none are due yet."""

    steps: tuple[Step, ...]
    health: tuple[HealthEvent, ...] | None = None


class NodeState(NamedTuple):
    """The state of the node from which a plan starts.

    Attributes:
        node: the node's object.
        sharing: the names of the pods that share GPUs, sorted.
        named: UUIDs of the GPUs in the pods' annotations.
        gpus: the last observation of the GPUs.
        held: the memory and weights that others than pods hold, by the GPU's UUID.
        has_setting: whether ``kubernetes.json`` exists. If so, the agent wrote the resources.
        has_units: whether plugins publish memory and time, instead of the node's status.
        is_registered: whether a kubelet knows the plugin of ``aliyun.com/gpu-count``.
    """

    node: Json
    sharing: tuple[str, ...]
    named: frozenset[str]
    gpus: GpuState
    held: Mapping[str, NonPodUsage]
    has_setting: bool
    has_units: bool
    is_registered: bool


def read_schedule_label(node: Json) -> str:
    """Return the value of the node's label ``ack.node.gpu.schedule``, or ""."""
    return get_strings(get_member(node, "metadata", dict), "labels").get(SCHEDULE, "")


def plan_mismatch_events(findings: Iterable[ContainerMismatch]) -> NodePlan:
    """Plan an event about each container that does not have what its pod asks for."""
    sentences = frozenset(each.sentence for each in findings)
    sent = (SendEvent(WRONG, each, about=each) for each in sorted(sentences))
    return NodePlan((EndEvents(WRONG, sentences), *sent))


def plan_withdrawal(state: NodeState, reason: str) -> NodePlan:
    """Plan to offer nothing, for ``reason``.

    While pods share the GPUs, these stay published, but the scheduler places no more pods on them.
    """
    node, label = state.node, read_schedule_label(state.node)
    steps: list[Step] = []
    if state.sharing:
        patch = {} if why_not_shared(node) else node_resources.withheld_patch(node, reason)
        steps += [PatchNode(patch)] if patch else []
        reason = (
            f"{reason}; what the node offered stays until {_describe_pods(state.sharing)} ended"
        )
    else:
        steps += [PublishDevices({}), *_plan_resources(state, NOTHING, ours=state.has_setting)]
        if why_not_shared(node):  # new containers are like any others
            steps.append(PutSetting(None))
    is_expected = not state.sharing and label in LEFT_ALONE and label not in UNSERVED
    return NodePlan(
        (*steps, EndEvents(NOT_OFFERED) if is_expected else SendEvent(NOT_OFFERED, reason))
    )


def plan_offer(
    state: NodeState, before: Kubernetes | None, wanted: Kubernetes, unsent: Mapping[str, bool]
) -> NodePlan:
    """Plan to offer the GPUs. The mode is in force before anything is offered.

    Args:
        state: the state of a node that has no reason to withhold its GPUs.
        before: the setting in force; None if there is none.
        wanted: the setting that follows from the node's label.
        unsent: whether GPUs were healthy before events that the API server refused, by UUID.
    """
    mode, gpus = wanted.mode, state.gpus
    steps: list[Step] = []
    if before is None or before.mode == mode or not state.sharing:
        steps.append(EndEvents(HELD))
    else:
        steps.append(SendEvent(HELD, _describe_held_mode(mode, before.mode, state.sharing)))
        wanted = wanted._replace(mode=before.mode)
    known = read_known_gpus(state.node)
    kept = state.named.union(gpus.names)
    facts = node_resources.compute_facts(wanted.mode, gpus.seen or (), known, kept, state.held)
    strangers = _find_strangers(gpus, facts)
    steps.append(EndEvents(LOST, frozenset({"", *strangers})))
    steps += [SendEvent(LOST, f"not offered to pods: {e}", about=e) for e in sorted(strangers)]
    if not facts:
        why = gpus.silence or "the driver has no GPU with 1 GiB or more that answers"
        return NodePlan((*steps, *plan_withdrawal(state, why).steps))
    steps += [EndEvents(NOT_OFFERED), PublishDevices({gpu.uuid: gpu.healthy for gpu in facts})]
    if before != wanted:
        steps += [PutSetting(wanted), WriteLog("mode_in_force", {"mode": wanted.mode})]
    if not state.is_registered:
        return NodePlan(tuple(steps))
    resources = node_resources.compute_node_resources(
        wanted.mode, facts, gpus.names, gpus.seen or ()
    )
    steps += _plan_resources(state, resources, ours=True)
    return NodePlan(tuple(steps), plan_health_events(known, facts, gpus, unsent))


def _plan_resources(state: NodeState, wanted: NodeResources, *, ours: bool) -> Iterator[Step]:
    """Plan to write what differs: resources first, since pods are placed by the annotation."""
    status: dict[str, Any] = {}
    if state.has_units:
        yield PublishUnits(wanted.resources)
    else:
        status = node_resources.status_patch(state.node, wanted, ours=ours)
    if status:
        yield PatchNode(status, "status")
    about = node_resources.metadata_patch(state.node, wanted)
    if about:
        yield PatchNode(about)
    if status or about:
        yield WriteLog("written", {"resources": dict(wanted.resources)})


def _find_strangers(gpus: GpuState, facts: Collection[OfferedGpu]) -> set[str]:
    """Return sentences about lost GPUs that are not among ``facts``, as they were never offered."""
    known = {name for gpu in facts for name in (gpu.uuid, gpu.index) if not gpu.healthy}
    return {
        format_lost_gpu(Gpu(gpu.index, gpu.uuid, 0, gpu.lost))
        for gpu in gpus.lost
        if (gpu.uuid or gpu.index) not in known
    }


def plan_health_events(
    before: Iterable[OfferedGpu],
    facts: Iterable[OfferedGpu],
    gpus: GpuState,
    unsent: Mapping[str, bool],
) -> tuple[HealthEvent, ...]:
    """Return the events about GPUs whose health has changed.

    Args:
        before: the GPUs as the node's annotation has them.
        facts: the GPUs as they are now.
        gpus: the last observation, with the reasons.
        unsent: whether GPUs were healthy before events that the API server refused, by UUID.
    """
    was = {**{gpu.uuid: gpu.healthy for gpu in before}, **unsent}
    causes = {gpu.uuid or gpu.index: gpu.lost for gpu in gpus.lost}
    found = []
    for gpu in facts:
        name = f"GPU {gpu.index} ({gpu.uuid})"
        if not gpu.healthy and was.get(gpu.uuid):
            cause = gpus.silence or causes.get(gpu.uuid) or causes.get(gpu.index)
            why = f": {cause}" if cause else ""
            sentence = f"{name} does not answer, and gets no more pods until it does{why}"
            found.append(HealthEvent(gpu.uuid, gpu.healthy, sentence))
        elif gpu.healthy and was.get(gpu.uuid) is False:
            found.append(HealthEvent(gpu.uuid, gpu.healthy, f"{name} answers again"))
    return tuple(found)


def _describe_held_mode(label: str, mode: str, sharing: tuple[str, ...]) -> str:
    return (
        f"label {SCHEDULE}={label} is held back, and {mode} stays in force, until"
        f" {_describe_pods(sharing)} ended"
    )


def _describe_pods(names: tuple[str, ...]) -> str:
    """Return the start of a clause: ``pod a/b has`` or ``2 pods (a/b and others) have``."""
    if len(names) == 1:
        return f"pod {names[0]} has"
    return f"{len(names)} pods ({names[0]} and others) have"
