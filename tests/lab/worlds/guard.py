"""A guard that a real API server asks, by its address: no Service works where no node does."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from cgpu_k8s.names import SCHEDULERS
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.control_plane import GUARD, ControlPlane
from lab.kubernetes.programs import free_port, running, tail

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
NAME = "cgpu-guard"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_HOST = "127.0.0.1"
_PROGRAM = ("-m", "cgpu_k8s.guard")
_CONVERTING = ("--set=dra.enabled=true", "--set=dra.convert=true")


def apply(plane: ControlPlane, port: int, *options: str) -> None:
    """Apply what the chart has for the guard, with its webhooks on this port."""
    objects = [each for each in plane.chart(*options) if each["metadata"]["name"] == NAME]
    for hook in (hook for each in objects for hook in each.get("webhooks", [])):
        del hook["clientConfig"]["service"]
        hook["clientConfig"]["url"] = f"https://{_HOST}:{port}/"
    words = ["apply", "--filename=-", f"--kubeconfig={plane.kubeconfig()}"]
    chart.done("kubectl", *words, home=plane.folder, given=yaml.safe_dump_all(objects))


def _remove(plane: ControlPlane) -> None:
    """Let the API server ask nobody."""
    words = ["--ignore-not-found", f"--kubeconfig={plane.kubeconfig()}"]
    chart.done("kubectl", "delete", ",".join(CONFIGURATIONS), NAME, *words, home=plane.folder)


@contextmanager
def guard(
    plane: ControlPlane, port: int, *words: str, program: tuple[str, str] = _PROGRAM
) -> Iterator[subprocess.Popen[bytes]]:
    """A replica on this port, with its log in ``guard-PORT.log``."""
    command = [sys.executable, *program, "--kubeconfig", plane.kubeconfig(GUARD),
               "--namespace", chart.NAMESPACE, "--listen", f"{_HOST}:{port}", "--host", _HOST,
               *words]  # fmt: skip
    with running(plane.folder / f"guard-{port}.log", command) as process:
        yield process


@contextmanager
def guarding(plane: ControlPlane, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Install it, and let the API server ask a replica until the end of the block."""
    port = free_port()
    _remove(plane)  # what helm has installed names a Service
    apply(plane, port)
    with guard(plane, port, *words) as process:
        _await_questions(plane, port, SCHEDULERS[0])
        yield process
    _remove(plane)


@contextmanager
def converting(plane: ControlPlane, kept: float) -> Iterator[None]:
    """Likewise, as one that converts pods; it keeps a template for so many seconds."""
    port = free_port()
    _remove(plane)
    apply(plane, port, *_CONVERTING)
    program = (
        "from cgpu_k8s.dra import template_keeper as keeper; from cgpu_k8s.guard import main;"
        f" keeper.KEPT = {kept}; main()"
    )
    with guard(plane, port, "--convert", program=("-c", program)):
        _await_questions(plane, port, "default-schedulercgpu-mem-1024")
        yield
    _remove(plane)


def _await_questions(plane: ControlPlane, port: int, outcome: str) -> None:
    try:
        wait_until(lambda: is_asked(plane, outcome), "the guard is asked", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{tail(plane.folder / f'guard-{port}.log')}") from None


def is_asked(plane: ControlPlane, outcome: str = SCHEDULERS[0]) -> bool:
    """Whether pods get a scheduler, or a claim; and one that begins with a decision is refused."""
    asks = {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
    named = _created(plane, {}, asks).stdout == outcome
    forged = _created(plane, {"annotations": {"cgpu/allocation": "{}"}}, {})
    return named and "only cgpu's scheduler may set" in forged.stderr


def _created(plane: ControlPlane, about: Json, limits: Json) -> subprocess.CompletedProcess[str]:
    """What a pod's creation, which is only tried, says of its scheduler and its claims."""
    item: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", **about},
        "spec": {"containers": [{"name": "main", "image": "busybox", **limits}]},
    }
    shown = "{.spec.schedulerName}{.spec.resourceClaims[*].resourceClaimTemplateName}"
    words = ["create", "--dry-run=server", "--filename=-", f"--kubeconfig={plane.kubeconfig()}",
             f"--output=jsonpath={shown}"]  # fmt: skip
    return chart.run("kubectl", *words, home=plane.folder, given=yaml.safe_dump(item))
