"""Claims as text: in the form of the published tables, and a table of the pods that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgpu_k8s.inspect.claims import to_node_view
from cgpu_k8s.inspect.columns import align_columns
from cgpu_k8s.inspect.text import CLAIMED_CORES, CLAIMED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cgpu_k8s.inspect.claims import ClaimsView
    from cgpu_k8s.inspect.cluster import NodeView
    from cgpu_k8s.inspect.text import TableResource
    from cgpu_k8s.objects.claims import ClaimingPod

_UNKNOWN = "unknown"


def format_claims(
    claims: ClaimsView, show: Callable[[Sequence[NodeView], TableResource], str], *, cores: bool
) -> list[str]:
    """Return the tables of what claims have, and of who waits for one.

    Args:
        claims: what is shown.
        show: makes a table of nodes.
        cores: whether a table of the GPUs' time is shown, too.
    """
    is_known = all(node.allocated is not None for node in claims.nodes)
    nodes = [to_node_view(node) for node in claims.nodes] if is_known else []
    tables = [show(nodes, each) for each in (CLAIMED_MEMORY, *[CLAIMED_CORES] * cores) if nodes]
    lines = [f"{node.offer.name}: {node.problem}\n" for node in claims.nodes if node.problem]
    if claims.problem:
        offered = sum(node.total[CLAIMED_MEMORY.part] for node in claims.nodes)
        lines.append(
            f"Not all is known of claims, to which {offered} MiB of GPUs are offered:"
            f" {claims.problem}\n"
        )
    tables += ["".join(lines)] if lines else []
    return [*tables, _format_waiting(claims.waiting)] if claims.waiting else tables


def _format_waiting(waiting: Mapping[ClaimingPod, str]) -> str:
    """Return one line for each pod that waits for its claims, with the reason."""
    lines = ["POD\tNAMESPACE\tCLAIM\tWAITS\n"]
    for pod, reason in waiting.items():
        asked = [*(each or _UNKNOWN for each in pod.claims), *(name for name, _ in pod.resources)]
        lines.append("\t".join([pod.name, pod.namespace, ",".join(asked), f"{reason}\n"]))
    return align_columns("".join(lines))
