"""The device plugin of ``aliyun.com/gpu-count``, which makes kubelets keep the node's resources.

A kubelet that restarts keeps resources that others wrote into the node's status only if its folder
for device plugins has a checkpoint. So a real plugin publishes one small resource, which no pod
asks for. A starting kubelet empties the folder. The plugin must then create its socket and register
again. It also registers again if the kubelet does not call it: a kubelet first accepts the
registration, then calls the plugin, and forgets a plugin that it cannot reach.

Where nobody may write a node's status, the other resources are plugins too, with a device for each
unit. It does not matter which devices a pod gets, because its decision counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from grpclib.client import Channel
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from cgpu_env.errors import CgpuError, printable
from cgpu_k8s.apiserver.tasks import run_together
from cgpu_k8s.kubelet import device_plugin_api as api
from cgpu_k8s.kubelet.protobuf import EMPTY
from cgpu_k8s.kubelet.rpc import BytesCodec, Identity, call_method, identify_socket
from cgpu_k8s.names import CORES, COUNT, MEMORY, WHOLE_GPU

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from grpclib.server import Stream

SOCKET = "cgpu.sock"
UNITS = {MEMORY: "cgpu-mem.sock", CORES: "cgpu-core.sock", WHOLE_GPU: "cgpu-gpu.sock"}
PERIOD = 1.0  # seconds between two checks of the kubelet's socket
CALL = 15.0  # seconds in which a kubelet must call a plugin that it accepted; it tries for 10
_UNHEARD = "the kubelet took the plugin, and does not listen to it"
_REFUSAL = (
    f"{COUNT} is no resource to ask for: expected the pod's label {COUNT}, beside"
    " aliyun.com/gpu-mem in a container's limits"
)
Report = Callable[[str, dict[str, object]], None]


class DevicePlugin:
    """The device plugin of one resource.

    Args:
        folder: the kubelet's folder for device plugins.
        report: writes a line of the log.
        resource: the resource's name.
        socket: the name of the plugin's socket in the folder.

    Attributes:
        holds: set once a kubelet knows the devices.
    """

    def __init__(
        self, folder: Path, report: Report, resource: str = COUNT, socket: str = SOCKET
    ) -> None:
        self._folder, self._report = folder, report
        self._resource, self._socket = resource, socket
        self._devices: dict[str, bool] = {}
        self._changed = asyncio.Condition()
        self._server: Server | None = None
        self._kubelet: Identity | None = None
        self._own: Identity | None = None
        self._failure = ""
        self._listeners, self._unheard = 0, 0.0
        self.holds = asyncio.Event()

    async def publish(self, devices: Mapping[str, bool]) -> None:
        """Publish devices from now on: whether each is healthy, by device ID."""
        async with self._changed:
            if self._devices != dict(devices):
                self._devices = dict(devices)
                self._changed.notify_all()

    async def run(self) -> None:
        """Stay registered with whichever kubelet runs, until cancelled."""
        try:
            while True:
                if self._devices:
                    await self._ensure_registered()
                await asyncio.sleep(PERIOD)
        finally:
            await self._stop()

    async def _ensure_registered(self) -> None:
        """Register if the kubelet restarted, removed the plugin's socket, or does not call it."""
        kubelet = identify_socket(self._folder / api.KUBELET)
        own = identify_socket(self._folder / self._socket)
        if kubelet is None:
            self._report_failure(f"no kubelet listens at {self._folder / api.KUBELET}")
            return
        if kubelet == self._kubelet and own is not None and own == self._own:
            if self._listeners or time.monotonic() - self._unheard < CALL:
                return
            self._report_failure(_UNHEARD)
        is_unheard = self._failure == _UNHEARD  # if so, the kubelet's call will be the success
        try:
            await self._register()
        except (CgpuError, OSError) as error:
            self._report_failure(
                f"the kubelet does not take the plugin: {printable(str(error), 300)}"
            )
        else:
            self._kubelet, self._unheard = kubelet, time.monotonic()
            if not is_unheard:
                self._report_success()

    async def _register(self) -> None:
        await self._stop()
        path = self._folder / self._socket
        path.unlink(missing_ok=True)
        server = Server([self], codec=BytesCodec())
        await server.start(path=str(path))
        self._server, self._own = server, identify_socket(path)
        async with Channel(path=str(self._folder / api.KUBELET), codec=BytesCodec()) as channel:
            await call_method(
                channel,
                api.REGISTER,
                api.encode_registration(self._socket, self._resource),
            )

    async def _stop(self) -> None:
        server, self._server, self._kubelet, self._own = self._server, None, None, None
        if server is not None:
            server.close()

    def _report_success(self) -> None:
        self._failure = ""
        self._report("registered", {"resource": self._resource, "folder": self._folder})

    def _report_failure(self, reason: str) -> None:
        if reason != self._failure:
            self._failure = reason
            self._report("not_registered", {"error": reason})

    def __mapping__(self) -> dict[str, Handler]:  # grpclib requires this name
        """Return the methods of the plugin."""
        take = _refuse_allocation if self._resource == COUNT else _allocate_nothing
        methods = {
            "GetDevicePluginOptions": (_answer_empty, Cardinality.UNARY_UNARY),
            "PreStartContainer": (_answer_empty, Cardinality.UNARY_UNARY),
            "GetPreferredAllocation": (_answer_empty, Cardinality.UNARY_UNARY),
            "Allocate": (take, Cardinality.UNARY_UNARY),
            "ListAndWatch": (self._list_and_watch, Cardinality.UNARY_STREAM),
        }
        return {
            f"/{api.PLUGIN}/{name}": Handler(act, kind, bytes, bytes)
            for name, (act, kind) in methods.items()
        }

    async def _list_and_watch(self, stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        last = None
        self._listeners += 1
        try:
            while True:
                async with self._changed:
                    while self._devices == last:
                        await self._changed.wait()
                    last = self._devices
                await stream.send_message(api.encode_devices(last))
                self.holds.set()
                if self._failure == _UNHEARD:
                    self._report_success()
        finally:
            self._listeners -= 1
            self._unheard = time.monotonic()


class UnitPlugins:
    """The device plugins of the resources that pods ask for, with a device for each unit."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._plugins = {name: DevicePlugin(folder, report, name, UNITS[name]) for name in UNITS}

    async def publish(self, resources: Mapping[str, int]) -> None:
        """Publish this many units of each resource from now on, all of them as healthy.

        A kubelet that restarts would fail pods with an unhealthy device. Pods are placed by the
        annotation, which shows the lost GPUs.
        """
        for name, plugin in self._plugins.items():
            await plugin.publish({str(unit): True for unit in range(resources.get(name, 0))})

    async def run(self) -> None:
        """Stay registered, until cancelled."""
        await run_together(*(plugin.run() for plugin in self._plugins.values()))


async def _answer_empty(stream: Stream[bytes, bytes]) -> None:
    await stream.recv_message()
    await stream.send_message(EMPTY)


async def _allocate_nothing(stream: Stream[bytes, bytes]) -> None:
    await stream.recv_message()
    await stream.send_message(api.ALLOCATED)


async def _refuse_allocation(stream: Stream[bytes, bytes]) -> None:
    await stream.recv_message()
    raise GRPCError(Status.FAILED_PRECONDITION, _REFUSAL)
