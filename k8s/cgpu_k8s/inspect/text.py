"""A cluster as the published ``kubectl inspect cgpu`` prints it, to the byte.

Rows are written with tabs, and aligned at the end. Rulers are measured before that, with tabs and
line ends: the ruler of the summary is 20 longer than its first row, that of the details 10 longer
than all rows of the first node. Groups, units and claims, which the published program does not
know, are further tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cgpu_k8s.inspect.columns import align_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cgpu_k8s.inspect.cluster import NodeView, PodView
    from cgpu_k8s.inspect.coscheduling import GroupView, PolicyView

_LARGEST_IN_GIB = 100  # a GPU with more units than this counts MiB
_SUMMARY_RULER, _DETAILS_RULER = 20, 10
_UNKNOWN, _CLAIMED_UNIT = "unknown", "MiB"


class TableResource(NamedTuple):
    """A resource, as the heading of its table names it.

    Attributes:
        part: the index of the resource in a share.
        name: its name.
        column: the heading of a GPU's column.
        has_claims: whether its nodes give it to claims.
    """

    part: int
    name: str
    column: str
    has_claims: bool = False


MEMORY = TableResource(0, "GPU Memory", "GPU{}")
CORES = TableResource(1, "GPU Core", "GPU{} Core")
CLAIMED_MEMORY = TableResource(0, "Claimed GPU Memory", "GPU{}", has_claims=True)
CLAIMED_CORES = TableResource(1, "Claimed GPU Core", "GPU{} Core", has_claims=True)


def choose_unit(nodes: Sequence[NodeView]) -> str:
    """Return the unit of memory, which published tools guess by the size of GPUs."""
    sizes = (gpu.total.units for node in nodes for gpu in node.gpus.values())
    return "MiB" if max(sizes, default=0) > _LARGEST_IN_GIB else "GiB"


def format_summary(nodes: Sequence[NodeView], resource: TableResource) -> str:
    """Return one line for each node."""
    part = resource.part
    nodes = _select_nodes(nodes, resource)
    columns = range(max((_count_columns(node) for node in nodes), default=0))
    pending = any(node.pending[part] for node in nodes)
    rows = [_format_row(node, part, columns, has_pending=pending) for node in nodes]
    heads = [
        "NAME",
        "IPADDRESS",
        *(f"{resource.column.format(n)}(Allocated/Total)" for n in columns),
    ]
    heads += ["PENDING(Allocated)"] * pending
    measure = "%" if part else _CLAIMED_UNIT if resource.has_claims else choose_unit(nodes)
    ruler = "-" * (len(rows[0]) + _SUMMARY_RULER) if rows else ""
    used, total = _sum_nodes(nodes, part)
    return align_columns(
        "\t".join([*heads, f"{resource.name}({measure})\n"])
        + "".join(rows)
        + f"{ruler}\nAllocated/Total {resource.name} In Cluster:\n"
        + f"{used}/{total} ({_to_percent(used, total)}%)\t\n"
    )


def _select_nodes(nodes: Sequence[NodeView], resource: TableResource) -> list[NodeView]:
    """Return the nodes that have the resource, or claims for GPUs that no driver publishes."""
    return [
        node
        for node in nodes
        if node.total[resource.part] > 0 or (resource.has_claims and node.pods)
    ]


def _format_row(node: NodeView, part: int, columns: range, *, has_pending: bool) -> str:
    gpus = (node.gpus.get(n) for n in columns)
    cells = [f"{gpu.allocated[part]}/{gpu.total[part]}" if gpu else "0/0" for gpu in gpus]
    cells += [str(node.pending[part] or "")] * has_pending
    sums = f"{node.allocated[part]}/{node.total[part]}\n"
    return "\t".join([node.offer.name, _format_address(node), *cells, sums])


def format_details(nodes: Sequence[NodeView], resource: TableResource) -> str:
    """Return a block for each node, with one line for each pod."""
    part = resource.part
    nodes = _select_nodes(nodes, resource)
    tables = [_format_table(node, resource) for node in nodes]
    ruler = "-" * (len(tables[0]) + _DETAILS_RULER) if tables else ""
    blocks = (
        _format_head(node, resource) + table + _format_total(node, part) + f"{ruler}\n"
        for node, table in zip(nodes, tables, strict=True)
    )
    used, total = _sum_nodes(nodes, part)
    return align_columns(
        "".join(blocks)
        + f"\n\nAllocated/Total {resource.name} In Cluster:\t"
        + f"{used}/{total} ({_to_percent(used, total)}%)\t\n"
    )


def _format_head(node: NodeView, resource: TableResource) -> str:
    heads = [f"{resource.column.format(n)}(Allocated)\t" for n in range(_count_columns(node))]
    heads += ["Pending(Allocated)\t"] * bool(node.pending[resource.part])
    about = f"\nNAME:\t{node.offer.name}\nIPADDRESS:\t{_format_address(node)}\n\n"
    names = "NAME\tNAMESPACE\t" + "CLAIM\t" * resource.has_claims
    return "".join([about, names, *heads, "\n"])


def _format_table(node: NodeView, resource: TableResource) -> str:
    return "".join(_format_line(node, pod, resource) for pod in node.pods)


def _format_line(node: NodeView, pod: PodView, resource: TableResource) -> str:
    part = resource.part
    amounts = [pod.shares[n][part] if n in pod.shares else 0 for n in range(_count_columns(node))]
    amounts += [pod.pending[part]] * bool(node.pending[part])
    names = [pod.name, pod.namespace, *([pod.claim] if resource.has_claims else [])]
    return "\t".join([*names, *map(str, amounts), "\n"])


def _format_total(node: NodeView, part: int) -> str:
    used, total = node.allocated[part], node.total[part]
    return f"Allocated :\t{used} ({_to_percent(used, total)}%)\t\nTotal :\t{total} \t\n"


def format_groups(groups: Sequence[GroupView]) -> str:
    """Return one line for each group of pods."""
    lines = ["GROUP\tNAMESPACE\tPODS(Placed/Size)\tRESERVED\tMISSING\n"]
    for each in groups:
        reserved = ",".join(f"{node}:{pods}" for node, pods in each.reserved.items())
        placed = f"{each.placed}/{_UNKNOWN if each.size is None else each.size}"
        cells = [each.name, each.namespace, placed, reserved, f"{each.missing}\n"]
        lines.append("\t".join(cells))
    return align_columns("".join(lines))


def format_units(policies: Sequence[PolicyView]) -> str:
    """Return one line for each unit of a policy, and one for its pods outside."""
    lines = ["POLICY\tNAMESPACE\tUNIT\tNODES\tPODS(Counted/Max)\tMESSAGE\n"]
    for each in policies:
        rows = [
            (str(number), unit.nodes, _format_count(unit.pods, unit.most), "")
            for number, unit in enumerate(each.units, 1)
        ]
        rows.append(("", "outside", _format_count(each.outside), each.message))
        lines += ["\t".join([each.name, each.namespace, *row]) + "\n" for row in rows]
    return align_columns("".join(lines))


def _format_count(pods: int | None, most: int | None = None) -> str:
    counted = _UNKNOWN if pods is None else str(pods)
    return counted if most is None else f"{counted}/{most}"


def _count_columns(node: NodeView) -> int:
    return max(node.gpus, default=-1) + 1


def _format_address(node: NodeView) -> str:
    return node.offer.address or _UNKNOWN


def _sum_nodes(nodes: Sequence[NodeView], part: int) -> tuple[int, int]:
    return sum(node.allocated[part] for node in nodes), sum(node.total[part] for node in nodes)


def _to_percent(used: int, total: int) -> int:
    return used * 100 // total if total else 0
