"""The GPUs that a node offers, read from its object."""

from __future__ import annotations

import contextlib
import re
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import find_nearest, printable
from cgpu_k8s.names import FACTS, PLACEMENT, SCHEDULE
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.gpus import MODES, Fact, Facts, FactsError, read_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.links import GpuLink

# Values of the label that leave a node's GPUs to others.
LEFT_ALONE = {
    "": "the node is not labelled for sharing GPUs",
    "default": "the node gives whole GPUs to pods",
    "disabled": "the node gives no GPU to pods",
    "dra": "the node gives its GPUs to claims",
    "mig": "cgpu does not divide GPUs by MIG, and leaves the node's GPUs to others",
    "mps": "cgpu does not share GPUs by MPS, and leaves the node's GPUs to others",
}
# Labels of those for which a node waits in vain: cgpu does not do that.
UNSERVED = ("mig", "mps")
BINPACK, SPREAD = "binpack", "spread"  # how a node places pods on its GPUs
PLACEMENTS = (BINPACK, SPREAD)
# Resources of NVIDIA's plugin for GPUs: whole, shared or divided. Not all of ``nvidia.com``:
# network cards are published there, too.
_NVIDIAS = re.compile(r"nvidia\.com/(gpu([.-].*)?|mig-.*)")


class Offer(NamedTuple):
    """The GPUs that a node offers.

    Attributes:
        name: its name.
        address: its IP address; "": unknown.
        mode: how it isolates containers, one of MODES; "": it offers nothing.
        placement: BINPACK or SPREAD.
        gpus: its GPUs by UUID, also while it offers nothing.
        withheld: why it offers nothing; one sentence; "": it offers its GPUs.
        is_asked: whether its label asks for sharing its GPUs, if perhaps misspelt.
        links: of all pairs of its GPUs, by their indices in order; (): not known.
        labels: the node's.
    """

    name: str
    address: str
    mode: str
    placement: str
    gpus: dict[str, Fact]
    withheld: str = ""
    is_asked: bool = True
    links: tuple[GpuLink, ...] = ()
    labels: Mapping[str, str] = {}


def read_node(node: Json) -> Offer:
    """Read a node's object. If anything is unclear, the node offers nothing; nothing is guessed.

    Raises:
        ObjectError: it is no node.
    """
    meta, status = get_member(node, "metadata", dict), get_member(node, "status", dict)
    labels, notes = get_strings(meta, "labels"), get_strings(meta, "annotations")
    mode, placement = labels.get(SCHEDULE, ""), labels.get(PLACEMENT, BINPACK)
    withheld = why_not_shared(node)
    facts = Facts("", ())
    if FACTS in notes:
        try:
            facts = read_facts(notes[FACTS])
        except FactsError as error:
            withheld = withheld or f"annotation {FACTS}: {error}"
        else:
            withheld = withheld or facts.withheld or _check_mode(mode, facts.mode)
    elif not withheld:
        withheld = f"the node's agent has not described its GPUs (annotation {FACTS})"
    return Offer(
        name=get_member(meta, "name", str),
        address=_read_address(status),
        mode="" if withheld else mode,
        placement=placement if placement in PLACEMENTS else BINPACK,
        gpus={gpu.uuid: gpu for gpu in facts.gpus},
        withheld=withheld,
        is_asked=mode not in LEFT_ALONE,
        links=facts.links,
        labels={sys.intern(key): value for key, value in labels.items()},
    )


def why_not_shared(node: Json) -> str:
    """Return why a node's GPUs must not be shared, whatever its agent offers; "" if they may be.

    Raises:
        ObjectError: it is no node.
    """
    labels = get_strings(get_member(node, "metadata", dict), "labels")
    mode, placement = labels.get(SCHEDULE, ""), labels.get(PLACEMENT, BINPACK)
    return _check_labels(mode, placement) or _check_nvidia(get_member(node, "status", dict))


def _check_labels(mode: str, placement: str) -> str:
    if mode in LEFT_ALONE:
        return f"{SCHEDULE}={mode}: {LEFT_ALONE[mode]}" if mode else LEFT_ALONE[mode]
    if mode not in MODES:
        return _describe_unknown(SCHEDULE, mode, (*MODES, *filter(None, LEFT_ALONE)))
    return "" if placement in PLACEMENTS else _describe_unknown(PLACEMENT, placement, PLACEMENTS)


def _describe_unknown(label: str, value: str, known: tuple[str, ...]) -> str:
    meant = find_nearest(value, known)
    guess = f"; perhaps {meant}" if meant else ""
    return f"label {label}={printable(value)}: expected one of {', '.join(known)}{guess}"


def _check_nvidia(status: Json) -> str:
    """Return why two schedulers would give away the same GPUs; "" if they would not."""
    found = [
        f"{printable(str(amount))} {printable(name)}"
        for name, amount in sorted(get_member(status, "allocatable", dict).items())
        if _NVIDIAS.fullmatch(name) and amount not in {"0", 0}
    ]
    if not found:
        return ""
    return f"the node also offers {' and '.join(found)}: stop NVIDIA's plugin on it"


def _check_mode(label: str, known: str) -> str:
    """Return why a label that is not in force yet withholds a node; "" if it is in force."""
    if label == known:
        return ""
    return f"{SCHEDULE}={label} is not in force yet: the node's agent still has it as {known}"


def _read_address(status: Json) -> str:
    """Return the first internal address that is an IP address; empty if none is.

    It is checked because a node may write any text there.
    """
    for each in get_objects(status, "addresses"):
        if each.get("type") == "InternalIP":
            text = get_member(each, "address", str).partition("%")[0]  # a zone can be any text
            with contextlib.suppress(ValueError):
                return str(ip_address(text))
    return ""
