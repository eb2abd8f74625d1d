"""What makes pods that no GPU could serve is refused where somebody applies it: K8S-2.

By the guard's webhook, and by policies where the API server has them.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cgpu_k8s.admission.rules import find_refusal
from lab.containers.enclosure import wait_until
from lab.kubernetes import chart
from lab.kubernetes.cel import SETTINGS, created
from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.manifests import CONTROLLERS, IMPOSSIBLE, ITS_OWN, asking, controller
from lab.kubernetes.programs import Release
from lab.kubernetes.scheduler import install
from lab.worlds.guard import guarding

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.system

WRONG = IMPOSSIBLE["core 33"]
NOTED, PLACED = (
    json.dumps({"spec": {"template": part}})
    for part in ({"metadata": {"annotations": {"mine": "1"}}}, {"spec": {"nodeName": "gpu-a"}})
)


@pytest.fixture(scope="module", name="plane")
def _plane(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as plane:
        yield plane


def kubectl(plane: ControlPlane, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    where = f"--kubeconfig={plane.kubeconfig()}"
    return chart.run("kubectl", *words, where, home=plane.folder, given=given)


def apply(plane: ControlPlane, *items: Any) -> subprocess.CompletedProcess[str]:
    return kubectl(plane, "apply", "--filename=-", given=yaml.safe_dump_all(items))


def made(plane: ControlPlane, plural: str, item: Any, name: str) -> Any:
    found = {**controller(plural, item), "metadata": {"name": name}}
    if plural == "cronjobs" and not plane.release.is_since(21):
        found["apiVersion"] = "batch/v1beta1"
    return found


def not_due(plane: ControlPlane) -> list[Any]:
    """What makes no pods now, as it is restored, and what a controller makes."""
    zero, suspended, owned = (
        made(plane, plural, WRONG, "restored")
        for plural in ("deployments", "cronjobs", "replicasets")
    )
    zero["spec"]["replicas"] = 0
    suspended["spec"]["suspend"] = True
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "old", "uid": "of-old"}
    owned["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return [zero, suspended, owned]


@contextmanager
def ruled(plane: ControlPlane) -> Iterator[None]:
    """The API server follows the rules, by itself where it can, until the end of the block."""
    if not plane.release.has_policies:
        with guarding(plane):
            yield
        return
    install(plane)
    job = yaml.safe_dump(made(plane, "jobs", WRONG, "tried"))
    words = ("create", "--dry-run=server", "--filename=-")
    wait_until(lambda: kubectl(plane, *words, given=job).returncode != 0, "it refuses", 60)
    yield


def test_what_no_gpu_could_give_is_refused_and_what_was_there_before_can_be_scaled(
    plane: ControlPlane,
) -> None:
    done = apply(plane, *(made(plane, plural, WRONG, "old") for plural in CONTROLLERS))
    assert done.returncode == 0, done.stderr
    sentences = {name: find_refusal(created(IMPOSSIBLE[name]), SETTINGS)
                 for name in IMPOSSIBLE if name not in ITS_OWN}  # fmt: skip
    with ruled(plane):
        done = apply(plane, *(made(plane, plural, WRONG, "new") for plural in CONTROLLERS))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count(sentences["core 33"]) == len(CONTROLLERS)
        done = apply(plane, *(made(plane, "jobs", IMPOSSIBLE[name], "new") for name in sentences))
        assert done.stdout == ""
        for sentence in sentences.values():
            assert sentence in done.stderr

        right = asking("2", "30")
        del right["spec"]["schedulerName"]
        done = apply(plane, *(made(plane, plural, right, "right") for plural in CONTROLLERS))
        assert done.returncode == 0, done.stderr

        old = [f"{plural}/old" for plural in CONTROLLERS]
        for words in (
            ("annotate", *old, "mine=1"),
            ("scale", "deployments/old", "--replicas=2"),
            ("patch", "replicasets/old", "--patch", '{"spec": {"replicas": 2}}'),
            ("patch", "deployments/old", "--patch", NOTED),
        ):
            done = kubectl(plane, *words)
            assert done.returncode == 0, done.stderr
        done = kubectl(plane, "patch", "deployments/old", "--patch", PLACED)
        assert "nodeName=gpu-a: expected none" in done.stderr
        done = apply(plane, *not_due(plane))
        assert done.returncode == 0, done.stderr
        done = kubectl(plane, "delete", *old, "--wait=false")
        assert done.returncode == 0, done.stderr
