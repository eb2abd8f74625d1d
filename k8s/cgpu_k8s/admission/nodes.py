"""The rules about the changes that an agent may make to nodes, as CEL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s import names
from cgpu_k8s.admission.cel import Check, quote_text, write_list, write_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgpu_k8s.admission.settings import Settings

# The members of a node that its agent may change, by the path of the object that has them. The API
# server itself changes generation, managedFields and resourceVersion.
OFFERED: Mapping[str, tuple[str, ...]] = {
    "": ("metadata", "status"),
    "metadata": ("annotations", "labels", "generation", "managedFields", "resourceVersion"),
    "metadata.annotations": (names.FACTS,),
    "metadata.labels": names.NODE_LABELS,
    "status": ("allocatable", "capacity"),
    "status.allocatable": names.NODE_RESOURCES,
    "status.capacity": names.NODE_RESOURCES,
}
# The key in the user's ``extra`` for the node of the pod to which a token is bound, from
# Kubernetes 1.30 on.
NODE_NAME = "authentication.kubernetes.io/node-name"


def check_foreign_node(_: Settings, __: str) -> tuple[Check, ...]:
    """Check that the user's token is bound to a pod on this node."""
    extra, name = "request.userInfo.extra", quote_text(NODE_NAME)
    return (
        Check(
            f"has({extra}) && {name} in {extra} && {extra}[{name}] == [object.metadata.name]",
            write_sentence(
                "an agent's token may change only the node on which the agent's pod runs"
            ),
        ),
    )


def check_node_changes(_: Settings, __: str) -> tuple[Check, ...]:
    """Check that nothing in a node changes except what an agent may change."""
    return tuple(
        Check(
            _is_unchanged(path, members),
            write_sentence(f"{path or 'node'}: an agent may change only {', '.join(members)}"),
        )
        for path, members in OFFERED.items()
    )


def _is_unchanged(path: str, exceptions: Iterable[str]) -> str:
    """Return CEL that tests whether the object at a path is unchanged, except for some members."""
    after, before = _select_part("object", path), _select_part("oldObject", path)
    free = write_list(exceptions)
    return (
        f"{after}.all(key, key in {free} || (key in {before} && {before}[key] == {after}[key]))"
        f" && {before}.all(key, key in {free} || key in {after})"
    )


def _select_part(item: str, path: str) -> str:
    """Return CEL for the object at a path as ``dyn``, or for {} if there is none.

    ``dyn`` lets CEL iterate over the members. A list of them would miss those that later versions
    of Kubernetes add. The first level of a node always exists.
    """
    whole = f"{item}.{path}" if path else item
    return f"(has({whole}) ? dyn({whole}) : {{}})" if "." in path else f"dyn({whole})"
