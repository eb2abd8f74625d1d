"""Loads the cluster to talk to, from a kubeconfig or from the pod in which the process runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cgpu_k8s.apiserver.cluster import Cluster, TokenFile, Trust, read_file
from cgpu_k8s.apiserver.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_cluster(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> Cluster:
    """Return the cluster that kubectl would use.

    Args:
        kubeconfig: a kubeconfig; None for those of ``$KUBECONFIG`` or for ``~/.kube/config``. If
            none of these exists, the pod's service account is used.
        context: one of the kubeconfig's contexts; None for the current one.
        environment: the environment of the process.
        account: the directory of the pod's service account.

    Raises:
        ConfigurationError: there is no configuration, or it is not readable or incomplete.
    """
    paths = _list_paths(kubeconfig, environment)
    files = [each for each in paths if each.exists()]
    if files:
        from cgpu_k8s.apiserver.kubeconfig import Kubeconfig  # noqa: PLC0415 (a pod needs no YAML)

        return Kubeconfig(files).read_cluster(context)
    if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in environment:
        return load_in_cluster(environment, account)
    names = " and ".join(map(str, paths))
    raise ConfigurationError(
        f"there is no kubeconfig: {names} {'does' if len(paths) == 1 else 'do'} not exist",
        hint="name one with --kubeconfig FILE or KUBECONFIG=FILE",
    )


def load_in_cluster(
    environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT
) -> Cluster:
    """Return the cluster of the pod in which this process runs, with the pod's service account.

    Raises:
        ConfigurationError: the process does not run in a pod, or a file is not readable.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigurationError(
            "KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod"
        )
    authority = read_file(account / "ca.crt")
    shown_host = f"[{host}]" if ":" in host else host
    origin = f"the service account in {account}"
    space = account / "namespace"
    return Cluster(
        server=f"https://{shown_host}:{port}",
        origin=origin,
        trust=Trust(authorities=authority, origin=origin),
        credentials=TokenFile(account / "token"),
        namespace=read_file(space).strip() if space.exists() else "default",
    )


def _list_paths(kubeconfig: str | None, environment: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        return [Path(kubeconfig)]
    listed = [each for each in environment.get("KUBECONFIG", "").split(os.pathsep) if each]
    if listed:
        return [Path(each) for each in listed]
    return [Path(environment.get("HOME") or "/") / ".kube" / "config"]
