"""Extenders that are killed while they bind, and schedulers that stop leading, while pods come."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from lab.cluster.proxy import Proxy
from lab.containers.enclosure import wait_until
from lab.kubernetes.scheduler import EXTENDER, SCHEDULER, Replica

_PATIENCE = 60.0
# What becomes of the binding that an extender waits for when it is killed: whether the API server
# has carried it out before, and whether it arrives there after the kill.
FATES = {
    "its reply is lost": (True, False),
    "it is lost": (False, False),
    "it arrives after the kill": (False, True),
}
Change = Callable[[Replica, Replica, Proxy], float]


def kill_while_binding(replica: Replica, proxy: Proxy, fate: str) -> float:
    """Kill an extender between a binding and its reply, and start it again.

    Returns:
        Seconds until the next pod is bound.
    """
    carried_out, deliver = FATES[fate]
    held = proxy.hold(carried_out=carried_out)
    assert held.reached.wait(_PATIENCE), "no binding is sent"
    began = time.monotonic()
    replica.send(signal.SIGKILL, EXTENDER)
    held.go_on(deliver=deliver)
    replica.start(EXTENDER)
    return proxy.await_binding({replica.host}, time.monotonic()) - began


def kill_all(leader: Replica, other: Replica, proxy: Proxy) -> float:
    """Kill a leader's scheduler and extender, as when their host dies; then start them again.

    Returns:
        Seconds until the other one has bound a pod; so do all changes of leaders.
    """
    began = time.monotonic()
    leader.send(signal.SIGKILL)
    seconds = proxy.await_binding({other.host}, began) - began
    leader.start()
    return seconds


def kill_scheduler(leader: Replica, other: Replica, proxy: Proxy) -> float:
    """Kill a leader's scheduler; its extender goes on."""
    began = time.monotonic()
    leader.send(signal.SIGKILL, SCHEDULER)
    seconds = proxy.await_binding({other.host}, began) - began
    leader.start(SCHEDULER)
    return seconds


def end_all(leader: Replica, other: Replica, proxy: Proxy) -> float:
    """End a leader's programs by SIGTERM, as an upgrade does."""
    began = time.monotonic()
    leader.close()
    seconds = proxy.await_binding({other.host}, began) - began
    leader.start()
    return seconds


def freeze(leader: Replica, other: Replica, proxy: Proxy, together: float = 10.0) -> float:
    """Freeze a leader that binds until another one has led for ``together`` seconds.

    Its binding arrives at the API server when it goes on.
    """
    held = proxy.hold(carried_out=False)
    assert held.reached.wait(_PATIENCE), "no binding is sent"
    began = time.monotonic()
    leader.send(signal.SIGSTOP)
    led = proxy.await_binding({other.host}, began)
    time.sleep(max(0.0, led + together - time.monotonic()))
    held.go_on(deliver=True)
    leader.send(signal.SIGCONT)
    # It has lost its lease, and ends; its node starts it again.
    wait_until(lambda: leader.ended(SCHEDULER), "a scheduler without its lease ends", _PATIENCE)
    leader.start(SCHEDULER)
    sent = [each for each in proxy.bindings if each.host == leader.host and each.asked > led]
    assert sent == [], "a frozen leader that goes on binds beside its successor"
    return led - began


# How a leader stops, and how often of twenty times.
CHANGES: Mapping[Change, int] = {kill_all: 8, kill_scheduler: 5, end_all: 5, freeze: 2}
