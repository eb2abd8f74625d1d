"""The Helm chart as the real helm reads and renders it, for old and new versions of Kubernetes."""

from __future__ import annotations

import re
import runpy
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cgpu_env.version import VERSION
from cgpu_k8s import extender, names
from cgpu_k8s.admission.rules import Review
from cgpu_k8s.agent import build_parser
from cgpu_k8s.apiserver.configuration import SERVICE_ACCOUNT
from cgpu_k8s.apiserver.resources import RESOURCE_POLICIES
from cgpu_k8s.extender import build_parser as build_extender_parser
from cgpu_k8s.guard import build_parser as build_guard_parser
from cgpu_k8s.scheduler import leader_lease
from lab.kubernetes import cel, chart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

Json = dict[str, Any]
VERSIONS = ("1.20", "1.22", "1.23", "1.24", "1.25", "1.28", "1.30", "1.36")
EVER = 999
GUARD = "cgpu-guard"
AGENT = f"system:serviceaccount:{chart.NAMESPACE}:cgpu-agent"
_ADMISSION = "admissionregistration.k8s.io/v1"
# apiVersion and kind: from which minor version on it is served, and in which it no longer is.
SERVED: dict[tuple[str, str], tuple[int, int]] = {
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): (16, EVER),
    ("apps/v1", "DaemonSet"): (9, EVER),
    ("apps/v1", "Deployment"): (9, EVER),
    ("coordination.k8s.io/v1", "Lease"): (14, EVER),
    ("networking.k8s.io/v1", "NetworkPolicy"): (7, EVER),
    ("policy/v1", "PodDisruptionBudget"): (21, EVER),
    ("policy/v1beta1", "PodDisruptionBudget"): (5, 25),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): (8, EVER),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): (8, EVER),
    ("rbac.authorization.k8s.io/v1", "Role"): (8, EVER),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): (8, EVER),
    ("resource.k8s.io/v1", "DeviceClass"): (34, EVER),
    ("v1", "ConfigMap"): (0, EVER),
    ("v1", "Secret"): (0, EVER),
    ("v1", "Service"): (0, EVER),
    ("v1", "ServiceAccount"): (0, EVER),
    (_ADMISSION, "MutatingWebhookConfiguration"): (16, EVER),
    (_ADMISSION, "ValidatingWebhookConfiguration"): (16, EVER),
    (_ADMISSION, "ValidatingAdmissionPolicy"): (30, EVER),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding"): (30, EVER),
    # Read by kube-scheduler of the same version.
    ("kubescheduler.config.k8s.io/v1beta1", "KubeSchedulerConfiguration"): (19, 23),
    ("kubescheduler.config.k8s.io/v1beta2", "KubeSchedulerConfiguration"): (22, 28),
    ("kubescheduler.config.k8s.io/v1beta3", "KubeSchedulerConfiguration"): (23, 29),
    ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"): (25, EVER),
}


@pytest.fixture(scope="module", params=VERSIONS)
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    return chart.rendered(request.param, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def minor(request: pytest.FixtureRequest) -> int:
    return int(request.node.callspec.params["objects"].partition(".")[2])


def pods(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """The pods that controllers make, by the name of the controller."""
    for each in objects:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def test_helm_lints_the_chart_strictly(tmp_path: Path) -> None:
    assert "0 chart(s) failed" in chart.done("helm", "lint", "--strict", chart.CHART, home=tmp_path)


def test_every_object_is_one_that_the_version_serves(objects: list[Json], minor: int) -> None:
    texts = [each["data"]["config.yaml"] for each in objects if each["kind"] == "ConfigMap"]
    for each in [*objects, *map(yaml.safe_load, texts)]:
        since, until = SERVED[each["apiVersion"], each["kind"]]
        assert since <= minor < until, (each["kind"], each["apiVersion"])


def test_the_policies_are_there_where_the_version_has_them(objects: list[Json], minor: int) -> None:
    found = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    assert len(found) == (6 if minor >= 36 else 5 if minor >= 30 else 0)
    account = f"system:serviceaccount:{chart.NAMESPACE}:cgpu-scheduler"
    exempted = [each for each in found if account in str(each["spec"].get("matchConditions"))]
    assert len(exempted) == (2 if minor >= 30 else 0)
    agents = [each for each in found if AGENT in str(each["spec"].get("matchConditions"))]
    assert len(agents) == (1 if minor >= 30 else 0)
    assert "NAMESPACE" not in str(objects)


def test_policies_and_webhooks_are_the_guards() -> None:
    module = runpy.run_path(str(chart.CHART.parent / "guard.py"))
    written = {path: path.read_text() for path in module["FOLDER"].glob("guard-*")}
    assert written == module["files"](), "make guard"


# Which webhooks there are, and in which of them an API server without a guard refuses.
RULED = ("pods", "annotations", "bindings", "nodes")


def test_webhooks_refuse_where_no_policy_does_and_wait_for_a_guard_where_they_can_choose(
    objects: list[Json], minor: int
) -> None:
    found = {
        hook["name"].removesuffix(".guard.cgpu"): hook
        for kind in ("Mutating", "Validating")
        for hook in chart.one(objects, f"{kind}WebhookConfiguration", GUARD)["webhooks"]
    }
    ruled, binders = RULED if minor < 30 else (), ("binders",) if minor >= 28 else ()
    spared = (*binders, *(("templates",) if minor < 30 else ()))
    assert {*found} == {"schedulers", *ruled, *spared}
    policy = "Fail" if minor >= 28 else "Ignore"
    assert {found[name]["failurePolicy"] for name in ("schedulers", *ruled)} == {policy}
    assert all(found[name]["failurePolicy"] == "Ignore" for name in spared)
    waits = {name: hook["timeoutSeconds"] for name, hook in found.items()}
    assert waits == {name: 1 if name in spared else 5 for name in found}
    assert all(("matchConditions" in hook) == (minor >= 28) for hook in found.values())
    service = chart.one(objects, "Service", GUARD)
    for hook in found.values():
        called = hook["clientConfig"]["service"]
        assert (called["namespace"], called["name"]) == (chart.NAMESPACE, GUARD)
        assert called["port"] == service["spec"]["ports"][0]["port"]


def test_without_a_guard_our_own_pods_start(objects: list[Json], minor: int) -> None:
    for _, spec in pods(objects):
        review = Review("CREATE", "pods", "system:node", {"metadata": {"name": "p"}, "spec": spec})
        for kind in ("Mutating", "Validating"):
            for hook in chart.one(objects, f"{kind}WebhookConfiguration", GUARD)["webhooks"]:
                [rule] = hook["rules"]
                if hook["failurePolicy"] == "Fail" and cel.concerns(rule, review):
                    assert minor >= 28
                    assert not cel.all_hold(hook["matchConditions"], review)


def test_api_servers_reach_the_guard_and_it_reads_its_command_line(
    objects: list[Json], tmp_path: Path
) -> None:
    pod = dict(pods(objects))[GUARD]
    [container] = pod["containers"]
    given = build_guard_parser().parse_args(container["args"])
    assert container["command"] == ["python3", "-m", "cgpu_k8s.guard"]
    assert given.namespace == chart.NAMESPACE
    assert not given.runtime_class
    [port] = container["ports"]
    assert port["containerPort"] == given.listen[1]
    service = chart.one(objects, "Service", GUARD)["spec"]
    template = chart.one(objects, "Deployment", GUARD)["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    [rule] = chart.one(objects, "NetworkPolicy", GUARD)["spec"]["ingress"]
    names = {service["ports"][0]["targetPort"], rule["ports"][0]["port"]}
    names |= {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    assert names == {port["name"]}
    assert "from" not in rule
    assert chart.one(objects, "PodDisruptionBudget", GUARD)["spec"]["maxUnavailable"] == 1
    assert "data" not in chart.one(objects, "Secret", GUARD)
    value = "--set=guard.runtimeClassName=cgpu"
    other = dict(pods(chart.rendered("1.30", tmp_path, value)))[GUARD]
    words = other["containers"][0]["args"]
    assert build_guard_parser().parse_args(words).runtime_class == "cgpu"


@pytest.mark.parametrize("led", [False, True])
def test_cos_1_pods_without_gpus_pass_the_extender_if_a_value_says_so(
    tmp_path: Path, *, led: bool
) -> None:
    """COS-1: a ResourcePolicy may select them, too."""
    value = f"--set=scheduler.podsWithoutGpus={str(led).lower()}"
    found = chart.one(chart.rendered("1.30", tmp_path, value), "ConfigMap", "cgpu-scheduler")
    config = yaml.safe_load(found["data"]["config.yaml"])
    assert tuple(each["schedulerName"] for each in config["profiles"]) == names.SCHEDULERS
    [extender] = config["extenders"]
    managed = [each["name"] for each in extender.get("managedResources", [])]
    assert managed == ([] if led else [names.MEMORY, names.CORES, names.WHOLE_GPU])
    template = dict(pods(chart.rendered("1.30", tmp_path, value)))["cgpu-scheduler"]
    words = next(each["args"] for each in template["containers"] if each["name"] == "extender")
    assert build_extender_parser().parse_args(words).pods_without_gpus == led
    assert not extender["ignorable"]


@pytest.mark.parametrize(("version", "has"), [("1.20.2", True), ("1.22", True), ("1.23", False)])
def test_the_scheduler_serves_without_tls_on_loopback_alone(
    version: str, *, has: bool, tmp_path: Path
) -> None:
    found = chart.one(chart.rendered(version, tmp_path), "ConfigMap", "cgpu-scheduler")
    config = yaml.safe_load(found["data"]["config.yaml"])
    for key in ("healthzBindAddress", "metricsBindAddress"):
        assert config.get(key, "").startswith("127.0.0.1:") is has


def test_no_leader_binds_once_another_may_lead_which_is_within_20_s(objects: list[Json]) -> None:
    config = yaml.safe_load(
        chart.one(objects, "ConfigMap", "cgpu-scheduler")["data"]["config.yaml"]
    )
    election = config["leaderElection"]
    fields = ("leaseDuration", "renewDeadline", "retryPeriod")
    lease, renew, retry = (int(election[name].removesuffix("s")) for name in fields)
    assert renew <= leader_lease.PATIENCE <= lease - 3
    # A replica looks at the lease after 1 to 2.2 such periods, and counts from when it has seen
    # the last renewal.
    assert lease + 2 * 2.2 * retry < 20


def test_the_kind_of_policies_stays_when_the_chart_goes(objects: list[Json]) -> None:
    """All ResourcePolicies of the cluster would go with it."""
    name = f"{RESOURCE_POLICIES.plural}.{RESOURCE_POLICIES.group}"
    found = chart.one(objects, "CustomResourceDefinition", name)
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    text = (chart.CHART / "files" / "resourcepolicies.yaml").read_text()
    assert found["spec"] == yaml.safe_load(text)


def test_the_schedulers_image_is_of_the_clusters_version(tmp_path: Path) -> None:
    for version in ("v1.24.17", "v1.24.17-vendor.3", "v1.24.17+build"):
        pod = dict(pods(chart.rendered(version, tmp_path)))["cgpu-scheduler"]
        images = {each["name"]: each["image"] for each in pod["containers"]}
        assert images["scheduler"].endswith("/kube-scheduler:v1.24.17")
        assert images["extender"] == f"cgpu:{VERSION}"


def test_no_pod_has_more_than_it_needs(objects: list[Json]) -> None:
    for name, pod in pods(objects):
        if name in {"cgpu-agent", "cgpu-dra-driver"}:
            continue
        assert pod["priorityClassName"].startswith("system-"), name
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not any("hostPath" in each for each in pod.get("volumes", []))
        for container in pod["containers"]:
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"], container["name"]
            assert not confined["allowPrivilegeEscalation"]
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]


def test_the_agent_runs_where_the_label_is_and_is_evicted_last(
    objects: list[Json],
) -> None:
    """K8S-9: its priority is not to be mended by hand."""
    agent = dict(pods(objects))["cgpu-agent"]
    assert agent["priorityClassName"] == "system-node-critical"
    assert agent["tolerations"] == [{"operator": "Exists"}]
    required = agent["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": names.SCHEDULE, "operator": "Exists"}]}
    [container] = agent["containers"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in agent["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_k8s_16_the_agents_token_is_bound_to_its_pod_and_read_where_the_agent_looks(
    objects: list[Json],
) -> None:
    """K8S-16: before 1.21 the token that a pod gets of itself names no pod."""
    pod = dict(pods(objects))["cgpu-agent"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "account"]
    assert mount["mountPath"] == str(SERVICE_ACCOUNT)
    [volume] = [each["projected"] for each in pod["volumes"] if each["name"] == "account"]
    token, authority, namespace = volume["sources"]
    assert token == {"serviceAccountToken": {"path": "token"}}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    [variable] = [each for each in container["env"] if each["name"] == "SSL_CERT_FILE"]
    [file] = authority["configMap"]["items"]
    assert variable["value"] == f"{mount['mountPath']}/{file['path']}"
    [named] = namespace["downwardAPI"]["items"]
    assert (named["path"], named["fieldRef"]["fieldPath"]) == ("namespace", "metadata.namespace")


def test_the_agents_command_line_is_one_that_it_reads(tmp_path: Path) -> None:
    values = ["--set=agent.passThrough={monitoring,ops}", "--set=agent.driverDir=/usr/lib64",
              "--set=agent.engineSocket=/run/k3s/c.sock"]  # fmt: skip
    pod = dict(pods(chart.rendered("1.30", tmp_path, *values)))["cgpu-agent"]
    [container] = pod["containers"]
    assert container["command"] == ["python3", "-m", "cgpu_k8s.agent"]
    given = build_parser().parse_args(container["args"])
    paths = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    hosts = [each for each in pod["volumes"] if "hostPath" in each]
    volumes = {each["name"]: each["hostPath"]["path"] for each in hosts}
    assert given.pass_through == ["monitoring", "ops"]
    assert given.engine == "/run/k3s/c.sock"
    assert volumes[paths[given.driver_dir]] == "/usr/lib64"
    for path in (given.plugins, given.setting.parent):
        assert volumes[paths[str(path)]] == str(path)


def test_versions_are_the_packages() -> None:
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == VERSION
    assert about["version"] == re.sub(r"\.(dev|rc)", r"-\1", VERSION)  # helm wants a SemVer


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("scheduler.replicas=0", "at '/scheduler/replicas': minimum: got 0, want 1"),
        ("scheduler.replicas=two", "at '/scheduler/replicas': got string, want integer"),
        ("scheduler.replica=2", "at '/scheduler': additional properties 'replica' not allowed"),
        ("image.pullPolicy=Sometimes", "'Always', 'IfNotPresent', 'Never'"),
        ("image.tag=a b", "at '/image/tag': 'a b' does not match pattern"),
        ("image.repository=", "at '/image/repository': minLength: got 0, want 1"),
        (
            "image.repository=r:5000/cgpu:0.2",
            "=r:5000/cgpu:0.2: expected no tag and no digest; the",
        ),
        (
            "image.repository=r/cgpu@sha256:0",
            "=r/cgpu@sha256:0: expected no tag and no digest; the",
        ),
        ("guard.replicas=0", "at '/guard/replicas': minimum: got 0, want 1"),
        ("guard.runtimeClassName=A", "at '/guard/runtimeClassName': 'A' does not match pattern"),
        ("agent.driverDir=lib", "at '/agent/driverDir': 'lib' does not match pattern"),
        ("agent.passThrough={A}", "at '/agent/passThrough/0': 'A' does not match pattern"),
        ("imgae.tag=1", "at '': additional properties 'imgae' not allowed"),
    ],
)
def test_a_bad_value_is_refused_and_named(given: str, says: str, tmp_path: Path) -> None:
    ended = chart.run("helm", "template", chart.CHART, "--set", given, home=tmp_path)
    assert ended.returncode
    assert says in ended.stderr


def test_a_registry_may_have_a_port(tmp_path: Path) -> None:
    given = ("--set", "image.repository=r:5000/cgpu,image.tag=0.2")
    rendered = chart.done("helm", "template", chart.CHART, *given, home=tmp_path)
    assert "image: r:5000/cgpu:0.2\n" in rendered


def test_an_older_cluster_is_refused(tmp_path: Path) -> None:
    ended = chart.run("helm", "template", chart.CHART, "--kube-version", "1.19", home=tmp_path)
    assert ended.returncode
    assert "chart requires kubeVersion: >=1.20.0-0" in ended.stderr


@pytest.mark.parametrize("how", ["status", "devices"])
def test_the_agent_may_write_a_status_only_where_it_does(tmp_path: Path, how: str) -> None:
    found = chart.rendered("1.30", tmp_path, f"--set=agent.resources={how}")
    container = dict(pods(found))["cgpu-agent"]["containers"][0]
    assert build_parser().parse_args(container["args"]).resources == how
    rules = chart.one(found, "ClusterRole", "cgpu-agent")["rules"]
    [written] = [each["resources"] for each in rules if "patch" in each["verbs"]]
    assert ("nodes/status" in written) == (how == "status")


def test_metrics_of_the_extender_are_reached_and_nothing_else_is(objects: list[Json]) -> None:
    template = chart.one(objects, "Deployment", "cgpu-scheduler")["spec"]["template"]
    container = template["spec"]["containers"][0]
    [variable] = container["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    for address in ("10.0.0.1", "fd00::1"):
        words = [each.replace(f"$({variable['name']})", address) for each in container["args"]]
        given = extender.build_parser().parse_args(words)
        assert given.listen[0] == "127.0.0.1"
        assert given.metrics[0] == address
    port = given.metrics[1]
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    policy = chart.one(objects, "NetworkPolicy", "cgpu-scheduler")["spec"]
    assert policy["ingress"] == [{"ports": [{"port": port}]}]


def test_prometheus_finds_the_extenders_metrics(tmp_path: Path) -> None:
    """K8S-8: by the jobs that are deployed, and by the operator where a value asks for it."""
    text = (chart.CHART.parents[1] / "prometheus" / "prometheus-kubernetes.yml").read_text()
    [_, job] = yaml.safe_load(text)["scrape_configs"]
    [rule] = job["relabel_configs"]
    objects = chart.rendered("1.30", tmp_path, "--set", "scheduler.podMonitor=true")
    template = chart.one(objects, "Deployment", "cgpu-scheduler")["spec"]["template"]
    labels = template["metadata"]["labels"]
    [port] = [
        port["name"] for each in template["spec"]["containers"] for port in each.get("ports", ())
    ]
    known = labels["app.kubernetes.io/name"], labels["app.kubernetes.io/component"], port
    assert ";".join(known) == rule["regex"]
    monitor = chart.one(objects, "PodMonitor", "cgpu-scheduler")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job["job_name"]}]
    assert "PodMonitor" not in {each["kind"] for each in chart.rendered("1.30", tmp_path)}
