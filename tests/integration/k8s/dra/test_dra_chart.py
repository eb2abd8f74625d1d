"""What the chart brings for claims, and where. DRA-3, DRA-4, DRA-6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cgpu_k8s import names
from cgpu_k8s.dra_driver import CDI, build_parser
from cgpu_k8s.guard import build_parser as build_guard_parser
from lab.cluster.dra_node import CONVERTING, DISABLED, ENABLED
from lab.kubernetes import chart

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

NAME, GUARD = "cgpu-dra-driver", "cgpu-guard"


def enabled(home: Path, *options: str, version: str = "1.36") -> list[Any]:
    return chart.rendered(version, home, ENABLED, *options)


def test_dra_4_what_claims_need_comes_by_default_where_they_need_no_feature_gate(
    tmp_path: Path,
) -> None:
    """And to users who do not want them it brings nothing else."""
    plain = chart.rendered("1.36", tmp_path, DISABLED)
    found = chart.rendered("1.36", tmp_path)
    assert found == enabled(tmp_path)
    more = [each for each in found if each not in plain]
    assert sorted(each["kind"] for each in more) == [
        "ClusterRole", "ClusterRoleBinding", "DaemonSet", "DeviceClass", "NetworkPolicy",
        "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    ]  # fmt: skip
    assert {each["metadata"]["name"] for each in more} == {NAME, names.DRIVER}
    assert [each for each in plain if each not in found] == []
    # No node runs the driver before somebody labels one.
    pod = chart.one(more, "DaemonSet", NAME)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {names.SCHEDULE: "dra"}


@pytest.mark.parametrize(
    ("version", "is_there"),
    [
        ("v1.35.9-gke.3", False),
        ("v1.36.0-alpha.1", True),
        ("v1.36.2-gke.1", True),
        ("v1.37.0+k3s1", True),
    ],
)
def test_dra_4_the_clusters_version_decides_by_default(
    version: str, tmp_path: Path, *, is_there: bool
) -> None:
    kinds = [each["kind"] for each in chart.rendered(version, tmp_path)]
    assert kinds.count("DeviceClass") == is_there


@pytest.mark.parametrize(("option", "is_shown"), [(ENABLED, True), (DISABLED, False)])
def test_dra_4_helm_says_on_which_nodes_the_driver_runs(
    option: str, tmp_path: Path, *, is_shown: bool
) -> None:
    words = ("install", "cgpu", chart.CHART, "--dry-run=client", option)
    _, _, notes = chart.done("helm", *words, home=tmp_path).partition("\nNOTES:\n")
    assert ("no driver for claims runs before that" in notes) is is_shown


def test_a_cluster_without_claims_is_refused(tmp_path: Path) -> None:
    words = ("template", chart.CHART, "--kube-version", "v1.33.9-gke.1", ENABLED)
    ended = chart.run("helm", *words, home=tmp_path)
    assert ended.returncode
    assert "dra.enabled=true: claims need Kubernetes 1.34 or later, and this is" in ended.stderr
    chart.rendered("v1.34.0-rc.1", tmp_path, ENABLED)  # which has them


def test_the_drivers_command_line_is_one_that_it_reads(tmp_path: Path) -> None:
    values = ("--set=dra.policy=fixed", "--set=dra.hook=/usr/bin/cgpu-hook",
              "--set=agent.driverDir=/usr/lib64")  # fmt: skip
    pod = chart.one(enabled(tmp_path, *values), "DaemonSet", NAME)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["python3", "-m", "cgpu_k8s.dra_driver"]
    given = build_parser().parse_args(container["args"])
    assert (given.policy, given.hook) == ("fixed", "/usr/bin/cgpu-hook")
    assert (given.programs, given.node_driver_dir) == (None, None)
    paths = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    assert volumes.keys() == {*paths.values()}
    assert volumes[paths[given.driver_dir]] == "/usr/lib64"
    for path in (given.registry, given.plugins, given.setting.parent):
        assert volumes[paths[str(path)]] == str(path)
    assert str(CDI) == "/var/run/cdi"  # which is below /run on each node, and in the image
    assert volumes[paths["/run"]] == "/run"
    assert container["securityContext"]["privileged"]
    assert pod["hostPID"]  # process 1, whose root is the node's
    assert pod["nodeSelector"] == {names.SCHEDULE: "dra"}
    assert pod["priorityClassName"] == "system-node-critical"


def test_dra_6_pods_are_converted_where_a_value_says_so(tmp_path: Path) -> None:
    found = enabled(tmp_path, CONVERTING)
    assert [each["metadata"]["name"] for each in found if each not in enabled(tmp_path)] == [
        GUARD
    ] * 2
    spec = chart.one(found, "Deployment", GUARD)["spec"]["template"]["spec"]
    given = build_guard_parser().parse_args(spec["containers"][0]["args"])
    assert given.convert
    [pods] = [each for each in chart.one(found, "ClusterRole", GUARD)["rules"]
              if each["resources"] == ["pods"]]  # fmt: skip
    assert pods["verbs"] == ["get", "list", "watch"]


@pytest.mark.parametrize(("version", "given"), [("v1.35.2", "auto"), ("v1.36.2", "false")])
def test_pods_are_not_converted_to_claims_that_nobody_serves(
    version: str, given: str, tmp_path: Path
) -> None:
    values = (CONVERTING, f"--set=dra.enabled={given}")
    words = ("template", chart.CHART, "--kube-version", version, *values)
    ended = chart.run("helm", *words, home=tmp_path)
    assert ended.returncode
    assert (
        f"dra.convert=true: pods become claims, and with dra.enabled={given} nothing serves claims"
        f" on Kubernetes {version}: set dra.enabled=true, from 1.34 on, or leave dra.convert out"
    ) in ended.stderr


def test_dra_4_without_a_hook_the_driver_installs_it(tmp_path: Path) -> None:
    values = ("--set=dra.folder=/home/kubernetes/cgpu", "--set=agent.driverDir=/usr/lib64")
    pod = chart.one(enabled(tmp_path, *values), "DaemonSet", NAME)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = build_parser().parse_args(container["args"])
    assert (given.programs, given.node_process) == ("/home/kubernetes/cgpu", 1)
    assert given.node_driver_dir == "/usr/lib64"
    plain = chart.one(enabled(tmp_path), "DaemonSet", NAME)["spec"]["template"]["spec"]
    assert "--programs=/opt/cgpu-dra" in plain["containers"][0]["args"]


def test_dra_3_the_class_of_nvidias_driver_is_ours_where_a_value_says_so(tmp_path: Path) -> None:
    found = enabled(tmp_path, "--set=dra.nvidiaClass=true")
    classes = {each["metadata"]["name"]: each["spec"] for each in found
               if each["kind"] == "DeviceClass"}  # fmt: skip
    assert classes.keys() == {names.DRIVER, names.NVIDIA_DRIVER}
    resource = {"extendedResourceName": "nvidia.com/gpu"}
    assert classes[names.NVIDIA_DRIVER] == {**classes[names.DRIVER], **resource}
    for objects, has_names in ((found, True), (enabled(tmp_path), False)):
        pod = chart.one(objects, "DaemonSet", NAME)["spec"]["template"]["spec"]
        given = build_parser().parse_args(pod["containers"][0]["args"])
        assert given.nvidia_names is has_names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("dra.enabled=on", "at '/dra/enabled': value must be one of true, false, 'auto'"),
        ("dra.policy=fair", "'weighted', 'fixed'"),
        ("dra.hook=cgpu-hook", "at '/dra/hook': 'cgpu-hook' does not match pattern"),
        ("dra.folder=opt", "at '/dra/folder': 'opt' does not match pattern"),
        ("dra.enable=true", "at '/dra': additional properties 'enable' not allowed"),
    ],
)
def test_a_bad_value_of_claims_is_refused_and_named(given: str, says: str, tmp_path: Path) -> None:
    ended = chart.run("helm", "template", chart.CHART, "--set", given, home=tmp_path)
    assert ended.returncode
    assert says in ended.stderr
