"""Observes which GPUs of the node answer, and whether pods reach them through cgpu's runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import CgpuError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.kubelet.container_runtime import ContainerRuntime
    from cgpu_k8s.node.driver import Driver
    from cgpu_k8s.node.node_resources import DriverGpu
    from cgpu_k8s.objects.fields import Json


class GpuState(NamedTuple):
    """The last observation of the node's GPUs.

    Attributes:
        seen: the GPUs that answer; None if they were not asked yet, or the driver still starts.
        lost: the GPUs that do not answer.
        names: the product names of all GPUs that ever answered this agent, by UUID.
        silence: the driver's error, or "" if it answered.
        barred: why pods may not pass through cgpu's runtime, or "".
    """

    seen: tuple[DriverGpu, ...] | None = None
    lost: tuple[DriverGpu, ...] = ()
    names: Mapping[str, str] = {}
    silence: str = ""
    barred: str = ""


class GpuObserver:
    """Observes the GPUs.

    Args:
        driver: the driver of the node's GPUs.
        runtime: the node's container engine.

    Attributes:
        state: the last observation.
    """

    def __init__(self, driver: Driver, runtime: ContainerRuntime) -> None:
        self._driver, self._runtime = driver, runtime
        self.state = GpuState()

    async def observe(self, node: Json) -> None:
        """Observe the GPUs and the runtime of a node that shares its GPUs."""
        self.state = self.state._replace(barred=await self._runtime.find_problem(node))
        try:
            found, silence = await self._driver.list_gpus(), ""
        except CgpuError as error:
            found, silence = (), str(error)
        if found is None:
            return  # the last observation holds until the driver has started
        seen = tuple(gpu for gpu in found if not gpu.lost)
        lost = tuple(gpu for gpu in found if gpu.lost)
        names = {**self.state.names, **{gpu.uuid: gpu.name for gpu in seen}}
        self.state = self.state._replace(seen=seen, lost=lost, names=names, silence=silence)
        if lost or names.keys() - {gpu.uuid for gpu in seen}:
            self._driver.close()  # only a new session of the driver sees a GPU that is back

    def release(self) -> None:
        """Release the driver, so that others can reset or partition GPUs."""
        self._driver.close()
        self.state = self.state._replace(seen=None)
