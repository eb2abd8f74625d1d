"""The resources that cgpu reads and writes, and their paths at the API server."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote


class Resource(NamedTuple):
    """A resource: its API group ("" for the core group), version and plural name."""

    group: str
    version: str
    plural: str

    def path(self, name: str = "", *, namespace: str = "", part: str = "") -> str:
        """Return the path of all objects, of those in ``namespace``, or of the object ``name``.

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
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses")
SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
SECRETS = Resource("", "v1", "secrets")
MUTATING = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
VALIDATING = Resource("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")

# The resources that make pods from a template, by the names and short names that kubectl takes.
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
