"""The real Kubernetes on loopback: etcd and kube-apiserver, ready in some seconds.

Everything is in one folder, and ends with the block. Every user has a token of its own; a user of
the group ``system:masters`` may do everything, any other what a test's roles allow. Who called what
is in ``ControlPlane.calls``.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cgpu_k8s.apiserver.cluster import Cluster, Fixed, Trust, make_bearer
from lab.kubernetes import chart
from lab.kubernetes.authority import Authority
from lab.kubernetes.objects import pod, pods_path
from lab.kubernetes.programs import Release, free_port, releases, running, stop, tail

_PATIENCE = 60.0  # seconds until a program that is not ready counts as broken
_ANSWERED = '"stage":"ResponseComplete"'
_ATTEMPTS = 3  # another program may take a port between the choice and its use
_OURS = "cgpu/"  # how our programs name themselves: a scheduler may be the same user
ADMIN = "admin"
# The accounts of the chart's scheduler, agent, guard and DRA driver.
ACCOUNT = "system:serviceaccount:kube-system:cgpu-scheduler"
AGENT = "system:serviceaccount:kube-system:cgpu-agent"
GUARD = "system:serviceaccount:kube-system:cgpu-guard"
DRA_DRIVER = "system:serviceaccount:kube-system:cgpu-dra-driver"
SCHEDULER = "system:kube-scheduler"  # the cluster's own; Kubernetes itself makes its roles
# User: its groups. The token of each is its name.
USERS = {
    ADMIN: "system:masters",
    ACCOUNT: "system:serviceaccounts,system:serviceaccounts:kube-system",
    AGENT: "system:serviceaccounts,system:serviceaccounts:kube-system",
    GUARD: "system:serviceaccounts,system:serviceaccounts:kube-system",
    DRA_DRIVER: "system:serviceaccounts,system:serviceaccounts:kube-system",
    "cgpu-extender": "",
    SCHEDULER: "",
    "system:node:gpu-a": "system:nodes",
    "nobody": "",
}


class Bound(NamedTuple):
    """A binding that was sent to the API server.

    Attributes:
        when: the time of its answer, in seconds since 1970.
        status: the answer.
    """

    when: float
    status: int


class Call(NamedTuple):
    """A verb, and what it was for, as rules of roles name them; ``resource`` with subresource."""

    verb: str
    group: str
    resource: str
    namespace: str

    @classmethod
    def of(cls, event: dict[str, Any]) -> Call:
        """The call that an event of the audit's log is about."""
        about = event["objectRef"]
        parts = filter(None, (about["resource"], about.get("subresource")))
        where = about.get("namespace", "")
        return cls(event["verb"], about.get("apiGroup", ""), "/".join(parts), where)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def _audit_policy() -> dict[str, Any]:
    """Log what schedulers and the chart's programs call; a watch when it begins: it may not end."""
    logged = ("cgpu", SCHEDULER, ACCOUNT, AGENT, GUARD, DRA_DRIVER)
    users = [user for user in USERS if user.startswith(logged)]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "Metadata", "users": users},
        ],
    }


class ControlPlane:
    """etcd and kube-apiserver with data, keys and logs in ``folder``; see ``control_plane``.

    Attributes:
        release: the version of all that runs.
    """

    def __init__(
        self, folder: Path, release: Release, *options: str, accounts: bool = False
    ) -> None:
        self.folder, self.release = folder, release
        self._options = options
        # No controllers make the accounts, or take the taints away, unless a test has them.
        self._left_out = [*([] if accounts else ["ServiceAccount"]), "TaintNodesByCondition"]
        self.authority = Authority(folder / "keys")
        self.authority.sign("server", "/CN=server", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.authority.key("accounts")
        lines = [f'{user},{user},{number},"{groups}"' for number, (user, groups) in
                 enumerate(USERS.items())]  # fmt: skip
        (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        (folder / "audit.yaml").write_text(yaml.safe_dump(_audit_policy()))
        self._audit = folder / "audit.log"
        self._audit.touch()
        self._port = self._etcd_port = self._peer_port = 0
        self._programs = contextlib.ExitStack()
        self._api = contextlib.ExitStack()
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address of the API server."""
        return f"https://127.0.0.1:{self._port}"

    def cluster(self, user: str = ADMIN, token: str = "") -> Cluster:
        """The cluster, as one of USERS, or by another token."""
        trust = Trust(authorities=self.authority.certificate, origin="the test")
        return Cluster(
            self.address, f"{user} of the test", trust, Fixed(make_bearer(token or user))
        )

    def kubeconfig(self, user: str = ADMIN, server: str = "", token: str = "") -> Path:
        """A kubeconfig of one of USERS, for the API server or what passes on to it."""
        server = server or self.address
        name = f"{user}-{server.partition('://')[2]}"
        path = self.folder / f"{re.sub('[^a-z0-9-]', '-', name)}.yaml"
        about = {
            "server": server,
            "certificate-authority-data": self.authority.data("ca.crt"),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": about}],
            "users": [{"name": user, "user": {"token": token or user}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def chart(self, *options: str) -> list[dict[str, Any]]:
        """The chart's objects for this release, with these options of helm."""
        return chart.rendered(self.release.version, self.folder, *options)

    def calls(self, user: str) -> set[Call]:
        """What our programs asked of objects as a user, whether it was allowed or not."""
        events = map(json.loads, self._audit.read_text().splitlines())
        return {
            Call.of(each)
            for each in events
            if each["user"]["username"] == user and each["userAgent"].startswith(_OURS)
        }

    def granted(self, name: str, *options: str) -> set[Call]:
        """What the chart's roles of a name allow."""
        found = set()
        for role in self.chart(*options):
            if role["kind"] in {"Role", "ClusterRole"} and role["metadata"]["name"] == name:
                where = role["metadata"].get("namespace", "")
                for rule in role["rules"]:
                    [group] = rule["apiGroups"]
                    for verb in rule["verbs"]:
                        found |= {Call(verb, group, kind, where) for kind in rule["resources"]}
        return found

    def bindings(self) -> list[Bound]:
        """All bindings that were answered."""
        with self._audit.open() as lines:  # the last one may not be whole yet
            events = [json.loads(each) for each in lines
                      if '"binding"' in each and _ANSWERED in each and each.endswith("\n")
                      ]  # fmt: skip
        return [Bound(_seconds(each["stageTimestamp"]), each["responseStatus"]["code"])
                for each in events]  # fmt: skip

    def agents_token(self, node: str, user: str = AGENT) -> str:
        """A new token of the chart's agent that is bound to a pod on a node, as kubelets ask for.

        Or of another account of the chart's. The pod wants another node, so that no kubelet runs
        it.
        """
        account = user.rpartition(":")[2]
        name = f"{account}-{node}"
        item = pod(name, nodeName=node, serviceAccountName=account, nodeSelector={"no": "node"})
        item["metadata"]["labels"] = {"app.kubernetes.io/component": account.partition("-")[2]}
        return self.token_of(self.create(pods_path(chart.NAMESPACE), item))

    def token_of(self, item: Any) -> str:
        """A new token of a pod's account that is bound to the pod, as its kubelet asks for."""
        about, account = item["metadata"], item["spec"]["serviceAccountName"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                  "spec": {"boundObjectRef": bound}}  # fmt: skip
        where = f"/api/v1/namespaces/{about['namespace']}/serviceaccounts/{account}/token"
        return str(self.create(where, wanted)["status"]["token"])

    def read(self, path: str) -> Any:
        """What the API server answers the administrator."""
        return self._answer(path)

    def create(self, path: str, item: dict[str, Any]) -> Any:
        """What the administrator makes."""
        return self._answer(path, json.dumps(item).encode())

    def _answer(self, path: str, data: bytes | None = None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            data,
            {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
        )
        trust = self.cluster().trust.make_context(None)
        with urllib.request.urlopen(request, timeout=30, context=trust) as reply:
            return json.load(reply)

    def start(self) -> None:
        """Start etcd and the API server, and return when it is ready."""
        for attempt in range(_ATTEMPTS):
            self._port, self._etcd_port, self._peer_port = (free_port() for _ in range(3))
            try:
                self._start_etcd()
                self.start_api_server()
            except RuntimeError:
                self.close()
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def close(self) -> None:
        """End both."""
        self._api.close()
        self._programs.close()

    def forget(self) -> None:
        """Make every version that was read so far too old to watch from."""
        self.stop_api_server()
        self.start_api_server()

    def stop_api_server(self) -> None:
        """End the API server; etcd, with all objects, goes on."""
        self._api.close()
        self._server = None

    def start_api_server(self) -> None:
        """Start the API server at the same address, and return when it is ready."""
        keys, log = self.authority.folder, self.folder / "apiserver.log"
        command = [
            self.release.program("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={keys / 'server.crt'}",
            f"--tls-private-key-file={keys / 'server.key'}",
            f"--client-ca-file={keys / 'ca.crt'}",
            f"--cert-dir={self.folder / 'made'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={keys / 'accounts.key'}",
            f"--service-account-signing-key-file={keys / 'accounts.key'}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",
            f"--disable-admission-plugins={','.join(self._left_out)}",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self._audit}",
            "--allow-privileged=true",  # as clusters have it
            "--profiling=false",
            *self._options,
        ]
        self._server = self._api.enter_context(running(log, command))
        self._await_ready(self._server, log, f"{self.address}/readyz")

    def _start_etcd(self) -> None:
        log, name = self.folder / "etcd.log", "http://127.0.0.1"
        command = [
            self.release.program("etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={name}:{self._etcd_port}",
            f"--advertise-client-urls={name}:{self._etcd_port}",
            f"--listen-peer-urls={name}:{self._peer_port}",
            f"--initial-advertise-peer-urls={name}:{self._peer_port}",
            f"--initial-cluster=default={name}:{self._peer_port}",
            "--logger=zap",
            "--log-level=error",
            "--unsafe-no-fsync",  # nobody pulls the plug on a test
        ]
        etcd = self._programs.enter_context(running(log, command))
        self._await_ready(etcd, log, f"{name}:{self._etcd_port}/health")

    def _await_ready(self, process: subprocess.Popen[bytes], log: Path, address: str) -> None:
        trust = self.cluster().trust.make_context(None) if address.startswith("https") else None
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {ADMIN}"})
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"{log.stem} ended while it started:\n{tail(log)}")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(request, timeout=5, context=trust),
            ):
                return
            time.sleep(0.05)
        stop(process)
        raise RuntimeError(f"{log.stem} is not ready after {_PATIENCE:g} s:\n{tail(log)}")


@contextlib.contextmanager
def control_plane(
    folder: Path, release: Release | None = None, *options: str, accounts: bool = False
) -> Iterator[ControlPlane]:
    """A control plane, of the oldest release if none is named, until the end of the block.

    ``options`` are more of the API server's. With ``accounts``, pods have the tokens of theirs,
    which needs ``controllers``.
    """
    plane = ControlPlane(folder, release or releases()[0], *options, accounts=accounts)
    plane.start()
    try:
        yield plane
    finally:
        plane.close()


@contextlib.contextmanager
def controllers(plane: ControlPlane, *names: str) -> Iterator[None]:
    """The real kube-controller-manager, with these controllers alone, until the end of the block.

    Fails the test where the release has none.
    """
    command = [
        plane.release.program("kube-controller-manager"),
        f"--kubeconfig={plane.kubeconfig()}",
        f"--controllers={','.join(names)}",
        f"--root-ca-file={plane.authority.folder / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    with running(plane.folder / "controllers.log", command):
        yield
