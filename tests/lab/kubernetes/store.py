"""The objects of the fake API server, and what happened to them: no clock but the wall's, no I/O.

Only what cgpu relies on is as in the real one; the contract tests compare the two.
"""

from __future__ import annotations

import copy
import re
import uuid
from bisect import bisect_right
from datetime import datetime, timezone
from typing import Any, NamedTuple

from lab.kubernetes.merge import merged

Json = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
# What of a pod may change after its creation.
_MUTABLE = {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"}
_GRACE = 30


class Kind(NamedTuple):
    """A kind of object: as ``Resource`` of the product, with the word in ``kind``."""

    group: str
    version: str
    plural: str
    word: str
    namespaced: bool = True

    @property
    def api(self) -> str:
        """What ``apiVersion`` is."""
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    (kind.group, kind.plural): kind
    for kind in (
        Kind("", "v1", "nodes", "Node", namespaced=False),
        Kind("", "v1", "namespaces", "Namespace", namespaced=False),
        Kind("", "v1", "pods", "Pod"),
        Kind("", "v1", "events", "Event"),
        Kind("", "v1", "configmaps", "ConfigMap"),
        Kind("batch", "v1", "cronjobs", "CronJob"),
        Kind("batch", "v1", "jobs", "Job"),
        Kind("coordination.k8s.io", "v1", "leases", "Lease"),
        Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
        Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
        Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
        Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False),
        Kind("scheduling.alibabacloud.com", "v1alpha1", "resourcepolicies", "ResourcePolicy"),
    )
}


class Key(NamedTuple):
    """Which object."""

    kind: Kind
    namespace: str
    name: str


class Event(NamedTuple):
    """What happened to an object: its state after it, and before it."""

    version: int
    type: str
    key: Key
    item: Json
    before: Json | None


class Refusal(Exception):  # noqa: N818
    """An answer of 400 or more."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Store:
    """All objects by key, and the events since ``oldest``."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = self.version
        self.items: dict[Key, Json] = {}
        self.events: list[Event] = []

    def forget(self) -> None:
        """Make every version before the next one too old."""
        self.version += 1
        self.oldest = self.version
        self.events = []

    def read(self, key: Key) -> Json:
        """The object."""
        if key not in self.items:
            raise Refusal(404, "NotFound", f'{key.kind.plural} "{key.name}" not found')
        return self.items[key]

    def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        """A new object."""
        self._check_kind(kind, body)
        item = copy.deepcopy(body)
        about = item.setdefault("metadata", {})
        if about.get("generateName") and not about.get("name"):
            about["name"] = about["generateName"] + uuid.uuid4().hex[:5]
        name = about.get("name") or ""
        if not _NAME.fullmatch(name):
            word = f"{kind.word} {name!r} is invalid: metadata.name"
            raise Refusal(422, "Invalid", f"{word}: must be a lower case name")
        if kind.namespaced:
            self._check_namespace(namespace, about)
        if kind.word == "Pod" and not (item.get("spec") or {}).get("containers"):
            raise Refusal(422, "Invalid", f'Pod "{name}" is invalid: spec.containers: Required')
        key = Key(kind, namespace, name)
        if key in self.items:
            raise Refusal(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        about["uid"] = str(uuid.uuid4())
        about["creationTimestamp"] = _now()
        if kind.word == "Pod":
            item["status"] = {"phase": "Pending"}
            item["spec"].setdefault("schedulerName", "default-scheduler")
        elif kind.word == "Node":
            status = item.setdefault("status", {})
            status.setdefault("allocatable", dict(status.get("capacity") or {}))
        return self._write("ADDED", key, item)

    def replace(self, key: Key, body: Json, part: str = "") -> Json:
        """PUT of the whole object, or of its ``status``."""
        self._check_kind(key.kind, body)
        return self._change(key, body, part)

    def patch(self, key: Key, patch: Json, part: str = "", *, strategic: bool = True) -> Json:
        """PATCH of the whole object, or of its ``status``."""
        return self._change(key, merged(self.read(key), patch, strategic=strategic), part)

    def delete(self, key: Key, options: Json) -> Json:
        """Remove an object; a pod on a node stays, marked, until its kubelet has ended it."""
        item = self.read(key)
        expected = (options.get("preconditions") or {}).get("uid")
        if expected not in {None, item["metadata"]["uid"]}:
            raise Refusal(409, "Conflict", "the UID in the precondition does not match")
        on_node = key.kind.word == "Pod" and item["spec"].get("nodeName")
        grace = options.get("gracePeriodSeconds", _GRACE) if on_node else 0
        if grace or item["metadata"].get("finalizers"):
            marked = copy.deepcopy(item)
            marked["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
            return self._write("MODIFIED", key, marked)
        if key.kind.word == "Pod" and not on_node:  # two writes, as the real one
            marked = copy.deepcopy(item)
            marked["metadata"] |= {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": 0}
            self._write("MODIFIED", key, marked)
        return self._remove(key)

    def _remove(self, key: Key) -> Json:
        item = self.items.pop(key)
        self.version += 1
        last = copy.deepcopy(item)
        last["metadata"]["resourceVersion"] = str(self.version)
        self.events.append(Event(self.version, "DELETED", key, last, item))
        return last

    def bind(self, key: Key, binding: Json) -> None:
        """Put a pod on a node, and the Binding's annotations on the pod, in one write."""
        item = copy.deepcopy(self.read(key))
        target = (binding.get("target") or {}).get("name")
        if not target:
            raise Refusal(422, "Invalid", "target.name: Required value")
        # As in 1.20, metadata.uid of the Binding is not looked at.
        if item["metadata"].get("deletionTimestamp"):
            raise Refusal(409, "Conflict", f"pod {key.name} is being deleted")
        if item["spec"].get("nodeName"):
            raise Refusal(409, "Conflict", f"pod {key.name} is already assigned to a node")
        item["spec"]["nodeName"] = target
        added = (binding.get("metadata") or {}).get("annotations") or {}
        if added:
            about = item["metadata"]
            about["annotations"] = {**(about.get("annotations") or {}), **added}
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}
        item["status"] = merged(item["status"], {"conditions": [bound]}, strategic=True)
        self._write("MODIFIED", key, item)

    def since(self, version: int) -> list[Event]:
        """What happened after ``version``; 410 if that is not known any more."""
        if version < self.oldest:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        return self.events[bisect_right(self.events, version, key=lambda each: each.version) :]

    def _change(self, key: Key, wanted: Json, part: str) -> Json:
        old = self.read(key)
        asked = wanted.get("metadata", {}).get("resourceVersion")
        if asked and asked != old["metadata"]["resourceVersion"]:
            message = f'Operation cannot be fulfilled on {key.kind.plural} "{key.name}": the object'
            raise Refusal(409, "Conflict", f"{message} has been modified")
        new = copy.deepcopy(wanted)
        if part == "status":
            new["spec"] = old.get("spec", {})
        elif "status" in old:
            new["status"] = old["status"]
        if key.kind.word == "Pod" and part != "status":
            self._check_pod(old, new)
        about = new["metadata"]
        for fixed in ("name", "namespace", "uid", "creationTimestamp"):
            if fixed in old["metadata"]:
                about[fixed] = old["metadata"][fixed]
        about["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:  # as the real one: no write, no event
            return old
        waits = about.get("finalizers") or about.get("deletionGracePeriodSeconds")
        if about.get("deletionTimestamp") and not waits:
            return self._remove(key)
        return self._write("MODIFIED", key, new)

    def _write(self, type_: str, key: Key, item: Json) -> Json:
        self.version += 1
        about = item["metadata"]
        about["resourceVersion"] = str(self.version)
        if key.kind.namespaced:
            about["namespace"] = key.namespace
        item["apiVersion"], item["kind"] = key.kind.api, key.kind.word
        self.events.append(Event(self.version, type_, key, item, self.items.get(key)))
        self.items[key] = item
        return item

    def _check_namespace(self, namespace: str, about: Json) -> None:
        if about.get("namespace", namespace) != namespace:
            message = "the namespace of the object does not match the namespace of the request"
            raise Refusal(400, "BadRequest", message)
        known = Key(KINDS["", "namespaces"], "", namespace)
        if namespace != "default" and known not in self.items:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')

    @staticmethod
    def _check_kind(kind: Kind, body: Json) -> None:
        stated = (body.get("apiVersion", kind.api), body.get("kind", kind.word))
        if stated != (kind.api, kind.word):
            message = f"the object is not a {kind.word} of {kind.api}"
            raise Refusal(400, "BadRequest", message)

    @staticmethod
    def _check_pod(old: Json, new: Json) -> None:
        def fixed(item: Json) -> Json:
            spec = {name: value for name, value in item["spec"].items() if name not in _MUTABLE}
            for group in ("containers", "initContainers"):
                spec[group] = [{**each, "image": ""} for each in spec.get(group) or []]
            return spec

        if fixed(old) != fixed(new):
            name = old["metadata"]["name"]
            message = f'Pod "{name}" is invalid: spec: Forbidden: pod updates may not change it'
            raise Refusal(422, "Invalid", message)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
