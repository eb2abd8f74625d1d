"""The kinds of objects that cgpu reads and writes, and the paths where the API server has them."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote


class Resource(NamedTuple):
    """A kind: its API group ("" for the core one), version and plural."""

    group: str
    version: str
    plural: str

    def path(self, name: str = "", *, namespace: str = "", part: str = "") -> str:
        """Return the path of all objects, of those in ``namespace``, or of the one called ``name``.

        ``part`` is a subresource, such as ``status`` or ``binding``.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        which = "".join(f"/{quote(each, safe='')}" for each in (name, part) if each)
        return f"{root}{where}/{self.plural}{which}"


NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods")
NAMESPACES = Resource("", "v1", "namespaces")
EVENTS = Resource("", "v1", "events")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
RESOURCE_POLICIES = Resource("scheduling.alibabacloud.com", "v1alpha1", "resourcepolicies")
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
SECRETS = Resource("", "v1", "secrets")
MUTATING = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")

# The kinds that make pods from a template, by the words that kubectl has for them.
MAKERS = {
    word: Resource(group, "v1", f"{kind}s")
    for group, kind, short in (
        ("apps", "daemonset", "ds"),
        ("apps", "deployment", "deploy"),
        ("apps", "replicaset", "rs"),
        ("apps", "statefulset", "sts"),
        ("batch", "cronjob", "cj"),
        ("batch", "job", ""),
        ("", "replicationcontroller", "rc"),
    )
    for word in (kind, f"{kind}s", short)
    if word
}
