"""Objects as users write them."""

from __future__ import annotations

from typing import Any

from cgpu_k8s.apiserver.resources import PODS

Json = dict[str, Any]


def pod(name: str, limits: Json | None = None, **spec: Any) -> Json:
    """A pod with one container, called ``main``, that asks for ``limits``."""
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def node(name: str, labels: Json | None = None, **capacity: Any) -> Json:
    """A node; words of ``capacity`` are its resources."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def binding(name: str, target: str, annotations: Json | None = None, **about: Any) -> Json:
    """The Binding of a pod to a node, with annotations for the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations or {}, **about},
        "target": {"apiVersion": "v1", "kind": "Node", "name": target},
    }


def pod_path(name: str, part: str = "", namespace: str = "default") -> str:
    """The path of a pod."""
    return PODS.path(name, namespace=namespace, part=part)


def pods_path(namespace: str = "default") -> str:
    """The path of the pods of a namespace."""
    return PODS.path(namespace=namespace)
