"""A cluster in use: pods come and end, and replicas of the scheduler bind them through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lab.cluster.crowd import Outcome
from lab.cluster.proxy import Proxy, proxy
from lab.cluster.traffic import Traffic, traffic
from lab.containers.enclosure import wait_until
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.scheduler import Replica, scheduling

_PATIENCE = 60.0


class World(NamedTuple):
    """See ``in_use``; replicas by their hosts' names."""

    proxy: Proxy
    traffic: Traffic
    replicas: Mapping[str, Replica]

    @property
    def leader(self) -> Replica:
        """Which replica binds."""
        return self.replicas[self.proxy.binds]

    @property
    def other(self) -> Replica:
        """One that does not."""
        return next(each for each in self.replicas.values() if each is not self.leader)

    def end(self) -> Outcome:
        """Let no more pods come: what became of all.

        Raises:
            AssertionError: the extender counts what no pod has.
        """
        self.traffic.end()
        found = asyncio.run(self.traffic.outcome())
        units = found.units.total()
        try:
            wait_until(lambda: self._counted() == units, f"the extender counts {units}", _PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self._counted()}") from None
        return found

    def _counted(self) -> int:
        """What the leader's extender counts as given away."""
        shown = json.loads(self.leader.answer("gpushare-scheduler/inspect") or "{}")
        return sum(int(each["usedGPU"]) for each in shown.get("nodes", []))


@contextlib.contextmanager
def in_use(plane: ControlPlane, *hosts: str) -> Iterator[World]:
    """A control plane with nodes in use until the end of the block, which begins with a binding."""
    with contextlib.ExitStack() as stack:
        between = stack.enter_context(proxy(plane))
        replicas = {
            host: stack.enter_context(scheduling(plane, host, between.address(host)))
            for host in hosts
        }
        pods = stack.enter_context(traffic(plane, hosts[0]))
        between.await_binding(hosts)
        yield World(between, pods, replicas)
