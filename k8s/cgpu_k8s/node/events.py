"""Sends events about a node, each once while its cause lasts."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.resources import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cgpu_k8s.apiserver.client import Client

NORMAL, WARNING = "Normal", "Warning"
NAMESPACE = "default"  # events about objects without a namespace belong there
COMPONENT = "cgpu-agent"


class Events:
    """Sends the events about the node ``name``.

    Args:
        client: a client of the API server.
        name: the node's name.
        fail: reports a problem with a subject once while it lasts; "" means that there is none.
    """

    def __init__(self, client: Client, name: str, fail: Callable[[str, str], None]) -> None:
        self._client, self._name, self._fail = client, name, fail
        self._sent: dict[tuple[str, str], str] = {}

    async def send(self, reason: str, message: str, kind: str = WARNING, about: str = "") -> bool:
        """Send an event, unless the last one for this reason and subject had the same message.

        If the API server refuses the event, the next call with the same event sends it again.

        Returns:
            Whether the API server has the event.
        """
        if self._sent.get((reason, about)) == message:
            return True
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        node = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": self._name}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._name}.{time.time_ns():x}", "namespace": NAMESPACE},
            "involvedObject": node,
            "reason": reason,
            "message": message[:1024],  # the API's limit
            "type": kind,
            "source": {"component": COMPONENT, "host": self._name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._client.post(EVENTS.path(namespace=NAMESPACE), event)
        except CgpuError as error:
            self._fail(str(error), "events")
            return False
        self._sent[reason, about] = message
        self._fail("", "events")
        return True

    def forget_except(self, reason: str, subjects: Collection[str]) -> None:
        """Forget the events for ``reason``, except those about these subjects."""
        for sent in [key for key in self._sent if key[0] == reason and key[1] not in subjects]:
            del self._sent[sent]

    def forget(self, reason: str, about: str = "") -> None:
        """Forget an event, so that it is sent again if ``reason`` holds again."""
        self._sent.pop((reason, about), None)
