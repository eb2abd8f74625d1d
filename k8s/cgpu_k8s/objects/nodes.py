"""Reads the GPUs that a node offers from the node's object."""

from __future__ import annotations

import contextlib
import re
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import find_nearest, printable
from cgpu_k8s.names import FACTS, PLACEMENT, SCHEDULE
from cgpu_k8s.objects.fields import get_member, get_objects, get_strings
from cgpu_k8s.objects.gpus import MODES, Facts, FactsError, OfferedGpu, read_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cgpu_k8s.objects.fields import Json
    from cgpu_k8s.objects.links import GpuLink

# Values of the label SCHEDULE that leave a node's GPUs to others, and what each means.
LEFT_ALONE = {
    "": "the node is not labelled for sharing GPUs",
    "default": "the node gives whole GPUs to pods",
    "disabled": "the node gives no GPU to pods",
    "dra": "the node gives its GPUs to claims",
    "mig": "cgpu does not divide GPUs by MIG, and leaves the node's GPUs to others",
    "mps": "cgpu does not share GPUs by MPS, and leaves the node's GPUs to others",
}
# The values above that ask for something that cgpu does not do.
UNSERVED = ("mig", "mps")
BINPACK, SPREAD = "binpack", "spread"  # how a node places pods on its GPUs
PLACEMENTS = (BINPACK, SPREAD)
# Resources of NVIDIA's device plugin: whole GPUs, shared ones and MIG devices. Other resources of
# ``nvidia.com``, such as network cards, are not GPUs.
_NVIDIAS = re.compile(r"nvidia\.com/(gpu([.-].*)?|mig-.*)")


class Offer(NamedTuple):
    """The GPUs that a node offers.

    Attributes:
        name: the name of the node.
        address: its IP address; "" if unknown.
        mode: how it isolates containers, one of MODES; "" if it offers nothing.
        placement: BINPACK or SPREAD.
        gpus: its GPUs by UUID, even while it offers nothing.
        withheld: why it offers nothing, in one sentence; "" if it offers its GPUs.
        is_asked: whether its label asks for sharing its GPUs, even with a misspelt value.
        links: the links of all pairs of its GPUs, as ``links.py`` orders them; () if unknown.
        labels: the labels of the node.
    """

    name: str
    address: str
    mode: str
    placement: str
    gpus: dict[str, OfferedGpu]
    withheld: str = ""
    is_asked: bool = True
    links: tuple[GpuLink, ...] = ()
    labels: Mapping[str, str] = {}


def read_node(node: Json) -> Offer:
    """Return what a node offers, which is nothing if a label or its agent's annotation is invalid.

    Raises:
        ObjectError: the node is malformed.
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
        ObjectError: the node is malformed.
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
    """Return a sentence if NVIDIA's plugin offers GPUs of the node as well, else ""."""
    found = [
        f"{printable(str(amount))} {printable(name)}"
        for name, amount in sorted(get_member(status, "allocatable", dict).items())
        if _NVIDIAS.fullmatch(name) and amount not in {"0", 0}
    ]
    if not found:
        return ""
    return f"the node also offers {' and '.join(found)}: stop NVIDIA's plugin on it"


def _check_mode(label: str, known: str) -> str:
    """Return a sentence if the node's agent has not applied the label yet, else ""."""
    if label == known:
        return ""
    return f"{SCHEDULE}={label} is not in force yet: the node's agent still has it as {known}"


def _read_address(status: Json) -> str:
    """Return the first InternalIP of a node that is an IP address; "" if there is none.

    The address is checked because a node may write any text there.
    """
    for each in get_objects(status, "addresses"):
        if each.get("type") == "InternalIP":
            text = get_member(each, "address", str).partition("%")[0]  # an IPv6 zone is any text
            with contextlib.suppress(ValueError):
                return str(ip_address(text))
    return ""
