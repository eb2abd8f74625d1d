"""The pod of a container, by the annotations that containerd or CRI-O give the container.

The engines set these after the pod's own annotations, so a user cannot choose them. CRI-O also
passes on the pod's own annotations; containerd does if it is configured so. A user chooses those:
this module checks whether they are for this pod, container and node.
"""

from __future__ import annotations

from cgpu_env.errors import CgpuError, printable
from cgpu_env.record import NamedTuple
from cgpu_env.values import MAX_GIB, parse_integer
from cgpu_node import allocation_annotation, jsontext
from cgpu_node.facts.engines import CRIO_KEYS, ENGINES
from cgpu_node.podspecs import read_spec, wait_for_spec
from cgpu_node.settings.kubernetes import TOPOLOGY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cgpu_node.allocation_annotation import AllocationAnnotation
    from cgpu_node.shares.record import PodContainer

_MANAGER, _PODMAN = "io.container.manager", "libpod"  # whose pods are not Kubernetes'
_SANDBOX = "sandbox"
# Annotations that published tools read, of two generations: an amount by the index of the
# container, and then by the index of the GPU.
UNITS, CORES = (
    "scheduler.framework.gpushare.allocation",
    "gpushare.alibabacloud.com/core-percentage",
)
_MEMORY, _CORES = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
_WHOLE_GPU = "aliyun.com/gpu"
MEM_IDX, MEM_POD = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD"


class ContainerPod(NamedTuple):
    """A container's pod.

    Attributes:
        uid: its UID; empty: the engine does not give it.
        namespace: its namespace.
        name: its name there.
        container: the name of this container in the pod.
        is_sandbox: whether this container only holds the pod's namespaces.
        annotations: those of the pod that the engine passes on, and the engine's own.
    """

    uid: str
    namespace: str
    name: str
    container: str
    is_sandbox: bool
    annotations: Mapping[str, str]

    @property
    def identity(self) -> PodContainer:
        """Return pod and container in the form that a record has."""
        from cgpu_node.shares.record import PodContainer

        return PodContainer(self.uid, self.namespace, self.name, self.container)


def pod_of(config: dict[str, Any]) -> ContainerPod | None:
    """Return the pod of a container; None if Kubernetes did not make it.

    Raises:
        CgpuError: an annotation is not a string.
    """
    annotations = config.get("annotations") or {}
    engines = [e.pod_keys for e in ENGINES if e.pod_keys and e.pod_keys[0] in annotations]
    if not engines or (annotations.get(_MANAGER) == _PODMAN and engines == [CRIO_KEYS]):
        return None
    if len(engines) > 1:  # CRI-O passes on what a user writes, and containerd can be configured to
        given = " and ".join(keys[0] for keys in engines)
        raise CgpuError(f"annotations {given}: expected those of one engine")
    for name, value in annotations.items():
        if not isinstance(value, str):
            raise CgpuError(f"annotations.{printable(name)}: expected a string")
    kind, *names = engines[0]
    uid, namespace, name, container = (annotations.get(each, "") for each in names)
    return ContainerPod(uid, namespace, name, container, annotations[kind] == _SANDBOX, annotations)


def find_allocation(pod: ContainerPod, node: str) -> AllocationAnnotation | None:
    """Return what the pod was given on this node; None if it was given nothing.

    Raises:
        CgpuError: its annotation is not for this pod on this node; the sentence names the field.
    """
    text = pod.annotations.get(allocation_annotation.ANNOTATION)
    if text is None:
        return None
    found = allocation_annotation.parse_annotation(text)
    if not pod.uid or not pod.container:
        raise _make_error(
            "the engine does not tell whose container this is: containerd 1.6 and later do"
        )
    if found.pod != pod.uid:
        raise _make_error(f"pod={found.pod}: expected {printable(pod.uid)}, the UID of this pod")
    if found.node != node:
        raise _make_error(f"node={found.node}: expected {printable(node)}, this node")
    return found


def refuse_unallocated(
    pod: ContainerPod, found: AllocationAnnotation | None, state_dir: str
) -> None:
    """Refuse a container that asks for a part of a GPU and has no allocation.

    An agent's file about the pod is read, but not waited for: without an allocation the container
    gets no GPU anyway.

    Args:
        pod: the pod.
        found: its allocation, which does not name the container; None: it has none.
        state_dir: the state directory.

    Raises:
        CgpuError: the container asks for a part of a GPU.
    """
    spec = read_spec(state_dir, pod.uid)
    if spec is None or pod.container not in spec.containers:
        return
    limit = spec.containers[pod.container]
    asked = f"{_WHOLE_GPU}={limit.gpu}" if limit.gpu else f"{_MEMORY}={limit.mem}"
    if found is not None:
        raise _make_error(f"containers: {pod.container} is missing, whose limit is {asked}")
    raise CgpuError(
        f"container {pod.container} has the limit {asked}, and came without its pod's annotation"
        f" {allocation_annotation.ANNOTATION}: expected a schedulerName whose scheduler asks"
        " cgpu's extender, and a runtime to which the engine passes that annotation, such as"
        " runtimeClassName=cgpu"
    )


def check_spec(
    pod: ContainerPod,
    units: Mapping[str, Mapping[str, int]],
    found: AllocationAnnotation,
    mode: str,
    state: str,
) -> None:
    """Refuse an allocation that gives more than the pod's own specification asks for.

    If no agent is up to date, the specification is checked only if an agent has left it.

    Args:
        pod: the pod.
        units: the allocation's memory in whole units, by container and UUID.
        found: the allocation.
        mode: the node's mode.
        state: the state directory.

    Raises:
        CgpuError: it gives more; the sentence names the container.
    """
    asked = _WHOLE_GPU if mode == TOPOLOGY else _MEMORY
    spec, current = wait_for_spec(state, pod.uid)
    if spec is None:
        if current:
            raise _make_error(
                f"pod={pod.uid}: expected the UID of a pod that asks for {asked}; the agent of"
                " this node knows none of this UID"
            )
        return
    for name, grants in found.containers.items():
        limit = spec.containers.get(name)
        if limit is None:
            raise _make_error(f"containers.{name}: expected a container with {asked} in its limits")
        if mode == TOPOLOGY:
            _check_limit(f"containers.{name}", _WHOLE_GPU, len(grants), limit.gpu)
            continue
        _check_limit(f"containers.{name}", _MEMORY, sum(units[name].values()), limit.mem)
        _check_limit(
            f"containers.{name}", _CORES, sum(grant.core for grant in grants.values()), limit.core
        )


def _check_limit(field: str, resource: str, given: int, limit: int) -> None:
    if given > limit:
        raise _make_error(
            f"{field}: {resource}={given}: expected at most {limit}, the pod's own limit"
        )


def check_generations(
    pod: ContainerPod, found: AllocationAnnotation, units: Mapping[str, Mapping[str, int]]
) -> None:
    """Refuse an allocation if other tools read another share from the pod's annotations.

    Those annotations leave init containers out, or count only the largest. So their number for a
    GPU is between the smallest part and the sum of all parts. Indices of GPUs change, so only the
    number of GPUs is compared.

    Args:
        pod: the pod.
        found: its allocation.
        units: the allocation's memory in whole units, by container and UUID.

    Raises:
        CgpuError: one sentence that names the annotation.
    """
    gpus = {uuid for grants in found.containers.values() for uuid in grants}
    cores = {
        name: {uuid: grant.core for uuid, grant in grants.items()}
        for name, grants in found.containers.items()
    }
    for name, parts in ((UNITS, units), (CORES, cores)):
        if name in pod.annotations:
            by_gpu = _sum_by_gpu(name, pod.annotations[name])
            _check_gpu_count(name, len(by_gpu), len(gpus))
            for each in by_gpu.values():
                _check_range(name, each, parts, 1)
    if MEM_IDX in pod.annotations:
        _check_gpu_count(MEM_IDX, len(set(pod.annotations[MEM_IDX].split(","))), len(gpus))
    if MEM_POD in pod.annotations:
        whole = pod.annotations[MEM_POD]
        number = parse_integer(whole, MAX_GIB)
        if number is None:
            raise CgpuError(f"{MEM_POD}={printable(whole)}: expected a whole number")
        _check_range(MEM_POD, number, units, len(gpus))


def _sum_by_gpu(name: str, text: str) -> dict[str, int]:
    """Return the sum over all containers for each GPU's index, from ``{"0": {"1": 3}}``."""
    total: dict[str, int] = {}
    try:
        for parts in jsontext.loads(text).values():
            for index, part in parts.items():
                total[index] = total.get(index, 0) + part
    except (ValueError, AttributeError, TypeError):
        example = '{"0":{"1":3}}'
        raise CgpuError(f"{name}={printable(text)}: expected an object such as {example}") from None
    return total


def _check_gpu_count(name: str, gpus: int, expected: int) -> None:
    if gpus != expected:
        raise CgpuError(
            f"{name}: {gpus} GPUs, where {allocation_annotation.ANNOTATION} gives {expected}"
        )


def _check_range(name: str, given: int, parts: Mapping[str, Mapping[str, int]], times: int) -> None:
    """Refuse a number below the smallest part of a GPU, or above ``times`` the sum of all parts."""
    per_gpu: dict[str, list[int]] = {}
    for grants in parts.values():
        for uuid, part in grants.items():
            per_gpu.setdefault(uuid, []).append(part)
    least = min(min(each) for each in per_gpu.values()) * times
    most = max(sum(each) for each in per_gpu.values()) * times
    if not least <= given <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        raise CgpuError(
            f"{name}={given}: expected {allowed}, which {allocation_annotation.ANNOTATION} gives"
        )


def _make_error(problem: str) -> CgpuError:
    return CgpuError(f"{allocation_annotation.ANNOTATION}: {problem}")
