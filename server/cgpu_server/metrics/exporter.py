"""Serves the metrics to Prometheus, in threads of their own that hold no lock of the server.

If this fails, the failure is logged, and the server works without metrics.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from cgpu_node.shares.claimants import join_containers
from cgpu_node.shares.record import CLAIM, PodContainer, pod_of
from cgpu_server.journal import log
from cgpu_server.metrics.dcgm import DCGM
from cgpu_server.metrics.table import METRICS, MetricsView
from cgpu_server.metrics.whole import describe_whole_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import HTTPServer

    from prometheus_client.core import Metric as Family

    from cgpu_node.view.view import Use
    from cgpu_server.audit.auditor import Audit
    from cgpu_server.state.server_state import ServerState


class Collector:
    """Reads ``state`` and ``audit`` at each scrape."""

    def __init__(self, state: ServerState, audit: Audit) -> None:
        self._state, self._audit = state, audit
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, int], tuple[int, int]] = {}
        self._pods: dict[str, PodContainer] = {}

    def collect(self) -> Iterator[Family]:
        """Yield the table's families with their samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        view = self._build_view()
        for metric in (*METRICS, *(DCGM if self._state.config.dcgm_names else ())):
            family = families[metric.kind](metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.samples(view):
                family.add_metric(labels, float(value))
            yield family

    def _build_view(self) -> MetricsView:
        state, audit = self._state, self._audit
        node = state.find_node()
        others = describe_whole_gpus(state.exclusive, node, audit.last)
        usage = audit.describe(node, others=others.values())
        return MetricsView(
            usage=usage,
            is_readable=node is not None,
            refused=self._count_refused(usage.uses),
            figures=state.arbiters.read_figures(),
            refresh_age=time.monotonic() - state.refreshed_at,
            audit=audit.last,
            busy_ns=audit.utilisation.busy_ns,
            pods={**self._find_pods(usage.uses), **{use.id: pod for pod, use in others.items()}},
            host=state.config.kubernetes.node if state.config.kubernetes else os.uname().nodename,
        )

    def _find_pods(self, uses: tuple[Use, ...]) -> dict[str, PodContainer]:
        """Return the pods' containers among ``uses``, by id; one that is ending keeps its entry.

        Those of a claim come and go.
        """
        with self._lock:
            before = self._pods
            recorded = (use for use in uses if use.directory)
            found = {
                use.id: _name_claimants(use)
                if use.kind == CLAIM and (use.pods or use.id not in before)
                else before.get(use.id) or pod_of(use.directory)
                for use in recorded
            }
            self._pods = {id_: pod for id_, pod in found.items() if pod is not None}
            return self._pods

    def _count_refused(self, uses: tuple[Use, ...]) -> dict[tuple[str, int], int]:
        """Return the counts of refused requests, which only grow, even if containers lower them.

        A later container in a directory of the same name has another inode, and starts at zero.
        """
        with self._lock:
            before, self._refused = self._refused, {}
            for use in uses:
                directory = use.directory
                with contextlib.suppress(OSError):  # it is ending
                    inode = os.stat(directory).st_ino
                    for number, gpu in enumerate(use.gpus):
                        then, count = before.get((directory, number), (inode, 0))
                        count = max(count if then == inode else 0, gpu.refused)
                        self._refused[directory, number] = inode, count
            return {key: count for key, (_, count) in self._refused.items()}


def _name_claimants(use: Use) -> PodContainer:
    namespace = use.name.partition("/")[0]
    return join_containers(namespace, (PodContainer("", *each.split("/", 2)) for each in use.pods))


class Exporter:
    """Serves a node's metrics, on the socket ``given`` or at the address of ``follow``."""

    def __init__(
        self, state: ServerState, audit: Audit, given: socket.socket | None = None
    ) -> None:
        self._state, self._audit = state, audit
        self._fixed = given is not None
        self._address: str | None = None
        self._server: HTTPServer | None = None
        if given is not None:
            self._start_server(given)

    def follow(self, address: str | None) -> None:
        """Serve at ``address`` from now on, such as ``127.0.0.1:9477``; None: nowhere.

        Call it often: if another process has the port, each call tries again.
        """
        if self._fixed or (address == self._address and self._server is not None):
            return
        self.close()
        failed, self._address = self._address, address
        if address is not None:
            try:
                self._start_server(_open_listener(address))
            except (OSError, ValueError, OverflowError) as error:
                if failed != address:
                    log.error(
                        "metrics_not_served",
                        address=address,
                        error=error,
                        do="free the port or name another one; it is tried again each second",
                    )

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _start_server(self, listener: socket.socket) -> None:
        from prometheus_client import CollectorRegistry

        from cgpu_server.metrics.http import Server

        registry = CollectorRegistry()
        registry.register(Collector(self._state, self._audit))
        self._server = Server(listener, registry)
        serve = partial(self._server.serve_forever, poll_interval=0.1)
        threading.Thread(target=serve, name="cgpu-metrics", daemon=True).start()
        log.info("metrics_served", address=_format_address(listener))


def _open_listener(address: str) -> socket.socket:
    """Return a socket that listens at a literal address and port, such as ``[::1]:9477``.

    Raises:
        ValueError, OverflowError: ``address`` is not such an address.
        OSError: it cannot listen there.
    """
    host, _, port = address.rpartition(":")
    ip = ipaddress.ip_address(host.strip("[]"))
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET  # noqa: PLR2004 (IPv6)
    return socket.create_server((str(ip), int(port)), family=family)


def _format_address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
