"""The chart, installed by the real helm into a real Kubernetes, upgraded and removed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cgpu_k8s.objects.policies import GROUP
from lab.kubernetes import chart
from lab.kubernetes.control_plane import ControlPlane, control_plane
from lab.kubernetes.programs import Release, newer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

LEASE = "leases/cgpu-scheduler"
# What the guard writes into the chart's objects.
HOOKS = ("mutatingwebhookconfigurations/cgpu-guard", "validatingwebhookconfigurations/cgpu-guard")
ASKED = {"path": "/word/verb"}
KEYS = {"data": {"ca.crt": "eA=="}}
# What an uninstallation leaves, because all ResourcePolicies would go with it; what others make.
KEPT = "customresourcedefinition.apiextensions.k8s.io/resourcepolicies.scheduling.alibabacloud.com"
OF_OTHERS = ("events", "ipaddresses", "apiservices")
HOLDER = {"spec": {"holderIdentity": "gpu-a_1", "leaseDurationSeconds": 15}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, release: Release) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane"), release) as running:
        yield running


def helm(plane: ControlPlane, *words: str) -> str:
    return chart.done("helm", *words, *_where(plane), home=plane.folder)


def kubectl(plane: ControlPlane, *words: str) -> str:
    return chart.done("kubectl", *words, *_where(plane), home=plane.folder)


def _where(plane: ControlPlane) -> tuple[str, str]:
    return f"--namespace={chart.NAMESPACE}", f"--kubeconfig={plane.kubeconfig()}"


def everything(plane: ControlPlane) -> set[str]:
    """The names of all objects, but of events and what an API server makes of Services, kinds."""
    kinds = kubectl(plane, "api-resources", "--verbs=list", "--output=name").split()
    listed = ",".join(kind for kind in kinds if not kind.startswith(OF_OTHERS))
    return set(kubectl(plane, "get", listed, "--all-namespaces", "--output=name").splitlines())


def shown(plane: ControlPlane, what: str) -> Any:
    return json.loads(kubectl(plane, "get", what, "--output=json"))


def test_it_is_installed_upgraded_and_removed_and_leaves_nothing(plane: ControlPlane) -> None:
    before = everything(plane)
    helm(plane, "install", "cgpu", str(chart.CHART))
    made = everything(plane) - before
    rendered = plane.chart()
    # As helm renders it without a cluster, and where helm keeps that.
    assert len(made) == len(rendered) + 1
    assert shown(plane, "deployment/cgpu-scheduler")["spec"]["replicas"] == 2

    kubectl(plane, "patch", LEASE, "--type=merge", f"--patch={json.dumps(HOLDER)}")
    bundle = plane.authority.data("ca.crt")
    kubectl(plane, "patch", "secret/cgpu-guard", f"--patch={json.dumps(KEYS)}")
    for path in HOOKS:
        hooks = [{"name": each["name"], "clientConfig": {"caBundle": bundle, "service": ASKED}}
                 for each in shown(plane, path)["webhooks"]]  # fmt: skip
        kubectl(plane, "patch", path, f"--patch={json.dumps({'webhooks': hooks})}")
    template = shown(plane, "deployment/cgpu-scheduler")["spec"]["template"]
    helm(plane, "upgrade", "cgpu", str(chart.CHART), "--set=scheduler.replicas=3")
    deployment = shown(plane, "deployment/cgpu-scheduler")
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["template"] == template  # so running pods stay
    assert shown(plane, LEASE)["spec"]["holderIdentity"] == "gpu-a_1"  # and who leads goes on

    assert shown(plane, "secret/cgpu-guard")["data"] == KEYS["data"]
    for path in HOOKS:
        hooks = shown(plane, path)["webhooks"]
        assert {each["clientConfig"]["caBundle"] for each in hooks} == {bundle}
        assert {each["clientConfig"]["service"]["path"] for each in hooks} == {ASKED["path"]}

    helm(plane, "uninstall", "cgpu")
    assert everything(plane) == before | {KEPT}
    helm(plane, "install", "cgpu", str(chart.CHART))  # which takes it over again
    helm(plane, "uninstall", "cgpu")


def test_an_upgrade_brings_the_kind_and_a_removal_keeps_the_policies(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """COS-1: releases before it had no ResourcePolicies."""
    older, given = tmp_path / "older", tmp_path / "policy.yaml"
    shutil.copytree(chart.CHART, older)
    (older / "templates" / "resourcepolicies.yaml").unlink()
    kubectl(plane, "delete", "--ignore-not-found", KEPT)
    helm(plane, "install", "cgpu", str(older))
    with pytest.raises(AssertionError, match="resourcepolicies"):
        kubectl(plane, "get", KEPT)

    helm(plane, "upgrade", "cgpu", str(chart.CHART))
    kubectl(plane, "wait", "--for=condition=Established", KEPT)
    about = {"apiVersion": GROUP, "kind": "ResourcePolicy"}
    rule = {**about, "metadata": {"name": "rule"}, "spec": {"units": [{"max": 1}]}}
    given.write_text(yaml.safe_dump(rule))
    kubectl(plane, "create", f"--filename={given}")
    helm(plane, "uninstall", "cgpu")
    assert shown(plane, "resourcepolicies/rule")["spec"] == rule["spec"]
    kubectl(plane, "delete", KEPT)


@newer
def test_dra_4_an_upgrade_brings_what_claims_need_unless_a_value_says_no(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """DRA-4. And it hinders no other driver's slices."""
    older, given = tmp_path / "older", tmp_path / "slice.yaml"
    shutil.copytree(chart.CHART, older)
    values = older / "values.yaml"
    values.write_text(values.read_text().replace("enabled: auto", "enabled: false"))
    device_classes = lambda: kubectl(plane, "get", "deviceclasses", "--output=name")  # noqa: E731
    helm(plane, "install", "cgpu", str(older))
    assert not device_classes()
    helm(plane, "upgrade", "cgpu", str(chart.CHART), "--reuse-values")  # and so the old default
    assert not device_classes()
    helm(plane, "upgrade", "cgpu", str(chart.CHART))
    assert device_classes() == "deviceclass.resource.k8s.io/gpu.cgpu\n"
    pool = {"name": "gpu-a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.other", "nodeName": "gpu-a", "pool": pool, "devices": [{"name": "one"}]}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    given.write_text(yaml.safe_dump({**about, "metadata": {"name": "other"}, "spec": spec}))
    kubectl(plane, "create", f"--filename={given}")
    kubectl(plane, "delete", f"--filename={given}")
    helm(plane, "upgrade", "cgpu", str(chart.CHART), "--set=dra.enabled=false")
    assert not device_classes()
    helm(plane, "uninstall", "cgpu")
